"""Rank correlation over runs between label-free scores and accuracy.

    python -m benchmarks.label_free_scores RUN_DIR … --out NAME [--last 10] [--device auto]

Writes NAME.json and NAME.png and prints a table. The correlations over the runs stored in results/
are on the page docs/results.md, under "Scores without labels".

The rounds log contains, for each client's last batch in a round, the effective rank of features
(RankMe), the standard deviation of projections, alignment and uniformity. The score of a run is the
mean over clients and its last rounds. Runs are compared only with runs on the same images with the
same backbone and batch size, because both bound a rank; if there are enough runs of one method,
these are also compared separately.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from benchmarks import label_free_plots
from benchmarks.rank_correlation import MIN_VALUES, chance_share, spearman
from benchmarks.run_accuracies import (
    ACCURACIES,
    ProbeValues,
    comparable_accuracies,
    final_accuracies,
)
from fedssl.analysis import Analysis, Results, Summary, run_analysis
from fedssl.analysis.analysis import run_names
from fedssl.analysis.comparable import image_hashes
from fedssl.cli.analysis_summary import print_summary
from fedssl.core.console import Notify
from fedssl.core.errors import ConfigError, FedsslError
from fedssl.core.settings import validate
from fedssl.plots.style import need_matplotlib
from fedssl.runs.run import Run

SCORES = {  # with their interpretation
    "effective_rank": "effective_rank (more is better)",
    "embedding_std": "embedding_std (more is better)",
    "alignment": "alignment (least where all collapses)",
    "uniformity": "uniformity (less is better)",
}
ACCURACY_NAMES = {"linear": "linear", "knn": "kNN"}
# Settings under [data], besides the name, the path and `holdout`, that change the images.
IMAGE_SETTINGS = ("layout", "size", "channels", "test", "part")
LAST_ROUNDS = 10  # number of last rounds that the score of a run is averaged over
COLUMNS = ("runs of", "score", "accuracy", "n", "ρ", "by chance")
LIMITS = (
    "ρ is Spearman's rank correlation over n runs; the last column is the share of random orders "
    "that give one as large, of either sign. The runs are few and share settings; of many "
    "correlations some are large by chance; a correlation on one data set need not hold on another"
)


def describe_run(
    name: str,
    experiment: Mapping[str, Any],
    rounds: Iterable[Mapping[str, Any]],
    accuracies: Mapping[str, float],
    *,
    last: int = LAST_ROUNDS,
) -> dict[str, Any]:
    """Return the name, setting, method, scores and accuracies of one run, from plain values.

    `experiment` has the values of experiment.toml, `rounds` the lines of the rounds log;
    `accuracies` are in percent.
    """
    method = experiment["method"]
    images = _image_names(experiment["data"])
    batch = experiment["train"]["batch"]
    return {
        "run": name,
        "setting": f"{images}, {method['backbone']}, batches of {batch}",
        "method": method["name"],
        "scores": _mean_scores([*rounds][-last:]),
        "accuracies": {key: accuracies[key] for key in ACCURACIES if key in accuracies},
    }


def _image_names(data: Mapping[str, Any]) -> str:
    """Name the images of a [data] table by every setting that changes them."""
    names = [data.get("path") or data["name"]]
    names += [f"{key} {data[key]}" for key in IMAGE_SETTINGS if key in data]
    if data.get("holdout"):
        names.append(f"{data['holdout']} held out")
    return ", ".join(names)


def _mean_scores(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return means over clients and rounds; a score that no client has is omitted."""
    clients = [client for line in rounds for client in line["clients"]]
    means = {}
    for key in SCORES:
        values = [client[key] for client in clients if client.get(key) is not None]
        if values:
            means[key] = statistics.fmean(values)
    return means


def _separate_by_hash(rows: Sequence[dict[str, Any]], runs: Sequence[Run]) -> None:
    """Add a hash to settings with the same name whose test images or labels differ."""
    hashes: dict[str, set[tuple[str, ...] | None]] = {}
    for row, run in zip(rows, runs, strict=True):
        hashes.setdefault(row["setting"], set()).add(image_hashes(run))
    for row, run in zip(rows, runs, strict=True):
        if len(hashes[row["setting"]]) > 1:
            row["setting"] += f", images {_short_hash(image_hashes(run))}"


def _short_hash(hashes: tuple[str, ...] | None) -> str:
    if not hashes:
        return "unknown"
    return "".join(digest[:4] for digest in hashes)


def correlations(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the correlation of every score with every accuracy, by setting and by method.

    A method with at least MIN_VALUES runs in a setting is also correlated separately.
    """
    for setting in dict.fromkeys(row["setting"] for row in rows):
        same_setting = [row for row in rows if row["setting"] == setting]
        methods = list(dict.fromkeys(row["method"] for row in same_setting))
        if len(methods) == 1:
            yield from _correlate(same_setting, setting, methods[0])
            continue
        yield from _correlate(same_setting, setting, None)
        for method in methods:
            same_method = [row for row in same_setting if row["method"] == method]
            if len(same_method) >= MIN_VALUES:
                yield from _correlate(same_method, setting, method)


def _correlate(
    rows: Sequence[Mapping[str, Any]], setting: str, method: str | None
) -> Iterator[dict[str, Any]]:
    for score, accuracy in itertools.product(SCORES, ACCURACIES):
        complete = [row for row in rows if label_free_plots.has_both(row, score, accuracy)]
        if not complete:
            continue
        x = [row["scores"][score] for row in complete]
        y = [row["accuracies"][accuracy] for row in complete]
        rho = spearman(x, y)
        yield {
            "setting": setting,
            "method": method,
            "score": score,
            "accuracy": accuracy,
            "runs": len(complete),
            "rho": rho,
            "chance": None if rho is None else chance_share(x, y),
        }


class Scores(Analysis):
    """Correlate the label-free scores of runs with their accuracies."""

    last: PositiveInt = LAST_ROUNDS  # rounds over which a run's scores are averaged

    def measure(self, runs: Sequence[Run], notify: Notify) -> Results:
        """Return the scores and accuracies of each run, and their correlations."""
        measured = [final_accuracies(run) for run in runs]
        accuracies, common = comparable_accuracies(measured)
        names = run_names(runs)
        rows = []
        for name, run, known, own in zip(names, runs, measured, accuracies, strict=True):
            experiment = run.experiment.to_dict()
            rows.append(describe_run(name, experiment, run.rounds, own, last=self.last))
            _report_excluded(name, known, own, common=common, notify=notify)
        _separate_by_hash(rows, runs)
        correlated = list(correlations(rows))
        _check_enough(correlated)
        return {
            "runs": rows,
            "correlations": correlated,
            "measured": {key: _settings_text(key, values) for key, values in common.items()},
        }

    def draw(self, results: Results) -> Any:
        """Return a figure with a row for each setting and accuracy, and a column for each score."""
        return label_free_plots.draw(results, SCORES, ACCURACY_NAMES)

    def summary(self, results: Results) -> Summary:
        """Return a table of the correlations."""
        notes = [LIMITS]
        for key, settings in results["measured"].items():
            notes.append(f"{ACCURACY_NAMES[key]} accuracy is with {settings}")
        rows = list(table_rows(results["correlations"]))
        return Summary("scores without labels, and accuracy", COLUMNS, rows, notes)


def _report_excluded(
    name: str,
    measured: Mapping[str, Mapping[ProbeValues, float]],
    accuracies: Mapping[str, float],
    *,
    common: Mapping[str, ProbeValues],
    notify: Notify,
) -> None:
    """Report which accuracies of a run are excluded, and why."""
    for key, values in common.items():
        if measured[key] and key not in accuracies:
            notify(
                f"{name} is left out for {ACCURACY_NAMES[key]}: "
                f"it was not measured with {_settings_text(key, values)}"
            )
    if not any(measured.values()):
        notify(
            f"{name} is left out: it has no final accuracy, as it is not finished or has no labels"
        )


def _check_enough(correlated: Sequence[Mapping[str, Any]]) -> None:
    """Raise ConfigError if there are too few runs for a rank correlation."""
    if not correlated:
        raise ConfigError(
            "no run has both a label-free score and a final accuracy: "
            "finish at least one run with labelled test images"
        )
    most = max(correlation["runs"] for correlation in correlated)
    if most < MIN_VALUES:
        raise ConfigError(
            f"a rank correlation needs {MIN_VALUES} runs or more that can be compared, on the same "
            f"images with the same backbone and batch; here the most are {most}"
        )


def _settings_text(accuracy: str, values: ProbeValues) -> str:
    """Return settings such as "labels = 0.01, protocol = fedema", without those not set."""
    pairs = zip(ACCURACIES[accuracy], values, strict=True)
    return ", ".join(f"{setting} = {value}" for setting, value in pairs if value is not None)


def table_rows(correlated: Iterable[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Yield correlations as the cells of a table with the columns COLUMNS."""
    for correlation in correlated:
        runs_of = correlation["setting"]
        if correlation["method"]:
            runs_of += f", {correlation['method']}"
        rho = "too few or equal"
        chance = ""
        if correlation["rho"] is not None:
            rho = f"{correlation['rho']:+.2f}".replace("-", "−")
            chance = f"{100 * correlation['chance']:.3g}%".replace("-", "−")
        score = SCORES[correlation["score"]]
        accuracy = ACCURACY_NAMES[correlation["accuracy"]]
        yield [runs_of, score, accuracy, str(correlation["runs"]), rho, chance]


def main() -> None:
    """Run the study over run directories and write NAME.json and NAME.png."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dirs", type=Path, nargs="+", metavar="RUN_DIR")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--last", type=int, default=LAST_ROUNDS)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    try:
        need_matplotlib()
        scores = validate(Scores, {"last": args.last}, "scores")
        output = run_analysis("scores", scores, args.dirs, out=args.out, device=args.device)
    except FedsslError as error:
        parser.error(str(error))
    print_summary(output.summary, output.json, output.png)


if __name__ == "__main__":
    main()
