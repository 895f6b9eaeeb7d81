"""The notebooks are those that docs/make_notebooks.py writes, and their scripts run."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
MAKE: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "make_notebooks.py"))
NAMES = MAKE["NAMES"]
PNG_START = "iVBORw0KGgo"  # the signature of PNG in base64


def read_notebook(name: str) -> dict[str, Any]:
    text = (ROOT / "docs" / "notebooks" / f"{name}.ipynb").read_text("utf-8")
    notebook: dict[str, Any] = json.loads(text)
    return notebook


@pytest.mark.parametrize("name", NAMES)
def test_notebook_has_the_cells_of_its_script(name: str) -> None:
    script = (ROOT / "examples" / f"{name}.py").read_text("utf-8")
    expected = MAKE["notebook"](MAKE["read_cells"](script), outputs=_no_outputs(script))
    found = read_notebook(name)
    for cell in found["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = []
    assert found == expected, f"run: python docs/make_notebooks.py {name}"


def _no_outputs(script: str) -> list[list[Any]]:
    return [[] for _ in MAKE["read_cells"](script)]


@pytest.mark.parametrize("name", NAMES)
def test_notebook_has_text_and_a_picture(name: str) -> None:
    printed = 0
    pictures = 0
    for cell in read_notebook(name)["cells"]:
        for output in cell.get("outputs", []):
            printed += output["output_type"] == "stream"
            png = output.get("data", {}).get("image/png", "")
            pictures += png.startswith(PNG_START)
    assert printed >= 1
    assert pictures >= 1


def test_cells_of_a_script() -> None:
    script = (
        '"""Title."""\n\n# %% [markdown]\n# # Head\n#\n# Text.\n\n# %%\na = 1\n\n\n# %%\na + 1\n'
    )
    cells = MAKE["read_cells"](script)
    assert [tuple(cell) for cell in cells] == [
        ("markdown", "# Head\n\nText."),
        ("code", "a = 1"),
        ("code", "a + 1"),
    ]
    outputs = MAKE["execute"](cells)
    assert outputs[:2] == [[], []]
    assert outputs[2][0]["data"] == {"text/plain": ["2"]}


def test_printed_lines_come_before_the_last_value() -> None:
    cells = MAKE["read_cells"]('\n# %%\nprint("one")\nprint("two")\n3\n')
    (outputs,) = MAKE["execute"](cells)
    assert outputs[0]["text"] == ["one\n", "two\n"]
    assert outputs[1]["data"] == {"text/plain": ["3"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_script_runs(name: str, tmp_path: Path) -> None:
    """The scripts contain assertions, and raise if a command fails."""
    script = ROOT / "examples" / f"{name}.py"
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # fedssl's
    settings = {**os.environ, "MPLBACKEND": "agg", "PATH": programs}
    subprocess.run([sys.executable, script], cwd=tmp_path, env=settings, check=True)
