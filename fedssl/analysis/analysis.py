"""The contract of an analysis, and `analyse`, which runs one and writes a JSON and a PNG file."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from fedssl.core.console import Notify, print_to_stderr
from fedssl.core.errors import ConfigError
from fedssl.core.files.atomic import check_writable, write_atomic
from fedssl.core.settings import Registry, Settings, validate
from fedssl.plots.style import encode_png, need_matplotlib
from fedssl.runs.run import Run

Results = Mapping[str, Any]  # plain values only: the content of the JSON file
RunPath = str | Path | Run


class Summary(NamedTuple):
    """A table of results to print, with notes on how to read it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


class AnalysisOutput(NamedTuple):
    """The results of an analysis, their summary, and the files they were written to."""

    results: Results
    summary: Summary
    json: Path
    png: Path


class Analysis(Settings, ABC):
    """One kind of analysis; its fields are its settings.

    `draw` and `summary` use only the settings and the results of `measure`.
    """

    min_runs: ClassVar[int] = 1
    max_runs: ClassVar[int | None] = None  # None: no limit

    @abstractmethod
    def measure(self, runs: Sequence[Run], notify: Notify) -> Results:
        """Return the results as plain values."""

    @abstractmethod
    def draw(self, results: Results) -> Any:
        """Return a matplotlib figure of the results."""

    @abstractmethod
    def summary(self, results: Results) -> Summary:
        """Return a table of the most important results."""


ANALYSES: Registry[Analysis] = Registry("analysis", "fedssl.analyses")


def analyse(
    kind: str,
    dirs: RunPath | Sequence[RunPath] = (),
    out: str | Path | None = None,
    *,
    device: str = "auto",
    data_dir: str | Path | None = None,
    notify: Notify = print_to_stderr,
    set: Mapping[str, Any] | None = None,
    **settings: Any,
) -> AnalysisOutput:
    """Run one kind of analysis over one or several run directories and write its results.

    Settings of the analysis are given by keyword or in `set`. `out` is a file name without suffix;
    OUT.json and OUT.png are written. The default is analysis/KIND in the first run directory.
    """
    need_matplotlib()
    analysis = validate(ANALYSES[kind], {**settings, **(set or {})}, kind)
    if isinstance(dirs, str | Path | Run):
        dirs = [dirs]
    return run_analysis(
        kind, analysis, dirs, out=out, device=device, data_dir=data_dir, notify=notify
    )


def run_analysis(
    kind: str,
    analysis: Analysis,
    dirs: Sequence[RunPath],
    *,
    out: str | Path | None = None,
    device: str = "auto",
    data_dir: str | Path | None = None,
    notify: Notify = print_to_stderr,
) -> AnalysisOutput:
    """Run an analysis that need not be registered; `kind` is its name in messages and results."""
    dirs = skip_other_directories(dirs, notify)
    check_run_count(kind, analysis, len(dirs))
    base = _output_base(kind, dirs, out)
    runs = [_open_run(path, data_dir, device) for path in dirs]
    check_writable(base.parent, "--out")
    results = {
        "analysis": kind,
        "settings": analysis.model_dump(mode="json"),
        **analysis.measure(runs, notify),
    }
    text = json.dumps(results, indent=1, allow_nan=False) + "\n"
    picture = encode_png(analysis.draw(results))
    base.parent.mkdir(parents=True, exist_ok=True)
    json_path = base.with_name(base.name + ".json")
    png_path = base.with_name(base.name + ".png")
    write_atomic(json_path, text.encode())
    write_atomic(png_path, picture)
    return AnalysisOutput(results, analysis.summary(results), json_path, png_path)


def skip_other_directories(dirs: Sequence[RunPath], notify: Notify) -> list[RunPath]:
    """Return the paths without those that exist but hold no run, and report each of these.

    A pattern such as runs/* may match other files. A path that does not exist is kept, and so are
    all paths if none holds a run: both are mistakes, which opening the run reports.
    """
    kept = []
    skipped = []
    for path in dirs:
        if _holds_no_run(path):
            skipped.append(path)
        else:
            kept.append(path)
    if not kept:
        return list(dirs)
    for path in skipped:
        notify(f"{path} is not a run directory and is skipped: it has no experiment.toml")
    return kept


def _holds_no_run(path: RunPath) -> bool:
    """True if the path exists and is not a run directory."""
    if isinstance(path, Run):
        return False
    return Path(path).exists() and not (Path(path) / "experiment.toml").is_file()


def _open_run(path: RunPath, data_dir: str | Path | None, device: str) -> Run:
    if isinstance(path, Run):
        return path
    return Run(path, data_dir, device)


def check_run_count(kind: str, analysis: Analysis, count: int) -> None:
    """Raise ConfigError if the analysis does not take this number of runs."""
    if count < analysis.min_runs:
        raise ConfigError(f'"{kind}" needs a run directory: fedssl analyse {kind} runs/NAME')
    if analysis.max_runs is not None and count > analysis.max_runs:
        raise ConfigError(
            f'"{kind}" takes at most {analysis.max_runs} run directories (got {count})'
        )


def _output_base(kind: str, dirs: Sequence[RunPath], out: str | Path | None) -> Path:
    """Return the path of the output files without their suffix."""
    if out is None:
        if not dirs:
            raise ConfigError(
                f'"{kind}" has no run directory to write to: set the file name with --out'
            )
        first = dirs[0]
        run_dir = first.dir if isinstance(first, Run) else Path(first)
        return run_dir / "analysis" / kind
    base = Path(out)
    if base.suffix in (".json", ".png"):
        base = base.with_suffix("")
    if base.is_dir():
        raise ConfigError(f"--out {out} is a folder: name a file in it, without a suffix")
    if not base.parent.is_dir():
        raise ConfigError(f"--out {out} cannot be written: there is no folder {base.parent}")
    return base


def run_names(runs: Sequence[Run]) -> list[str]:
    """Return a short name for each run: the last parts of its path, as many as make it unique."""
    paths = [run.dir.resolve() for run in runs]
    if len(set(paths)) < len(paths):
        raise ConfigError("a run directory was given twice: name each of them once")
    count = 1
    while True:
        names = ["/".join(path.parts[-count:]) for path in paths]
        if len(set(names)) == len(names):
            return names
        count += 1


def round_digits(values: Sequence[float], digits: int = 6) -> list[float]:
    """Return the values rounded to a number of significant digits."""
    return [float(f"{value:.{digits}g}") for value in values]


def round_rows(rows: Sequence[Sequence[float]], digits: int = 6) -> list[list[float]]:
    """Return a matrix rounded to a number of significant digits."""
    return [round_digits(row, digits) for row in rows]


def format_numbers(values: Iterable[float], format_spec: str) -> list[str]:
    """Return the values as the cells of a table: ".4g" has four significant digits."""
    return [format(value, format_spec) for value in values]
