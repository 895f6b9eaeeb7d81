"""Which code made a figure: a digest of the package's source, so that figures of different code can be told apart.

A version number does not change while somebody works on a clone. The digest does with every statement that may decide a
figure, and with nothing else: comments, docstrings and layout are no part of it, nor are the parts of the package that
only tell. Plugins are not covered.
"""

from __future__ import annotations

import ast
import hashlib
import platform
from functools import cache
from pathlib import Path

import torch

import fedssl

UNKNOWN = "unknown"  # the code of figures made before digests were kept
TELLING = {  # modules and packages; report/rounds.py is not among them: tables read figures off the log that it writes
    "analysis",
    "cli",
    "cli_finetune",
    "cli_flower",
    "cli_options",
    "cli_tables",
    "combinations",
    "doctor",
    "recipes",
    "report/catalogue",
    "report/partition",
    "report/picture",
    "report/progress",
    "report/recipes",
    "report/score",
    "report/sheet",
    "report/table",
    "report/tables",
    "tables",
}


@cache
def code() -> str:
    """Eight hexadecimal digits for the fedssl that runs."""
    return digest(Path(fedssl.__file__).parent)


def digest(package: Path) -> str:
    whole = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        name = file.relative_to(package)
        module = name.with_suffix("")
        if not TELLING & {part.as_posix() for part in (module, *module.parents)}:
            whole.update(f"{name.as_posix()}\n{statements(file.read_text('utf-8'))}\n".encode())
    return whole.hexdigest()[:8]


def statements(source: str) -> str:
    """Source without comments, docstrings and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    return ast.unparse(tree)


def environment(device: torch.device) -> dict[str, str]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "fedssl": fedssl.__version__,
        "code": code(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": f"{device.type}: {name}",
    }
