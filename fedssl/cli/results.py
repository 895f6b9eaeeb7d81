"""Print the final table of a run, or of several seeds of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from fedssl.core.rich_console import Console
from fedssl.data import Folder
from fedssl.evaluation.labelled_images import HALVED
from fedssl.evaluation.probe_images import probe_images_name
from fedssl.evaluation.verdict import Verdict, line, signed
from fedssl.runs.run import Run
from fedssl.runs.run_seeds import judge_runs
from fedssl.topologies.topology import MEAN

# Models other than the clients' or peers' own that get a row; results.json has all of them.
MAX_SEPARATE = 5
_NAMES = {
    "this run": "this run",
    "random": "random backbone",
    "start": "start of training",
    "isolated": "each client alone",
    "centralized": "all images pooled",
    MEAN: "mean of the peers",
    "global": "global model",
}


# So that a table with gains fits into 80 columns.
_SHORT_NAMES = {
    "isolated": "clients alone",
    "random": "random",
    "start": "start",
    "centralized": "pooled",
}


def print_results(run: Run) -> None:
    """Print the accuracies of a finished run, the verdict, its notes and its files."""
    rows = run.results.get("table", {})
    if rows:
        _print_table(run, rows, run.results.get("verdict", {}))
    else:
        _print_unmeasured(run)
    _print_notes(run)
    # Not with rich, which breaks long paths and reads brackets as colours.
    print(f"run directory  {run.dir}")
    for file in sorted(run.dir.glob("backbone*.safetensors")):
        print(f"backbone       {file}")
    if (run.dir / "picture.png").is_file():
        print(f"picture        {run.dir / 'picture.png'}")


def _print_notes(run: Run) -> None:
    """Print which images were used to measure, and the notes that add something to it."""
    _print_measured_on(run)
    for note in run.results.get("notes", ()):
        if note != HALVED or "measured_on" not in run.results:
            print(note)


def _print_measured_on(run: Run) -> None:
    if "measured_on" in run.results:  # earlier versions did not write it
        print(run.results["measured_on"])
    if run.results.get("table") and "knn_settings" in run.results:
        print(f"kNN: the {run.results['knn_settings']['k']} nearest labelled images vote")
    if run.experiment.probe.on is not None and "on" in run.results:
        _print_measured_elsewhere(run)


def _print_measured_elsewhere(run: Run) -> None:
    """Print the accuracies on the images of `probe.on`."""
    other = run.results["on"]
    words = []
    for name, scores in other["table"].items():
        words.append(f"{_NAMES.get(name, name)} {scores['knn']['mean']:.1f}")
    images = probe_images_name(run.experiment)
    print(f"kNN on {images}: accuracy in %: {', '.join(words)}; {other['measured_on']}")


def print_seeds(runs: Sequence[Run]) -> None:
    """Print the accuracies of several seeds of one experiment, and the verdict over them."""
    verdict = judge_runs(runs)
    if verdict is None:
        _print_unmeasured(runs[0])
    else:
        _print_table(runs[0], _means(verdict), verdict.values())
        _print_measured_on(runs[0])
    for run in runs:
        print(f"seed {run.experiment.seed}: {run.dir}")


def seeds_as_values(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the results of several seeds, and the verdict over them, as plain values."""
    verdict = judge_runs(runs)
    return {
        "runs": [{"dir": str(run.dir)} | run.results for run in runs],
        "verdict": None if verdict is None else verdict.values(),
    }


def _print_unmeasured(run: Run) -> None:
    if not run.results.get("models", 1):
        return
    if "on" in run.results:
        print("No labelled test images: accuracy was measured on the images of probe.on only.")
        return
    print("No labelled test images, so no accuracy was measured.")
    if isinstance(run.experiment.data, Folder):
        print(
            "To measure this run without training it again, repeat the command with --set "
            "data.test=FOLDER, which has one folder of images for each class."
        )


def _print_table(
    run: Run, rows: Mapping[str, Mapping[str, Any]], verdict: Mapping[str, Any]
) -> None:
    """Print accuracies and gains, and the verdict, which earlier versions did not write."""
    if "accuracies" not in verdict:
        print(f"{_title(run)}: accuracy in %")
        Console().print(_table(run, rows, {}))
        return
    images = f"(95% interval, {verdict['test_images']:,} test images)"
    print(f"{_title(run)}: accuracy in %{_spread_text(rows, verdict)} {images}")
    Console().print(_table(run, rows, verdict))
    print(line(verdict))
    for sentence in verdict.get("advice", ()):
        print(f"  {sentence}")


def _table(run: Run, rows: Mapping[str, Mapping[str, Any]], verdict: Mapping[str, Any]) -> Table:
    """Return the accuracies of each row and, after a line, the gains over the baselines."""
    table = Table()
    table.add_column("backbone")
    probes = list(rows["this run"])
    for probe in probes:
        table.add_column(_heading(run, probe), justify="right")
    intervals = verdict.get("accuracies", {})
    for name, scores in rows.items():
        cells = [_score_text(scores[probe], intervals.get(name, {}).get(probe)) for probe in probes]
        table.add_row(_NAMES.get(name, name), *cells)
        if name == "this run":
            _add_separate_models(table, scores)
    if verdict.get("gains"):
        table.add_section()
    for name, gains in verdict.get("gains", {}).items():
        cells = [_gain_text(gains[probe]) for probe in probes]
        table.add_row(f"gain over {_SHORT_NAMES[name]}", *cells)
    return table


def _add_separate_models(table: Table, scores: Mapping[str, Any]) -> None:
    """Add a row for each model that is not in the average of the run."""
    first = next(iter(scores.values()))
    excluded = first.get("excluded", first.get("apart", []))  # "apart" in earlier versions
    for model in excluded[:MAX_SEPARATE]:
        accuracies = [f"{score['models'][model]:.1f}" for score in scores.values()]
        table.add_row(_NAMES.get(model, model), *accuracies)


def _heading(run: Run, probe: str) -> str:
    """Return the probe and, if it was recorded, the number of labels that it learned from."""
    name = {"knn": "kNN"}.get(probe, probe)
    labelled = run.results.get("labelled", {}).get(probe)
    return name if labelled is None else f"{name}, {labelled:,} labels"


def _title(run: Run) -> str:
    values = run.experiment.to_dict()
    return " × ".join(values[table]["name"] for table in ("method", "algorithm", "topology"))


def _score_text(score: Mapping[str, Any], interval: Mapping[str, float] | None) -> str:
    text = f"{score['mean']:.1f}"
    if "std" in score:
        text += f" ± {score['std']:.1f}"
    if interval is not None:
        text += f" ({interval['low']:.1f}…{interval['high']:.1f})"
    return text


def _gain_text(gain: Mapping[str, Any]) -> str:
    text = signed(gain["estimate"])
    if "std" in gain:
        text += f" ± {gain['std']:.1f}"
    return f"{text} ({signed(gain['low'])}…{signed(gain['high'])})"


def _spread_text(rows: Mapping[str, Mapping[str, Any]], verdict: Mapping[str, Any]) -> str:
    """Return what the spread in the table is over; "" if it has none."""
    if any("seeds" in figure for figure in verdict["accuracies"]["this run"].values()):
        return " ± std over seeds"
    if any("std" in score for row in rows.values() for score in row.values()):
        return " ± std over clients"
    return ""


def _means(verdict: Verdict) -> dict[str, dict[str, dict[str, float]]]:
    """Return the mean and spread over seeds of each row, in the form of a run's table."""
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for row, figures in verdict.accuracies.items():
        rows[row] = {}
        for probe, figure in figures.items():
            rows[row][probe] = {"mean": figure.interval.estimate}
            if figure.std is not None:
                rows[row][probe]["std"] = figure.std
    return rows
