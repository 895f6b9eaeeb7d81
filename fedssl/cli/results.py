"""Print the final table of a run."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from fedssl.core.rich_console import Console
from fedssl.runs.run import Run
from fedssl.topologies.topology import MEAN

# Models other than the clients' or peers' own that get a row; results.json has all of them.
MAX_SEPARATE = 5
_NAMES = {
    "this run": "this run",
    "random": "random backbone",
    "isolated": "each client alone",
    "centralized": "all images pooled",
    MEAN: "mean of the peers' models",
    "global": "global model",
}


def print_results(run: Run) -> None:
    """Print the accuracies of a finished run, its notes and its files."""
    rows = run.results.get("table", {})
    if rows:
        print(_title(run))
        Console().print(_table(run, rows))
        if "verdict" in run.results:  # not in directories of earlier versions
            print(run.results["verdict"]["sentence"])
    elif run.results.get("models", 1):
        Console().print("No labelled test images, so no accuracy was measured.")
    for note in run.results.get("notes", ()):
        print(note)
    # Not with rich, which breaks long paths and reads brackets as colours.
    print(f"run directory  {run.dir}")
    for file in sorted(run.dir.glob("backbone*.safetensors")):
        print(f"backbone       {file}")
    if (run.dir / "picture.png").is_file():
        print(f"picture        {run.dir / 'picture.png'}")


def _table(run: Run, rows: dict[str, dict[str, Any]]) -> Table:
    labels = _labels_text(run.experiment.probe.labels)
    headings = {"knn": "kNN, all labels", "linear": f"linear probe, {labels}"}
    table = Table()
    table.add_column("backbone")
    for probe in rows["this run"]:
        table.add_column(headings[probe], justify="right")
    for name, scores in rows.items():
        table.add_row(_NAMES.get(name, name), *map(_score_text, scores.values()))
        if name == "this run":
            _add_separate_models(table, scores)
    return table


def _add_separate_models(table: Table, scores: dict[str, Any]) -> None:
    """Add a row for each model that is not in the average of the run."""
    first = next(iter(scores.values()))
    for model in first.get("apart", [])[:MAX_SEPARATE]:
        accuracies = [f"{score['models'][model]:.1f}" for score in scores.values()]
        table.add_row(_NAMES.get(model, model), *accuracies)


def _labels_text(labels: float) -> str:
    """Return the number or share of labels of the linear probe for a heading."""
    if labels in (0, 1):
        return "all labels"
    if labels < 1:
        return f"{100 * labels:g}% of labels"
    return f"{labels:.0f} labels"


def _title(run: Run) -> str:
    values = run.experiment.to_dict()
    names = [values[table]["name"] for table in ("method", "algorithm", "topology")]
    return f"{' × '.join(names)}: accuracy in %"


def _score_text(score: dict[str, Any]) -> str:
    if "std" in score:
        return f"{score['mean']:.1f} ± {score['std']:.1f}"
    return f"{score['mean']:.1f}"
