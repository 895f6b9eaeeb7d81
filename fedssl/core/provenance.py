"""Identify the code and the machine that produced a figure.

The digest of the code changes with every statement that may change a figure. Comments, docstrings
and layout do not change it, nor do modules that only present results. Modules imported by --import
have a digest too, which follows that of fedssl after a plus sign. Plugins are not covered.

`equal_code.txt` lists digests of code that the golden tests have shown to compute the same bits.
All of them are reported as the first, so that a change of names or layout does not make earlier
figures look outdated.
"""

from __future__ import annotations

import ast
import hashlib
import platform
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fedssl.core.user_modules import imported_modules
from fedssl.core.version import __version__

if TYPE_CHECKING:
    import torch

PACKAGE = Path(__file__).parent.parent
EQUAL_CODE = Path(__file__).parent / "equal_code.txt"
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
UNKNOWN = "unknown"  # the code of figures made before digests were kept
# Modules and packages that only present results. runs/rounds_log.py is not one: tables read figures
# from its log.
PRESENTATION = {
    "analysis",
    "cli",
    "experiment/recipes",
    "pages",
    "plots",
    "runs/progress",
    "paper_tables/published",
}


def code() -> str:
    """Return hexadecimal digits that identify the running code: "0123abcd".

    "0123abcd+4567cdef" if a user's modules were imported: the second number identifies these.
    """
    sources: set[bytes] = set()
    for module in imported_modules().values():
        sources.update(module.sources)
    if not sources:
        return _own_code()
    return f"{_own_code()}+{_digest(frozenset(sources))}"


@cache
def _digest(sources: frozenset[bytes]) -> str:
    """Return the digest of source files, in whatever order they were imported."""
    texts = sorted(map(statements, sources))
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:8]


@cache
def _own_code() -> str:
    """Return the digest of this package, that of the first of all equal ones."""
    digest = package_digest(PACKAGE)
    equal = EQUAL_CODE.read_text("utf-8").split()
    return equal[0] if digest in equal else digest


def package_digest(package: Path) -> str:
    """Return the digest of a package's source, not looked up in the table of equal code."""
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        name = file.relative_to(package)
        module = name.with_suffix("")
        prefixes = {prefix.as_posix() for prefix in (module, *module.parents)}
        if not PRESENTATION & prefixes:
            digest.update(f"{name.as_posix()}\n{statements(file.read_text('utf-8'))}\n".encode())
    return digest.hexdigest()[:8]


def statements(source: str | bytes) -> str:
    """Return source code without comments, docstrings and layout.

    The result is the same for every version of Python.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return "".join(_flatten(tree))


def _flatten(node: object) -> Iterator[str]:
    """Yield a syntax tree as text, without empty fields: versions of Python add such fields."""
    if isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for field, value in ast.iter_fields(node):
            if value is not None and value != []:
                yield f" {field}="
                yield from _flatten(value)
        yield ")"
    elif isinstance(node, list):
        for item in node:
            yield from _flatten(item)
    else:
        yield repr(node)


def environment(device: torch.device) -> dict[str, str]:
    """Return the versions and the device that figures are reported with."""
    import torch

    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = platform.processor() or platform.machine()
    return {
        "fedssl": __version__,
        "code": code(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": f"{device.type}: {name}",
    }
