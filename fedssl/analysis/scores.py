"""Whether scores that need no labels tell which run is better: their rank correlation with accuracy over runs.

The rounds log has, of each client's last batch in a round, the effective rank of features (RankMe), the spread of
projections, alignment and uniformity (health.py). Here each is a run's mean over clients and its last rounds. Runs are
compared with others on the same images with the same backbone and batch, for a rank is bounded by both; and, where
there are enough, with those of their own method.
"""

from __future__ import annotations

import itertools
import statistics
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import PositiveInt

from fedssl import integrity
from fedssl.analysis.analysis import ANALYSES, Analysis, Found, Summary, run_names
from fedssl.analysis.comparable import image_hashes
from fedssl.analysis.look import COLOURS, MARKERS, figure, legend
from fedssl.analysis.ranks import FEWEST, by_chance, spearman
from fedssl.data.progress import Say
from fedssl.errors import ConfigError, RunError
from fedssl.probes import PROBES
from fedssl.run import Run

SCORES = {  # and how each is to be read
    "effective_rank": "effective_rank (more is better)",
    "embedding_std": "embedding_std (more is better)",
    "alignment": "alignment (least where all collapses)",
    "uniformity": "uniformity (less is better)",
}
# And the settings under [probe] that they are measured with: only equal ones are compared.
ACCURACIES = {probe: PROBES[probe].uses for probe in ("linear", "knn")}
WORDS = {"linear": "linear", "knn": "kNN"}
LAST = 10  # rounds that a run's score is the mean of
LIMITS = (
    "ρ is Spearman's rank correlation over n runs; the last column is the share of random orders that give one as "
    "large, of either sign. Runs are few and have settings in common, of many correlations some are large by chance, "
    "and what holds of one data set need not hold of another"
)


def row(
    name: str,
    experiment: Mapping[str, Any],
    rounds: Iterable[Mapping[str, Any]],
    accuracies: Mapping[str, float],
    last: int = LAST,
) -> dict[str, Any]:
    """What counts of one run, from plain values: an experiment's, the lines of a rounds log, accuracies in percent."""
    method = experiment["method"]
    return {
        "run": name,
        "setting": f"{_images(experiment['data'])}, {method['backbone']}, batches of {experiment['train']['batch']}",
        "method": method["name"],
        "scores": _scores([*rounds][-last:]),
        "accuracies": {key: accuracies[key] for key in ACCURACIES if key in accuracies},
    }


def _images(data: Mapping[str, Any]) -> str:
    """Name the images of a [data] table by every setting that changes them."""
    held_out = [f"{data['holdout']} held out"] if data.get("holdout") else []
    others = [f"{key} {data[key]}" for key in ("layout", "size", "channels", "test", "part") if key in data]
    return ", ".join([data.get("path") or data["name"], *others, *held_out])


def _tell_apart(rows: Sequence[dict[str, Any]], runs: Sequence[Run]) -> None:
    """Add a hash to settings with the same name whose test images or labels differ."""
    found: dict[str, set[tuple[str, ...] | None]] = {}
    for each, run in zip(rows, runs, strict=True):
        found.setdefault(each["setting"], set()).add(image_hashes(run))
    for each, run in zip(rows, runs, strict=True):
        if len(found[each["setting"]]) > 1:
            hashes = image_hashes(run)
            each["setting"] += f", images {''.join(h[:4] for h in hashes) if hashes else 'unknown'}"


def _scores(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Means over clients and rounds; a score that no client has is left out."""
    clients = [client for line in rounds for client in line["clients"]]
    known = {key: [c[key] for c in clients if c.get(key) is not None] for key in SCORES}
    return {key: statistics.fmean(values) for key, values in known.items() if values}


def correlations(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """For each setting, and within it each method of which there are enough runs: every score with every accuracy."""
    for setting in dict.fromkeys(each["setting"] for each in rows):
        these = [each for each in rows if each["setting"] == setting]
        methods = list(dict.fromkeys(each["method"] for each in these))
        yield from _of(these, {"setting": setting, "method": None if len(methods) > 1 else methods[0]})
        for method in methods if len(methods) > 1 else []:
            some = [each for each in these if each["method"] == method]
            if len(some) >= FEWEST:
                yield from _of(some, {"setting": setting, "method": method})


def _of(rows: Sequence[Mapping[str, Any]], which: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for score, accuracy in itertools.product(SCORES, ACCURACIES):
        pairs = [(r["scores"][score], r["accuracies"][accuracy]) for r in rows if _has(r, score, accuracy)]
        if pairs:
            rho = spearman(*zip(*pairs, strict=True))
            chance = None if rho is None else by_chance(*zip(*pairs, strict=True))
            yield {**which, "score": score, "accuracy": accuracy, "runs": len(pairs), "rho": rho, "chance": chance}


def _has(row: Mapping[str, Any], score: str, accuracy: str) -> bool:
    return score in row["scores"] and accuracy in row["accuracies"]


How = tuple[Any, ...]  # the values of an accuracy's settings, in their order


def measured(run: Run) -> dict[str, dict[How, float]]:
    """A run's final accuracies by how they were measured: those of its table, and linear ones of cells of a table."""
    probe = run.experiment.to_dict()["probe"]
    table = run.results.get("table", {}).get("this run", {})
    usual = {key: tuple(probe.get(setting) for setting in settings) for key, settings in ACCURACIES.items()}
    found = {key: {usual[key]: table[key]["mean"]} if key in table else {} for key in ACCURACIES}
    for file in sorted(run.dir.glob("measures/linear-*.json")):
        try:
            cell = integrity.read_json(file.parent, file.name) or {}
        except ValueError:
            raise RunError(f"{file} is damaged; remove it and measure it again with fedssl reproduce") from None
        if cell.get("experiment") == run.experiment.hash() and cell.get("on") is None:
            how = tuple((probe | cell["settings"]).get(setting) for setting in ACCURACIES["linear"])
            found["linear"].setdefault(how, cell["value"])
    return found


def comparable(runs: Sequence[Mapping[str, Mapping[How, float]]]) -> tuple[list[dict[str, float]], dict[str, How]]:
    """Of each run the accuracies measured in the way that most of them have, and that way."""
    counts = {key: Counter(how for each in runs for how in each[key]) for key in ACCURACIES}
    ways = {key: count.most_common(1)[0][0] for key, count in counts.items() if count}
    return [{key: each[key][way] for key, way in ways.items() if way in each[key]} for each in runs], ways


@ANALYSES.register("scores")
class Scores(Analysis):
    last: PositiveInt = LAST  # rounds whose mean a run's score is

    def measure(self, runs: Sequence[Run], say: Say) -> Found:
        rows, every = [], [measured(run) for run in runs]
        accuracies, ways = comparable(every)
        for name, run, known, own in zip(run_names(runs), runs, every, accuracies, strict=True):
            rows.append(row(name, run.experiment.to_dict(), run.rounds, own, self.last))
            for key in (key for key in ways if known[key] and key not in own):
                say(f"{name} does not count for {WORDS[key]}: it was measured otherwise than with {_way(ways, key)}")
            if not any(known.values()):
                say(f"{name} has no final accuracy, and does not count: it is not finished, or had no labels")
        _tell_apart(rows, runs)
        found = list(correlations(rows))
        if not found:
            raise ConfigError("no run has both a score and a final accuracy: finish some, with labelled test images")
        most = max(each["runs"] for each in found)
        if most < FEWEST:
            raise ConfigError(
                f"a rank correlation needs {FEWEST} runs or more that can be compared, on the same images with the "
                f"same backbone and batch; here the most are {most}"
            )
        return {"runs": rows, "correlations": found, "measured": {key: _way(ways, key) for key in ways}}

    def draw(self, found: Found) -> Any:
        """A row for each setting and accuracy, a column for each score, a point for each run."""
        whole = {(c["setting"], c["accuracy"], c["score"]): c for c in reversed(found["correlations"])}
        lines = list(dict.fromkeys((c["setting"], c["accuracy"]) for c in found["correlations"]))
        scores = [score for score in SCORES if any(score == key[2] for key in whole)]
        drawn, axes = figure(len(lines), len(scores), width=3.4, height=3.0)
        methods = list(dict.fromkeys(each["method"] for each in found["runs"]))
        for (setting, accuracy), across in zip(lines, axes, strict=True):
            for score, each in zip(scores, across, strict=True):
                rows = [r for r in found["runs"] if r["setting"] == setting and _has(r, score, accuracy)]
                _points(each, rows, methods, score, accuracy)
                each.set_title(_said(whole.get((setting, accuracy, score))), fontsize=9)
            across[0].set_ylabel(f"{WORDS[accuracy]} accuracy (%)\n{textwrap.fill(setting, 34)}", fontsize=9)
        legend(drawn, axes[0, :1])
        return drawn

    def summary(self, found: Found) -> Summary:
        how = [f"{WORDS[key]} accuracy is with {way}" for key, way in found["measured"].items()]
        return Summary(
            "scores without labels, and accuracy", COLUMNS, list(lines(found["correlations"])), [LIMITS, *how]
        )


def _way(ways: Mapping[str, How], key: str) -> str:
    """In words: "labels = 0.01, protocol = fedema"; what is not set is not said."""
    pairs = zip(ACCURACIES[key], ways[key], strict=True)
    return ", ".join(f"{setting} = {value}" for setting, value in pairs if value is not None)


COLUMNS = ("runs of", "score", "accuracy", "n", "ρ", "by chance")


def lines(found: Iterable[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Correlations as the cells of a table with these columns."""
    for c in found:
        which = c["setting"] + (f", {c['method']}" if c["method"] else "")
        numbers = ["too few or equal", ""] if c["rho"] is None else [f"{c['rho']:+.2f}", f"{100 * c['chance']:.3g}%"]
        yield [which, SCORES[c["score"]], WORDS[c["accuracy"]], str(c["runs"]), *(n.replace("-", "−") for n in numbers)]


def _points(axes: Any, rows: Sequence[Mapping[str, Any]], methods: Sequence[str], score: str, accuracy: str) -> None:
    for number, method in enumerate(methods):
        own = [(r["scores"][score], r["accuracies"][accuracy]) for r in rows if r["method"] == method]
        how = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
        axes.plot(*(zip(*own, strict=True) if own else ((), ())), linestyle="", label=method, **how)
    axes.set_xlabel(score.replace("_", " "))
    axes.locator_params(axis="x", nbins=4)
    axes.grid(alpha=0.3)


def _said(correlation: Mapping[str, Any] | None) -> str:
    if correlation is None:
        return "no runs"
    rho = "too few or equal" if correlation["rho"] is None else f"ρ = {correlation['rho']:+.2f}".replace("-", "−")
    return f"{rho}, n = {correlation['runs']}"
