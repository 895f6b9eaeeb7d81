"""Write docs/notebooks/*.ipynb from the scripts in examples/, with the outputs of a real execution.

    python docs/make_notebooks.py         execute all scripts and write the notebooks
    python docs/make_notebooks.py NAME …  only these, by name without a suffix

A script is in percent format: a line "# %%" starts a code cell, "# %% [markdown]" a text cell whose
lines are comments. As in Jupyter, the value of a cell's last expression is its output; figures of
matplotlib and images of PIL are stored as PNG.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "examples"
NOTEBOOKS = ROOT / "docs" / "notebooks"
NAMES = ("own_images", "compare_runs", "own_algorithm")
MARKER = "# %%"


class Cell(NamedTuple):
    """A cell of a notebook."""

    kind: str  # "markdown" or "code"
    source: str


def read_cells(script: str) -> list[Cell]:
    """Return the cells of a script; lines before the first marker are not part of the notebook."""
    cells = []
    for part in script.split(f"\n{MARKER}")[1:]:
        header, _, body = part.partition("\n")
        if header.strip() == "[markdown]":
            cells.append(Cell("markdown", _uncommented(body)))
        else:
            cells.append(Cell("code", body.strip("\n")))
    return cells


def _uncommented(body: str) -> str:
    lines = [line.removeprefix("#").removeprefix(" ") for line in body.strip("\n").splitlines()]
    return "\n".join(lines)


def notebook(cells: list[Cell], outputs: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Return a notebook of format 4.5 as plain values."""
    entries = []
    for number, cell in enumerate(cells):
        entry: dict[str, Any] = {
            "cell_type": cell.kind,
            "id": f"cell-{number}",
            "metadata": {},
            "source": cell.source.splitlines(keepends=True),
        }
        if cell.kind == "code":
            entry |= {"execution_count": None, "outputs": outputs[number]}
        entries.append(entry)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": entries, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def execute(cells: list[Cell]) -> list[list[dict[str, Any]]]:
    """Execute code cells in one namespace and return the outputs of every cell."""
    names: dict[str, Any] = {"__name__": "__main__"}
    outputs = []
    for cell in cells:
        outputs.append(_execute_cell(cell.source, names) if cell.kind == "code" else [])
    return outputs


def _execute_cell(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        # Cells of our own notebooks.
        exec(compile(ast.Module(body, []), "<cell>", "exec"), names)  # nosec B102
        if last is not None:
            # The last expression of the same cell.
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)  # nosec B307
    outputs = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        outputs.append({"output_type": "display_data", "metadata": {}, "data": _rendered(value)})
    return outputs


def _rendered(value: Any) -> dict[str, Any]:
    """Return a value as text and, for a picture, as PNG."""
    png = None
    if hasattr(value, "savefig"):  # matplotlib
        file = io.BytesIO()
        value.savefig(file, format="png", dpi=100, metadata={"Software": None})
        png = file.getvalue()
    elif hasattr(value, "_repr_png_"):  # PIL
        png = value._repr_png_()
    if png is None:
        return {"text/plain": [repr(value)]}
    # Not the repr of a picture: it has an address in memory.
    return {"text/plain": ["<picture>"], "image/png": base64.b64encode(png).decode()}


def write(name: str) -> None:
    """Execute a script in an empty folder and write its notebook."""
    cells = read_cells((SCRIPTS / f"{name}.py").read_text("utf-8"))
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            outputs = execute(cells)
        finally:
            os.chdir(before)
    text = json.dumps(notebook(cells, outputs), indent=1, ensure_ascii=False)
    (NOTEBOOKS / f"{name}.ipynb").write_text(f"{text}\n", "utf-8")


if __name__ == "__main__":
    os.environ["MPLBACKEND"] = "agg"
    for chosen in sys.argv[1:] or NAMES:
        write(chosen)
