"""Generate docs/results.md and its pictures from results/: `python docs/make_results.py`.

Runs in one folder share a table and a picture of their kNN accuracy. Each JSON file of a benchmark
is a separate table.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmark_sections import demo, learning, speed
from markdown_table import count, table
from published import TOLERANCE, board, named
from stored_runs import GROUPS, OUTCOME, Run, groups

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
PAGE = DOCS / "results.md"
PICTURES = DOCS / "results"

INTRODUCTION = """# Results

`python docs/make_results.py` generates this page from the files in `results/`. `results/README.md`
describes how each of them was produced, and what it does and does not show.
"""
EARLIER = ("fedbyol-cifar10-short",)  # earlier code: not compared with published figures


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
            "" if run.lbfgs is None else f"{run.lbfgs:.1f}",
        ]
        for run in runs
    )
    heading = ["run", "", *differing, "kNN", "linear", "linear, L-BFGS"]
    if all(run.lbfgs is None for run in runs):
        heading.pop()
        rows = (row[:-1] for row in rows)
    yield table(heading, rows)
    yield f"![kNN accuracy by round](results/{name}.png)\n"
    if further := [[run.name, *probe] for run in runs for probe in map(_probe, run.probes)]:
        yield "Measured with other probes:\n"
        yield table(("run", "probe", "settings", "labelled images", "accuracy", ""), further)


def draw(name: str, runs: list[Run]) -> None:
    """Draw the kNN accuracy of each run by round; seeds of one case have the same style."""
    drawn = [run for run in runs if run.knn]
    figure, axes = new_figure(1, 1, width=7.5, height=4.6)
    panel = axes[0, 0]
    extent: list[float] = []
    styles: dict[str, dict[str, Any]] = {}
    for run in drawn:
        rounds, accuracies = zip(*run.knn, strict=True)
        title = run.name.partition("-seed")[0]
        label = "_nolegend_" if title in styles else title  # seeds share a line of the legend
        style = styles.setdefault(title, line_style(len(styles)))
        every = max(1, len(rounds) // 10)
        panel.plot(rounds, accuracies, label=label, markevery=every, **style)
        extent += accuracies
    set_round_axes(panel, "")
    if extent:
        set_accuracy_axis(panel, extent, "kNN accuracy (%)")
    legend_below(figure, [panel])
    PICTURES.mkdir(exist_ok=True)
    figure.savefig(PICTURES / f"{name}.png", dpi=DPI, metadata={"Software": None})


def published() -> Iterator[str]:
    """Compare the main tables of the papers with the runs that are cells of them."""
    yield "## Comparison with published figures\n"
    yield (
        "The main tables of the five papers, and the runs below that have their settings, as mean "
        "± standard deviation over seeds. A figure is **reproduced** if it differs from the "
        f"published one by at most {TOLERANCE:g} point, or by the published spread if that is "
        "larger; otherwise it is **better** or **worse**. L-BFGS is the linear classifier at the "
        "minimum of its loss; EasyFL is the linear probe in the code of FedU's and FedEMA's "
        'authors (`protocol = "easyfl"`); both are means over the seeds of which they were '
        "measured. The cost of a figure that was not run is the number of images that one seed "
        "trains on, counting every pass; one NVIDIA H200 trains BYOL with a ResNet-18 on 25M of "
        "32 × 32 pixels in 14 minutes.\n"
    )
    yield from board(run for name, runs in groups() if name not in EARLIER for run in runs)


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


def page() -> str:
    """Return the whole page."""
    sections = [
        published(),
        *(group(name, runs) for name, runs in groups()),
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
