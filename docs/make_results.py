"""Generate docs/results.md and its pictures from results/: `python docs/make_results.py`.

A folder with experiment.toml, rounds.jsonl and results.json is a run. Runs in one folder share a
table and a picture of their kNN accuracy. Each JSON file of a benchmark is a separate table.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from published import compare, named

from fedssl.plots.style import (
    DPI,
    legend_below,
    line_style,
    new_figure,
    set_accuracy_axis,
    set_round_axes,
)

sys.path.append(str(Path(__file__).parents[1]))  # the benchmarks are not installed with fedssl
from benchmarks import label_free_scores

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "results"
PAGE, PICTURES = DOCS / "results.md", DOCS / "results"

INTRODUCTION = """# Results

`python docs/make_results.py` generates this page from the files in `results/`. `results/README.md`
describes how each of them was produced, and what it does and does not show.
"""
GROUPS = {
    "cifar10": "FedEMA's setting on CIFAR-10 with the full budget: "
    "`python -m benchmarks.papers cifar10`.",
    "cifar10-short": "Comparison of algorithms on CIFAR-10 with a fifth of the papers' budget: "
    "`python -m benchmarks.papers cifar10-short`.",
    "fashion-mnist": "CCL, FedSimCLR, and centralized MoCo v2 on Fashion-MNIST: "
    "`python -m benchmarks.papers fashion-mnist`.",
    "fedbyol-cifar10-short": "FedBYOL in CIFAR-10's short setting, with an earlier version: two "
    "seeds, and torchvision's initialisation.",
}
OUTCOME = ("labelled", "accuracy", "note", "error")  # of a probe; other keys are its settings
LBFGS = {"probe": "linear", "solver": "lbfgs"}
EARLIER = ("fedbyol-cifar10-short",)  # earlier code: not compared with published figures


class Run(NamedTuple):
    """A finished run in results/."""

    name: str
    experiment: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]]
    results: Mapping[str, Any]
    probes: Sequence[Mapping[str, Any]]  # measurements with other probes

    @classmethod
    def read(cls, folder: Path) -> Run:
        lines = (folder / "rounds.jsonl").read_text("utf-8").splitlines()
        return cls(
            folder.name,
            tomllib.loads((folder / "experiment.toml").read_text("utf-8")),
            [json.loads(line) for line in lines],
            _json(folder / "results.json"),
            _json(folder / "probes.json") if (folder / "probes.json").is_file() else (),
        )

    @property
    def knn(self) -> list[tuple[int, float]]:
        return [(line["round"], line["knn"]) for line in self.rounds if line.get("knn") is not None]

    @property
    def about(self) -> str:
        chosen = (self.experiment[table]["name"] for table in ("method", "algorithm"))
        return f"{' × '.join(chosen)}, seed {self.experiment['seed']}"

    @property
    def settings(self) -> dict[str, str]:
        """Describe the settings of the run, by kind."""
        chosen = self.experiment
        rounds = count(chosen["rounds"], "round")
        epochs = count(chosen["train"]["epochs"], "epoch")
        return {
            "clients": self.split,
            "backbone": chosen["method"]["backbone"],
            "length": f"{rounds} × {epochs}",
            "device": self.results["environment"]["device"].split(": ")[-1],
        }

    @property
    def split(self) -> str:
        """Describe how the images are partitioned."""
        chosen, partition = self.experiment, self.experiment["partition"]
        if chosen["topology"]["name"] == "centralized":
            return "centralized"
        how = (
            f"{partition['per_client']} classes each"
            if "per_client" in partition
            else partition["name"]
        )
        return f"{count(chosen['clients'], 'client')}, {how}"

    @property
    def accuracies(self) -> dict[str, float]:
        return {probe: score["mean"] for probe, score in self._scores.items()}

    @property
    def _scores(self) -> Mapping[str, Any]:
        """Return the scores by probe; empty without labelled test images."""
        return dict(self.results["table"].get("this run", {}))

    def measured(self, probe: str) -> str:
        score = self._scores.get(probe)
        if score is None:
            return ""
        return f"{score['mean']:.1f}" + (f" ± {score['std']:.1f}" if score.get("std") else "")

    @property
    def lbfgs(self) -> str:
        """The accuracy of the linear classifier that L-BFGS finds, with all labels, if measured."""
        for probe in self.probes:
            settings = {key: probe[key] for key in probe.keys() - OUTCOME}
            if settings == LBFGS and "accuracy" in probe:
                return f"{probe['accuracy']:.1f}"
        return ""


def groups() -> Iterator[tuple[str, list[Run]]]:
    """Yield folders of finished runs: those in GROUPS first, in that order."""
    found = {path.parent.parent for path in RESULTS.glob("*/*/results.json")}
    order = {name: i for i, name in enumerate(GROUPS)}
    for folder in sorted(
        found, key=lambda folder: (order.get(folder.name, len(order)), folder.name)
    ):
        yield folder.name, [Run.read(path.parent) for path in sorted(folder.glob("*/results.json"))]


def group(name: str, runs: list[Run]) -> Iterator[str]:
    """Describe runs: settings that all share in a sentence, settings that differ in columns."""
    kinds = {kind: [run.settings[kind] for run in runs] for kind in runs[0].settings}
    common = ", ".join(values[0] for values in kinds.values() if len({*values}) == 1)
    differing = [kind for kind, values in kinds.items() if len({*values}) > 1]
    yield f"## {name}\n"
    sentences = [GROUPS.get(name, ""), f"{common}." if common else "", "Accuracy in percent."]
    yield " ".join(filter(None, sentences)) + "\n"
    rows = (
        [
            run.name,
            run.about,
            *(run.settings[kind] for kind in differing),
            *map(run.measured, ("knn", "linear")),
            run.lbfgs,
        ]
        for run in runs
    )
    heading = ["run", "", *differing, "kNN", "linear", "linear, L-BFGS"]
    if not any(run.lbfgs for run in runs):
        heading.pop()
        rows = (row[:-1] for row in rows)
    yield table(heading, rows)
    yield f"![kNN accuracy by round](results/{name}.png)\n"
    if further := [[run.name, *probe] for run in runs for probe in map(_probe, run.probes)]:
        yield "Measured with other probes:\n"
        yield table(("run", "probe", "settings", "labelled images", "accuracy", ""), further)


def draw(name: str, runs: list[Run]) -> None:
    drawn = [run for run in runs if run.knn]
    figure, axes = new_figure(1, 1, width=7.5, height=4.6)
    panel = axes[0, 0]
    extent: list[float] = []
    for number, run in enumerate(drawn):
        rounds, accuracies = zip(*run.knn, strict=True)
        style = line_style(number) | {"markevery": max(1, len(rounds) // 10)}
        panel.plot(rounds, accuracies, label=run.name, **style)
        extent += accuracies
    set_round_axes(panel, "")
    if extent:
        set_accuracy_axis(panel, extent, "kNN accuracy (%)")
    legend_below(figure, [panel])
    PICTURES.mkdir(exist_ok=True)
    figure.savefig(PICTURES / f"{name}.png", dpi=DPI, metadata={"Software": None})


def published() -> Iterator[str]:
    """Compare runs that are a cell of a published table with it."""
    yield "## Comparison with published figures\n"
    yield (
        "Linear accuracy of the runs above that are cells of `fedssl reproduce`'s tables. "
        "If a run is shorter than the paper's, its accuracy is not comparable with the published "
        "figure, and no difference is given.\n"
    )
    head = ("", "", "", "length", "seeds", "published", "measured", "difference")
    current = (run for name, runs in groups() if name not in EARLIER for run in runs)
    yield table(head, compare(current))


def label_free() -> Iterator[str]:
    """Correlate label-free scores with accuracy over all runs."""
    runs = {f"{name}/{run.name}": run for name, some in groups() for run in some}
    rows = [
        label_free_scores.describe_run(name, named(run.experiment), run.rounds, run.accuracies)
        for name, run in runs.items()
    ]
    known = {
        score: sum(score in each["scores"] for each in rows) for score in label_free_scores.SCORES
    }
    yield "## Scores without labels\n"
    yield (
        "Correlation of label-free scores with accuracy over the runs above, "
        f"{count(len(rows), 'run')} in all. Scores are means over each client's "
        f"last batch in the last {count(label_free_scores.LAST_ROUNDS, 'round')}. "
        "`python -m benchmarks.label_free_scores RUN_DIR … --out NAME` computes this for any runs. "
        f"{label_free_scores.LIMITS}. Rounds logs of older runs lack some scores: "
        f"{', '.join(f'{score} is in {number}' for score, number in known.items())}.\n"
    )
    enough = (
        correlation
        for correlation in label_free_scores.correlations(rows)
        if correlation["rho"] is not None
    )
    yield table(label_free_scores.COLUMNS, label_free_scores.table_rows(enough))


def learning() -> Iterator[str]:
    found = _json(RESULTS / "learning.json")
    yield "## Improvement over a random backbone\n"
    yield (
        "`python -m benchmarks.learning`, on the images that come with the package: "
        "kNN accuracy in % for seeds 0, 1, 2.\n"
    )
    kinds = ("federated", "random", "isolated", "centralized")
    yield table(
        (
            "",
            "federated",
            "random backbone",
            "each client alone",
            "centralized",
            "over random",
        ),
        (
            [
                name,
                *(_each(row.get(kind, [])) for kind in kinds),
                f"{row['over_random']['mean']:+.1f}",
            ]
            for name, row in found["rows"].items()
        ),
    )


def demo() -> Iterator[str]:
    seeds = _json(RESULTS / "demo" / "seeds.json")["seeds"]
    yield "## The demo\n"
    yield (
        "`python -m benchmarks.demo`: `make demo` over seeds, "
        "kNN and a linear probe with 100 labels.\n"
    )
    rows = seeds[0]["accuracy"]
    yield table(
        ("", "kNN", "linear"),
        (
            [
                row,
                *(_each([s["accuracy"][row][probe] for s in seeds]) for probe in ("knn", "linear")),
            ]
            for row in rows
        ),
    )


def speed() -> Iterator[str]:
    peer, workers = (_json(RESULTS / "speed" / f"{name}.json") for name in ("peer", "peer-workers"))
    yield "## Speed\n"
    device = peer["machine"]["cuda"]["device"]
    yield f"`python -m benchmarks.peer`, whole rounds of five clients on one {device}:\n"
    yield table(
        ("", "fedssl, images/s", "peer, images/s", "ratio"),
        (
            [
                name,
                f"{x['fedssl']['images_per_s']:,.0f}",
                f"{x['peer']['images_per_s']:,.0f}",
                f"{x['ratio']:.1f}",
            ]
            for name, x in (
                ("peer without workers", peer),
                (f"{workers['case']['peer_workers']} workers", workers),
            )
        ),
    )
    minutes = peer["fedssl"]["fedema_default_run_minutes"]
    yield f"FedEMA's default run at that rate: {minutes} minutes.\n"
    yield "`python -m benchmarks.step`, one client, images/s:\n"
    methods: dict[str, Any] = {}
    for path in sorted((RESULTS / "speed").glob("step*.json")):
        methods |= _json(path)["methods"]
    modes = list(dict.fromkeys(mode for method in methods.values() for mode in method["modes"]))
    yield table(
        ("", *modes),
        (
            [name, *(_rate(method["modes"].get(mode)) for mode in modes)]
            for name, method in methods.items()
        ),
    )
    yield "`python -m benchmarks.round`, the engine's overhead per client and round on one core:\n"
    yield table(
        ("", "µs", "× copy and add a row", "a deepcopy loop, ×"),
        (
            [name, f"{case['microseconds']:,}", case["ratio"], case["ratio of a deepcopy loop"]]
            for name, case in _json(RESULTS / "speed" / "round.json")["cases"].items()
        ),
    )
    yield "`python -m benchmarks.scale`, many clients with memory:\n"
    sizes = _json(RESULTS / "speed" / "scale.json")["sizes"]
    keys = {"clients": ",d", "ms_per_client": ".1f", "peak_mib": ",.0f", "rows_on_disk_mib": ",.0f"}
    head = ("clients", "ms for a client's round", "peak memory, MiB", "on disk, MiB")
    yield table(head, ([format(size[key], how) for key, how in keys.items()] for size in sizes))


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def _each(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)


def _probe(found: Mapping[str, Any]) -> list[str]:
    """Return one measurement as a row: probe, settings, labelled images, accuracy, note."""
    columns = ("probe", *OUTCOME)
    settings = ", ".join(f"{key} = {value}" for key, value in found.items() if key not in columns)
    if "error" in found:
        return [found["probe"], settings, "", "failed", found["error"]]
    return [
        found["probe"],
        settings,
        f"{found['labelled']:,}",
        f"{found['accuracy']:.2f}",
        found.get("note", ""),
    ]


def _rate(mode: Mapping[str, Any] | None) -> str:
    return f"{mode['images_per_s']:,.0f}" if mode else ""


def _json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def page() -> str:
    """Return the whole page."""
    sections = [
        *(group(name, runs) for name, runs in groups()),
        published(),
        label_free(),
        learning(),
        demo(),
        speed(),
    ]
    return "\n".join([INTRODUCTION, *("\n".join(section) for section in sections)])


if __name__ == "__main__":
    for name, runs in groups():
        draw(name, runs)
    PAGE.write_text(page(), "utf-8")
