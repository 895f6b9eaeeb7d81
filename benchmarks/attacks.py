"""Measure the effect of one malicious client of five on the demo, by defence.

    python -m benchmarks.attacks [--seeds 0 1 2] [--rounds 12] [--defences NAME …] [--only NAME …]
                                 [--out results/demo/attacks.json] [--page]

Each attack changes the uploads of client 0 in every round; all other clients are honest. The
output contains the kNN accuracy after the last round and how often each client was dropped. It is
written after each run, and runs that it has are not repeated. `--page` runs nothing: it writes the
tables of the file into docs/explanation/guarantees.md.

Declared counts of 10⁷ images are for clients whose counts the server cannot verify, as on Flower.
The defences flower-… are Flower's own functions on the same uploads, without bounds on uploads;
they need the package flwr.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

import fedssl
from benchmarks import flower_means as flower_means  # registers its means
from benchmarks.attackers import ATTACKS, BAD, Attack, malicious
from fedssl.core.errors import RunError
from fedssl.core.provenance import environment

NO_BOUNDS = {"guard.norm_bound": 0, "guard.statistics_bound": 0, "guard.max_share": 1.0}
TRIMMED = {"mean.name": "trimmed-mean", "mean.trim": 0.2}
DEFENCES: dict[str, Mapping[str, Any]] = {
    "default": {},
    "strict": {"guard": "strict"},
    "trimmed mean": TRIMMED,
    "median": {"mean": "median"},
    "Krum": {"mean.name": "krum", "mean.f": 1},
    "flower-fedavg": {"mean": "flower-fedavg", **NO_BOUNDS},
    "flower-trimmed": {"mean": "flower-trimmed", **NO_BOUNDS},
    "flower-krum": {"mean": "flower-krum", **NO_BOUNDS},
}
FALSE_COUNTS = "declares 1e7 images"
# Their result is that of the honest client, to the bit, since they ignore the numbers of images.
WITHOUT_COUNTS = ("trimmed mean", "median", "Krum", "flower-trimmed", "flower-krum")
# The rows of the table of defences; the other attacks are measured with the default only.
COMPARED = (
    "honest",
    "running means moved by 1.4 deviations",
    FALSE_COUNTS,
    "sign flip x 1",
    "sign flip x 8",
    "random x 8",
)
PAGE = Path("docs/explanation/guarantees.md")
Results = dict[str, dict[str, dict[str, dict[str, Any]]]]  # defence -> attack -> seed -> run


def measure(attack: Attack, defence: Mapping[str, Any], seed: int, rounds: int) -> dict[str, Any]:
    """Return the accuracy of one run and how many clients were dropped, over all rounds."""
    settings = {
        "rounds": rounds,
        "seed": seed,
        "probe.every": rounds,
        "probe.baselines": [],
        "probe.picture": False,
        "probe.linear": False,
        "train.workers": 1,
        **defence,
        **attack.settings,
    }
    with tempfile.TemporaryDirectory() as folder, malicious(attack):
        try:
            run = fedssl.run("demo", dir=Path(folder) / "run", quiet=True, set=settings)
        except RunError as stopped:  # three failed rounds in a row
            return {"knn": None, "reason": str(stopped), **code()}
        clients = [client for line in run.rounds for client in line["clients"]]
        dropped = [client for client in clients if client["dropped"]]
        clipped = [client for client in clients if "clipped" in client]
        return {
            "knn": run.results["table"]["this run"]["knn"]["mean"],
            "dropped": sum(client["client"] == BAD for client in dropped),
            "honest_dropped": sum(client["client"] != BAD for client in dropped),
            "clipped": sum(client["client"] == BAD for client in clipped),
            "honest_clipped": sum(client["client"] != BAD for client in clipped),
            "reason": dropped[0]["dropped"] if dropped else None,
            **code(),
        }


def code() -> dict[str, str]:
    """Return the digest of the code that a run was made with."""
    return {"code": environment(torch.device("cpu"))["code"]}


def by_defence(results: Results) -> str:
    """Return a Markdown table of the accuracy after each attack, with a column for each defence."""
    lines = ["| client 0 | " + " | ".join(DEFENCES) + " |", "|---" * (len(DEFENCES) + 1) + "|"]
    for attack in COMPARED:
        cells = [attack]
        for defence in DEFENCES:
            runs = results.get(defence, {}).get(attack, {})
            if not runs and attack == FALSE_COUNTS and defence in WITHOUT_COUNTS:
                cells.append("as honest")
            else:
                cells.append(accuracy_cell(runs.values()))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def with_default(results: Results) -> str:
    """Return a Markdown table of all attacks with the default mean and guard."""
    lines = ["| client 0 | kNN, mean (each seed) | dropped, of 12 per seed |", "|---|---|---|"]
    for attack, runs in results["default"].items():
        accuracy = accuracy_cell(runs.values())
        dropped = sum(run["dropped"] for run in runs.values())
        lines.append(f"| {attack} | {accuracy} | {dropped} |")
    return "\n".join(lines)


def accuracy_cell(runs: Collection[Mapping[str, Any]]) -> str:
    """Return the mean accuracy, with each accuracy in brackets if there are several."""
    if not runs:
        return "not measured"
    accuracies = [run["knn"] for run in runs]
    if None in accuracies:
        return "the run stops"
    mean = f"{statistics.fmean(accuracies):.1f}"
    if len(accuracies) == 1:
        return mean
    each = ", ".join(f"{one:.1f}" for one in accuracies)
    return f"{mean} ({each})"


def with_tables(page: str, results: Results) -> str:
    """Return a page with its tables replaced; each is between two comments with its name."""
    for name, text in (
        ("defences", by_defence(results)),
        ("default", with_default(results)),
    ):
        start = f"<!-- table: {name} -->\n"
        end = f"<!-- end: {name} -->"
        before, _, rest = page.partition(start)
        _, _, after = rest.partition(end)
        page = f"{before}{start}\n{text}\n\n{end}{after}"
    return page


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--defences", nargs="*", choices=list(DEFENCES), default=list(DEFENCES))
    parser.add_argument("--only", nargs="*", choices=list(ATTACKS), default=list(COMPARED))
    parser.add_argument("--out", type=Path, default=Path("results/demo/attacks.json"))
    parser.add_argument("--page", action="store_true")
    args = parser.parse_args()
    results: Results = {}
    if args.out.is_file():
        results = json.loads(args.out.read_text())["runs"]
    if args.page:
        PAGE.write_text(with_tables(PAGE.read_text("utf-8"), results), "utf-8")
        return
    cells = [(s, d, a) for s in args.seeds for d in args.defences for a in args.only]
    for seed, defence, attack in cells:
        runs = results.setdefault(defence, {}).setdefault(attack, {})
        if str(seed) in runs:
            continue
        run = measure(ATTACKS[attack], DEFENCES[defence], seed, args.rounds)
        runs[str(seed)] = run
        found = {
            "rounds": args.rounds,
            "environment": environment(torch.device("cpu")),
            "runs": results,
        }
        args.out.write_text(json.dumps(found, indent=1) + "\n")
        print(f"seed {seed}, {defence}, {attack}: {run}", flush=True)


if __name__ == "__main__":
    main()
