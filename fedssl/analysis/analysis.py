"""What every kind of analysis has in common: it measures, draws and sums up, and leaves a JSON and a PNG."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from fedssl.analysis.look import need_matplotlib, png
from fedssl.data.progress import Say, say_on_stderr
from fedssl.errors import ConfigError
from fedssl.run import Run
from fedssl.settings import Registry, Settings, validate
from fedssl.store import check_writable, write_atomic

Found = Mapping[str, Any]  # plain values only: what the JSON file holds


class Summary(NamedTuple):
    """A table for a person, and what must be said beside it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


class Done(NamedTuple):
    """A finished analysis, and where it was written."""

    found: Found
    summary: Summary
    json: Path
    png: Path


class Analysis(Settings, ABC):
    """One kind of analysis; its fields are its settings. What it finds is enough to draw and to sum up."""

    fewest: ClassVar[int] = 1  # run directories it needs
    most: ClassVar[int | None] = None  # and takes; None: any number

    @abstractmethod
    def measure(self, runs: Sequence[Run], say: Say) -> Found: ...

    @abstractmethod
    def draw(self, found: Found) -> Any:
        """A matplotlib figure."""

    @abstractmethod
    def summary(self, found: Found) -> Summary: ...


ANALYSES: Registry[Analysis] = Registry("analysis", "fedssl.analyses")


def analyse(
    kind: str,
    dirs: str | Path | Run | Sequence[str | Path | Run] = (),
    out: str | Path | None = None,
    device: str = "auto",
    data_dir: str | Path | None = None,
    say: Say = say_on_stderr,
    set: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Done:
    """Run one kind of analysis over run directories, or one of them; its settings change by keyword or in `set`.

    `out` is a file's name without ending: OUT.json and OUT.png. Otherwise they go to analysis/KIND.{json,png} in the
    first run directory.
    """
    need_matplotlib()
    chosen = validate(ANALYSES[kind], {**settings, **(set or {})}, kind)
    dirs = only_runs([dirs] if isinstance(dirs, str | Path | Run) else dirs, say)
    check_count(kind, chosen, len(dirs))
    base = _base(kind, dirs, out)
    runs = [each if isinstance(each, Run) else Run(each, data_dir, device) for each in dirs]
    check_writable(base.parent, "--out")
    measured = chosen.measure(runs, say)
    found = {"analysis": kind, "settings": chosen.model_dump(mode="json"), **measured}
    text, picture = json.dumps(found, indent=1, allow_nan=False) + "\n", png(chosen.draw(found))
    base.parent.mkdir(parents=True, exist_ok=True)
    places = base.with_name(base.name + ".json"), base.with_name(base.name + ".png")
    write_atomic(places[0], text.encode())
    write_atomic(places[1], picture)
    return Done(found, chosen.summary(found), *places)


def only_runs(dirs: Sequence[str | Path | Run], say: Say) -> list[str | Path | Run]:
    """Of several places that exist, as runs/* names them, those that hold a run, and a note of the others. A place that
    does not exist is a slip, and so is one that is no run if no other is: both are left to be refused."""
    others = [each for each in dirs if _is_no_run(each)]
    if len(others) == len(dirs):
        return list(dirs)
    for each in others:
        say(f"{each} is not a run directory, and does not count: it has no experiment.toml")
    return [each for each in dirs if each not in others]


def _is_no_run(place: str | Path | Run) -> bool:
    return not isinstance(place, Run) and Path(place).exists() and not (Path(place) / "experiment.toml").is_file()


def check_count(kind: str, chosen: Analysis, count: int) -> None:
    if count < chosen.fewest:
        raise ConfigError(f'"{kind}" needs a run directory: fedssl analyse {kind} runs/NAME')
    if chosen.most is not None and count > chosen.most:
        raise ConfigError(f'"{kind}" takes {chosen.most or "no"} run directories, not {count}')


def _base(kind: str, dirs: Sequence[str | Path | Run], out: str | Path | None) -> Path:
    if out is None and not dirs:
        raise ConfigError(f'"{kind}" belongs to no run: say with --out where to write')
    if out is None:
        first = dirs[0]
        return (first.dir if isinstance(first, Run) else Path(first)) / "analysis" / kind
    base = Path(out)
    base = base.with_suffix("") if base.suffix in (".json", ".png") else base
    if base.is_dir() or not base.parent.is_dir():
        problem = "it is a folder" if base.is_dir() else "there is no such folder"
        raise ConfigError(f"{out} cannot be written: {problem}")
    return base


def run_names(runs: Sequence[Run]) -> list[str]:
    """A short name for each run: its folder's, with as much of the path as tells it from the others."""
    paths = [run.dir.resolve() for run in runs]
    if len(set(paths)) < len(paths):
        raise ConfigError("the same run directory was given twice")
    for parts in range(1, max((len(path.parts) for path in paths), default=0) + 1):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return []


def listed(values: Sequence[float], digits: int = 6) -> list[float]:
    """As plain numbers that are short enough to read."""
    return [float(f"{value:.{digits}g}") for value in values]
