"""Run published settings on real images.

    python -m benchmarks.papers GROUP [--data-dir data] [--only NAME …] [--seed 0] [--lbfgs]
                                [--out results/GROUP]

`cifar10-short`: CIFAR-10, five clients with two classes each, ResNet-18, 100 rounds of one local
epoch, which is a fifth of the papers' budget, otherwise as FedEMA's recipes: each algorithm, and
FedAvg with the same method.
`cifar10`: FedEMA, FedBYOL and FedU on the same images with the full budget, five local epochs.
`fashion-mnist`: CCL and FedSimCLR, IID or two classes per client, and centralized MoCo, as CCL's
recipes but with 30 rounds of one epoch.
`fedca-table-1`: FedCA's Table 1 on CIFAR-10 with the 5-layer CNN, with its own recipe. FedCA's
public images are 3,200 training images that no client has, instead of images of STL-10. Four more
cases change one setting of FedCA each; with beta = 0, clients also have the public images.
`fedema-table-6`: FedEMA and FedBYOL, which replaces both networks, on CIFAR-10, non-IID, with 5 of
20 clients in each round.
`ccl-table-1`: CCL on Fashion-MNIST, IID, with its recipe's budget.
`decssl-table-2`: FeatARC, FedBN and Per-SSFL on CIFAR-10, non-IID, with Dec-SSL's recipes.
`fedu-table-4-short`: which network FedU's baselines aggregate and update, with a ResNet-18 and 100
rounds of one epoch instead of a ResNet-50 and 800 rounds.

kNN is measured every five rounds (of 400: every 20), a linear probe at the end; rounds.jsonl
contains the divergence and the algorithm's notes. The experiment.toml, rounds.jsonl and
results.json (with the date) of each run are stored, and probes.json if other probes measured it.
Finished runs are not repeated.

In the groups `cifar10` and `fedema-table-6`, other probes measure each run: the protocols of FedU
and of the authors' code (EasyFL), the linear classifier found by L-BFGS, whose accuracy depends on
no learning rate, and, in `cifar10`, fine-tuning with few labels. `--lbfgs` adds L-BFGS to the runs
of other groups. probes.json is written after each probe; a probe that fails has its "error" there,
and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import fedssl

Probe = tuple[str, Mapping[str, Any]]  # name and settings of a probe


class Case(NamedTuple):
    """A recipe, the changes to it, and the additional probes that measure the run at the end."""

    recipe: str
    changes: Mapping[str, Any] = {}
    also: Sequence[Probe] = ()


def fedca(**settings: Any) -> Case:
    return algorithm_on("fedsimclr-cifar10-noniid-short", "fedca", settings)


def featarc(**settings: Any) -> Case:
    """Return a case that is also measured under each client's own model and mix of classes."""
    case = algorithm_on("fedsimclr-cifar10-noniid-short", "featarc", settings)
    return case._replace(also=PER_CLIENT)


def ccl(**settings: Any) -> Case:
    return algorithm_on("fedmocov2-cifar10-noniid-short", "ccl", settings)


def algorithm_on(recipe: str, algorithm: str, settings: Mapping[str, Any]) -> Case:
    """Return a recipe with another algorithm, whose other settings are given."""
    changes = {f"algorithm.{name}": value for name, value in settings.items()}
    return Case(recipe, {"algorithm.name": algorithm, **changes})


def with_narrow_head(case: Case) -> Case:
    """Return a case whose projections are as wide as the features of a ResNet-18."""
    return case._replace(changes={**case.changes, "method.dim": 512})


def with_random_queue(case: Case) -> Case:
    """Return a case in which no key stays in a queue from one round to the next."""
    return case._replace(changes={**case.changes, **RANDOM_QUEUE})


def fedca_table_1(**settings: Any) -> Case:
    """Return FedCA in its own setting, non-IID, with other settings of the algorithm."""
    changes = {f"algorithm.{name}": value for name, value in settings.items()}
    return Case("fedca-cnn5-cifar10-noniid", {**HELD_OUT, **changes})


def fedu_table_4(aggregate: str, update: str) -> Case:
    """Return a row of FedU's Table 4 with the global predictor, an eighth of the rounds."""
    recipe = f"fedu-ablation-{aggregate}-to-{update}"
    return Case(recipe, {"method.backbone": "resnet18", "rounds": 100})


BRIEFLY = {"rounds": 30}
EVERY_20 = {"probe.every": 20}  # of 400 rounds: as often per image as in runs of 100 rounds
HELD_OUT = {"public.name": "held-out"}
RANDOM_QUEUE = {"method.queue_start": "random"}
LBFGS: Probe = ("linear", {"solver": "lbfgs"})
PER_CLIENT: list[Probe] = [("per-client", {})]
# Fine-tuning with few labels: as in the authors' code, with fixed features, as in the papers, and
# at a tenth of their learning rate. The last two train the whole model and take longest.
FEW: list[Probe] = [
    ("semi", {"labels": labels, **settings})
    for settings in (
        {"protocol": "easyfl"},
        {"protocol": "easyfl-literal"},
        {"frozen": True},
        {"frozen": False},
        {"lr": 1e-4},
    )
    for labels in (0.01, 0.1)
]
LINEAR: list[Probe] = [
    LBFGS,
    ("linear", {"protocol": "fedu"}),
    ("linear", {"protocol": "easyfl"}),
]
ALL_PROBES = [*LINEAR, *FEW]  # the quickest first
GROUPS: dict[str, dict[str, Case]] = {
    "cifar10-short": {
        "fedbyol": Case("fedbyol-cifar10-noniid-short"),
        "fedema": Case("fedema-cifar10-noniid-short"),
        "fedema-global": Case("fedema-cifar10-noniid-short", {"algorithm.divergence": "global"}),
        "fedu": Case(
            "fedbyol-cifar10-noniid-short", {"algorithm.name": "fedu", "algorithm.mu": 0.2}
        ),
        "fedsimclr": Case("fedsimclr-cifar10-noniid-short"),
        "fedca": fedca(),
        "fedca-t007": fedca(temperature=0.07),  # the temperature of FedSimCLR
        "fedca-t01": fedca(temperature=0.1),
        "fedca-128-rows": fedca(dictionary=128),
        "fedca-train-rows": fedca(dictionary_mode="train"),
        "fedca-t007-train-rows": fedca(temperature=0.07, dictionary_mode="train"),
        "fedca-beta0": fedca(beta=0),
        "fedca-t007-beta0": fedca(temperature=0.07, beta=0),
        "fedca-t007-0-rows": fedca(temperature=0.07, dictionary=0),
        "featarc": featarc(),
        "featarc-1-cluster": featarc(clusters=1),
        "featarc-lam0": featarc(lam=0),
        "featarc-features": with_narrow_head(featarc(aligned_to="features")),
        "featarc-narrow": with_narrow_head(featarc()),  # to compare the previous one with
        "fedmocov1": Case("fedmocov1-cifar10-noniid-short"),
        "fedmocov2": Case("fedmocov2-cifar10-noniid-short"),
        "fedmocov2-t01": Case("fedmocov2-cifar10-noniid-short", {"method.temperature": 0.1}),
        "fedmocov2-random-queue": Case("fedmocov2-cifar10-noniid-short", RANDOM_QUEUE),
        "ccl": ccl(),
        "ccl-contrast-only-random-queue": with_random_queue(ccl(fusion=False, lam=0)),
        "ccl-contrast-only": ccl(fusion=False, lam=0),
        "ccl-fusion-only": ccl(lam=0),
        "ccl-t02": ccl(tau=0.2),
        "fedsimsiam": Case("fedsimsiam-cifar10-noniid-short"),
    },
    "cifar10": {
        "fedema": Case("fedema-cifar10-noniid", also=ALL_PROBES),
        "fedbyol": Case("fedbyol-cifar10-noniid", also=ALL_PROBES),
        "fedu": Case(
            "fedu-cifar10-noniid", {"probe.protocol": "fedema"}, ALL_PROBES
        ),  # the protocol of FedEMA's Table 3
    },
    "fashion-mnist": {
        "ccl-iid": Case("ccl-fmnist-iid-short", BRIEFLY),
        "ccl-noniid": Case("ccl-fmnist-noniid1-short", BRIEFLY),
        "fedsimclr-iid": Case("ccl-fedsimclr-fmnist-iid-short", BRIEFLY),
        "fedsimclr-noniid": Case("ccl-fedsimclr-fmnist-noniid1-short", BRIEFLY),
        "moco-centralized": Case("ccl-moco-centralized-fmnist-short", BRIEFLY),
    },
    "fedca-table-1": {
        "fedca-noniid": fedca_table_1(),
        "fedsimclr-noniid": Case("fedca-fedsimclr-cnn5-cifar10-noniid"),
        "fedca-iid": Case("fedca-cnn5-cifar10-iid", HELD_OUT),
        "fedsimclr-iid": Case("fedca-fedsimclr-cnn5-cifar10-iid"),
        "fedae-noniid": Case("fedca-fedae-cnn5-cifar10-noniid"),
        "fedae-iid": Case("fedca-fedae-cnn5-cifar10-iid"),
        "fedpr-noniid": Case("fedca-fedpr-cnn5-cifar10-noniid"),
        "fedpr-iid": Case("fedca-fedpr-cnn5-cifar10-iid"),
        # Which part of FedCA makes it differ from FedSimCLR:
        "fedca-noniid-beta0": fedca_table_1(beta=0),
        "fedca-noniid-0-rows": fedca_table_1(dictionary=0),
        "fedca-noniid-train-rows": fedca_table_1(dictionary_mode="train"),
        "fedca-noniid-t01": fedca_table_1(temperature=0.1),
    },
    "fedema-table-6": {
        "fedema-5of20": Case("fedema-cifar10-noniid-5of20", EVERY_20, LINEAR),
        "fedbyol-5of20": Case("fedbyol-cifar10-noniid-5of20-update-both", EVERY_20, LINEAR),
    },
    "ccl-table-1": {"ccl-fmnist-iid": Case("ccl-fmnist-iid")},
    "decssl-table-2": {
        "featarc-noniid": Case("featarc-cifar10-noniid", also=PER_CLIENT),
        "fedbn-noniid": Case("decssl-simclr-cifar10-noniid"),
        "perssfl-noniid": Case("decssl-perssfl-cifar10-noniid", also=PER_CLIENT),
    },
    "fedu-table-4-short": {
        f"{aggregate}-to-{update}": fedu_table_4(aggregate, update)
        for aggregate in ("online", "target")
        for update in ("online", "target", "both")
    },
}
FIXED = {"probe.every": 5, "probe.baselines": [], "train.checkpoint_every": 10**6}
KEPT = ("experiment.toml", "rounds.jsonl", "results.json")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("group", choices=list(GROUPS))
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--only", nargs="*", metavar="NAME")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="default: results/GROUP")
    parser.add_argument("--rounds", type=int, help="number of rounds, for a trial")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--lbfgs", action="store_true", help="also find the linear classifier by L-BFGS"
    )
    args = parser.parse_args()
    group = GROUPS[args.group]
    if unknown := set(args.only or ()) - set(group):
        parser.error(f"{args.group} has no {', '.join(sorted(unknown))}; it has {', '.join(group)}")
    failed = 0
    for name in args.only or group:
        case = group[name]
        if args.lbfgs and LBFGS not in case.also:
            case = case._replace(also=[*case.also, LBFGS])
        folder = (args.out or Path("results", args.group)) / f"{name}-seed{args.seed}"
        if all(
            (folder / file).is_file() for file in (*KEPT, *(["probes.json"] if case.also else []))
        ):
            continue
        begun = time.perf_counter()
        results, probes = run(case, folder, args)
        failed += sum("error" in probe for probe in probes)
        accuracies = {probe: score["mean"] for probe, score in results["table"]["this run"].items()}
        print(f"{name}: {accuracies}, {time.perf_counter() - begun:.0f} s in all", flush=True)
    if failed:
        sys.exit(f"{failed} probes failed: see probes.json")


def run(
    case: Case, folder: Path, args: argparse.Namespace
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Train, measure and store one case; return its results and those of the additional probes."""
    changes = {
        **FIXED,
        "seed": args.seed,
        **case.changes,
        **({"rounds": args.rounds} if args.rounds else {}),
    }
    with tempfile.TemporaryDirectory() as scratch:
        directory, place = Path(scratch) / "run", {"data_dir": args.data_dir, "device": args.device}
        finished = fedssl.run(case.recipe, directory, quiet=True, set=changes, **place)
        folder.mkdir(parents=True, exist_ok=True)
        for file in KEPT:
            (folder / file).write_bytes((finished.dir / file).read_bytes())
        dated = {"date": datetime.now(UTC).date().isoformat()} | finished.results
        (folder / "results.json").write_text(json.dumps(dated, indent=2) + "\n", "utf-8")
        return finished.results, measure_all(finished, case.also, folder / "probes.json")


def measure_all(finished: fedssl.Run, also: Sequence[Probe], file: Path) -> list[dict[str, Any]]:
    """Return the measurements of a run by additional probes; write them after each probe."""
    probes: list[dict[str, Any]] = []
    for probe, settings in also:
        begun = time.perf_counter()
        try:
            probes.append(measured(finished, probe, settings))
        except Exception as error:  # the other probes can still measure the run
            traceback.print_exc()
            message = f"{type(error).__name__}: {error}"
            probes.append({"probe": probe, **settings, "error": message})
        print(f"{probes[-1]}, {time.perf_counter() - begun:.0f} s", flush=True)
        file.write_text(json.dumps(probes, indent=2) + "\n", "utf-8")
    return probes


def measured(finished: fedssl.Run, probe: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    score = finished.evaluate(probe, **settings)
    return {
        "probe": probe,
        **settings,
        "accuracy": round(score.mean, 4),
        "labelled": score.labelled,
        **({"note": score.note} if score.note else {}),
    }


if __name__ == "__main__":
    main()
