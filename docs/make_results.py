"""Write docs/results.md and its pictures from results/: `python docs/make_results.py`. No figure is typed by hand.

A folder with experiment.toml, rounds.jsonl and results.json is a run, and runs in one folder are shown together, in a
table and a picture of their kNN accuracy. Benchmarks' JSON files are tables by themselves.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "results"
PAGE, PICTURES = DOCS / "results.md", DOCS / "results"

INTRODUCTION = """# What was really run

This page is made from the files in `results/` by `python docs/make_results.py`. `results/README.md` tells how each of
them came about, and what it does and does not show.
"""
GROUPS = {
    "cifar10-short": "Algorithms side by side on CIFAR-10, five clients with two classes each, a fifth of the papers' "
    "budget: `python -m benchmarks.papers cifar10-short`.",
    "fedbyol-cifar10-short": "FedBYOL in the same setting, by an earlier version: two seeds, and first weights as "
    "torchvision draws them.",
}


class Run(NamedTuple):
    name: str
    experiment: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]]
    results: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Run:
        lines = (folder / "rounds.jsonl").read_text("utf-8").splitlines()
        return cls(
            folder.name,
            tomllib.loads((folder / "experiment.toml").read_text("utf-8")),
            [json.loads(line) for line in lines],
            _json(folder / "results.json"),
        )

    @property
    def knn(self) -> list[tuple[int, float]]:
        return [(line["round"], line["knn"]) for line in self.rounds if line.get("knn") is not None]

    @property
    def about(self) -> str:
        chosen = (self.experiment[table]["name"] for table in ("method", "algorithm"))
        return f"{' × '.join(chosen)}, seed {self.experiment['seed']}"

    def measured(self, probe: str) -> str:
        score = self.results["table"]["this run"].get(probe)
        if score is None:
            return ""
        return f"{score['mean']:.1f}" + (f" ± {score['std']:.1f}" if score.get("std") else "")


def groups() -> Iterator[tuple[str, list[Run]]]:
    """Folders of runs, those described first and in that order."""
    found = {path.parent.parent for path in RESULTS.glob("*/*/rounds.jsonl")}
    for folder in sorted(found, key=lambda folder: (folder.name not in GROUPS, folder.name)):
        yield folder.name, [Run.read(path.parent) for path in sorted(folder.glob("*/rounds.jsonl"))]


def group(name: str, runs: list[Run]) -> Iterator[str]:
    first, device = runs[0].experiment, runs[0].results["environment"]["device"].split(": ")[-1]
    length = f"{first['rounds']} rounds × {first['train']['epochs']} epochs"
    yield f"## {name}\n"
    yield f"{GROUPS.get(name, '')} {first['method']['backbone']}, {length}, {device}. Accuracy in percent.\n"
    scores = ([run.name, run.about, *map(run.measured, ("knn", "linear"))] for run in runs)
    yield table(("run", "", "kNN", "linear"), scores)
    yield f"![kNN accuracy by round](results/{name}.png)\n"


def draw(name: str, runs: list[Run]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 4.2), layout="constrained")
    styles = ["-", "--", "-.", ":"]
    for i, run in enumerate(runs):
        axes.plot(*zip(*run.knn, strict=True), styles[i // 8 % 4], color=f"C{i % 8}", label=run.name)
    axes.set(xlabel="round", ylabel="kNN accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    PICTURES.mkdir(exist_ok=True)
    figure.savefig(PICTURES / f"{name}.png", dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def learning() -> Iterator[str]:
    found = _json(RESULTS / "learning.json")
    yield "## Learning at all\n"
    yield "`python -m benchmarks.learning`, on the images that come with the package: kNN, %, for seeds 0, 1, 2.\n"
    kinds = ("federated", "random", "isolated", "centralized")
    yield table(
        ("", "federated", "random backbone", "each client alone", "all in one place", "over random"),
        (
            [name, *(_each(row.get(kind, [])) for kind in kinds), f"{row['over_random']['mean']:+.1f}"]
            for name, row in found["rows"].items()
        ),
    )


def demo() -> Iterator[str]:
    seeds = _json(RESULTS / "demo" / "seeds.json")["seeds"]
    yield "## The demo\n"
    yield "`python -m benchmarks.demo`: `make demo` over seeds, kNN and a linear probe with 100 labels.\n"
    rows = seeds[0]["accuracy"]
    yield table(
        ("", "kNN", "linear"),
        ([row, *(_each([s["accuracy"][row][probe] for s in seeds]) for probe in ("knn", "linear"))] for row in rows),
    )


def speed() -> Iterator[str]:
    peer, workers = (_json(RESULTS / "speed" / f"{name}.json") for name in ("peer", "peer-workers"))
    yield "## Speed\n"
    yield f"`python -m benchmarks.peer`, whole rounds of five clients on one {peer['machine']['cuda']['device']}:\n"
    yield table(
        ("", "fedssl, images/s", "peer, images/s", "ratio"),
        (
            [name, f"{x['fedssl']['images_per_s']:,.0f}", f"{x['peer']['images_per_s']:,.0f}", f"{x['ratio']:.1f}"]
            for name, x in (("peer without workers", peer), (f"{workers['case']['peer_workers']} workers", workers))
        ),
    )
    yield f"FedEMA's default run by that rate: {peer['fedssl']['fedema_default_run_minutes']} minutes.\n"
    yield "`python -m benchmarks.step`, one client, images/s:\n"
    methods: dict[str, Any] = {}
    for path in sorted((RESULTS / "speed").glob("step*.json")):
        methods |= _json(path)["methods"]
    modes = list(dict.fromkeys(mode for method in methods.values() for mode in method["modes"]))
    yield table(
        ("", *modes),
        ([name, *(_rate(method["modes"].get(mode)) for mode in modes)] for name, method in methods.items()),
    )
    yield "`python -m benchmarks.round`, the engine's own cost per client and round on one core:\n"
    yield table(
        ("", "µs", "× copy and add a row", "a deepcopy loop, ×"),
        (
            [name, f"{case['microseconds']:,}", case["ratio"], case["ratio of a deepcopy loop"]]
            for name, case in _json(RESULTS / "speed" / "round.json")["cases"].items()
        ),
    )
    yield "`python -m benchmarks.scale`, many clients with memories of their own:\n"
    sizes = _json(RESULTS / "speed" / "scale.json")["sizes"]
    keys = {"clients": ",d", "ms_per_client": ".1f", "peak_mib": ",.0f", "rows_on_disk_mib": ",.0f"}
    head = ("clients", "ms for a client's round", "peak memory, MiB", "on disk, MiB")
    yield table(head, ([format(size[key], how) for key, how in keys.items()] for size in sizes))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def _each(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)


def _rate(mode: Mapping[str, Any] | None) -> str:
    return f"{mode['images_per_s']:,.0f}" if mode else ""


def _json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def page() -> str:
    sections = [*(group(name, runs) for name, runs in groups()), learning(), demo(), speed()]
    return "\n".join([INTRODUCTION, *("\n".join(section) for section in sections)])


if __name__ == "__main__":
    for name, runs in groups():
        draw(name, runs)
    PAGE.write_text(page(), "utf-8")
