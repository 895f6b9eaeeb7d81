"""Import modules of users, which register their own classes, and record which were imported.

Only modules that a user names in this process are imported. The record in a run directory is
information: run directories are shared, so a module that one names must not be imported from it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shlex
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from itertools import filterfalse
from pathlib import Path
from typing import NamedTuple

from fedssl.core.console import ignore_message
from fedssl.core.errors import ConfigError, FedsslError
from fedssl.core.files import integrity

RECORD = "imports.json"  # in a run directory: the SHA-256 of each imported module, by name


class UserModule(NamedTuple):
    """A module that was imported by `import_modules`, as it was at that time."""

    sha256: str
    sources: tuple[bytes, ...]  # its file; of a package, all its Python files
    file: Path | None  # None if it was imported by a dotted name


_imported: dict[str, UserModule] = {}


def import_modules(names: Iterable[str], folder: str | Path = "") -> None:
    """Import modules, each named by a file that ends in .py or by a dotted name.

    Files, and modules that are not installed, are looked up in `folder`, by default the current
    one. A file can import other files in its folder. Raise ConfigError, with the line of the
    user's file, if a module cannot be imported.
    """
    for name in names:
        if _is_file(name):
            name = os.path.normpath(name)
        if name not in _imported:
            _imported[name] = _import(name, Path(folder).absolute())


def imported_modules() -> Mapping[str, UserModule]:
    """Return the modules that this process has imported by `import_modules`, by name."""
    return dict(_imported)


def imported_hashes() -> dict[str, str]:
    """Return the SHA-256 of each imported module, by name."""
    hashes = {}
    for name, module in _imported.items():
        hashes[name] = module.sha256
    return hashes


def import_options(names: Iterable[str]) -> list[str]:
    """Return the options of a command of fedssl that import these modules."""
    options = []
    for name in names:
        options += ["--import", name]
    return options


def write_record(folder: Path) -> None:
    """Record the imported modules in a run directory; keep an earlier record if there are none."""
    if _imported:
        integrity.write_copied(folder, RECORD, f"{json.dumps(imported_hashes(), indent=2)}\n")


def read_record(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each module that a run directory records, by name."""
    try:
        recorded = json.loads(integrity.read_text(folder, RECORD, ignore_message) or "{}")
    except ValueError:
        return {}
    if not isinstance(recorded, dict):
        return {}
    return recorded


def missing_options(folder: Path) -> str:
    """Return the options that import what a run directory records and this process has not.

    The text is empty if there are none, or if a name contains control characters.
    """
    missing = list(filterfalse(_imported.__contains__, read_record(folder)))
    options = shlex.join(import_options(missing))
    if not options.isprintable():
        return ""
    return options


def changed_modules(folder: Path) -> list[str]:
    """Return the imported modules whose SHA-256 differs from the one that a directory records."""
    recorded = read_record(folder)
    changed = []
    for name, sha256 in imported_hashes().items():
        if recorded.get(name, sha256) != sha256:
            changed.append(name)
    return changed


def _is_file(name: str) -> bool:
    return name.endswith(".py") or "/" in name


def _import(name: str, folder: Path) -> UserModule:
    """Import one module; return its hash and source."""
    file = None
    module_name = name
    if _is_file(name):
        file = _find_file(name, folder)
        folder = file.parent
        module_name = file.stem
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last: the user's files must not hide installed modules
    importlib.invalidate_caches()
    files: list[Path] = []
    try:
        files = _source_files(module_name, file)
        # Read before the import: the hash is that of the code that runs.
        sources = tuple(map(Path.read_bytes, files))
        importlib.import_module(module_name)
    except (Exception, SystemExit) as problem:
        reason = f"{_where(problem, name, files)}{_what(problem)}"
        raise ConfigError(f"cannot import {name}: {reason}") from problem
    return UserModule(hashlib.sha256(b"".join(sources)).hexdigest(), sources, file)


def _find_file(name: str, folder: Path) -> Path:
    file = folder / name
    if not file.is_file():
        raise ConfigError(f"cannot import {name}: there is no such file")
    if file.suffix != ".py" or "." in file.stem:
        raise ConfigError(f"cannot import {name}: the name must end in .py and have no other dot")
    return file.resolve()


def _source_files(module_name: str, file: Path | None) -> list[Path]:
    """Return the Python files of a module; raise ConfigError if it is not the one that is meant."""
    try:
        spec = find_spec(module_name)
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        raise ConfigError("there is no such module; the name of a file ends in .py")
    origin = Path(spec.origin or "")
    if file is not None and origin.resolve() != file:
        raise ConfigError(
            f'the module "{module_name}" exists already ({spec.origin}); rename the file'
        )
    if spec.submodule_search_locations:
        return sorted(origin.parent.rglob("*.py"))
    if origin.suffix != ".py":
        raise ConfigError(f"it is not a Python file ({spec.origin})")
    return [origin]


def _where(problem: BaseException, name: str, files: Sequence[Path]) -> str:
    """Return the last line of the user's files that led to an exception.

    "line 3: " for the file `name` itself, or "FILE, line 3: ".
    """
    file: str | None = None
    line: int | None = None
    if isinstance(problem, SyntaxError):
        file = problem.filename
        line = problem.lineno
    else:
        own = set(map(os.path.realpath, files))
        for frame in traceback.extract_tb(problem.__traceback__):
            if os.path.realpath(frame.filename) in own:
                file = frame.filename
                line = frame.lineno
    if file is None:
        return ""
    if _short(file) == name:
        return f"line {line}: "
    return f"{_short(file)}, line {line}: "


def _what(problem: BaseException) -> str:
    """Return the text of an exception on one line, with its class if it is not one of fedssl's."""
    text = str(problem)
    if isinstance(problem, SyntaxError):
        text = problem.msg  # without the file and the line
    line = " ".join(text.split())
    if isinstance(problem, FedsslError):
        return line
    return f"{type(problem).__name__}: {line}".removesuffix(": ")


def _short(path: str) -> str:
    """Return a path relative to the current folder if it is in it."""
    if Path(path).is_relative_to(Path.cwd()):
        return os.path.relpath(path)
    return path
