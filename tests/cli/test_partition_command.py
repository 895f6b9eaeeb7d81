"""fedssl partition and fedssl views."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

Cli = Callable[..., tuple[int, str, str]]


def test_partition_saved_and_run_from(here: Path, cli: Cli) -> None:
    dealt = ["--set", "partition.name=dirichlet", "--set", "partition.alpha=1.0"]
    dealt += ["--set", "partition.balanced=true"]
    code, out, _ = cli(
        "partition", "mine.toml", *dealt, "--picture", "who.png", "--save", "lists.json"
    )
    assert code == 0
    assert "earth mover's distance of clients from the whole" in out
    assert Path("who.png").read_bytes().startswith(b"\x89PNG")
    lists = json.loads(Path("lists.json").read_text())
    dealt_images = [image for index in lists.values() for image in index]
    assert sorted(dealt_images) == list(range(36))
    code, out, _ = cli("partition", "mine.toml", *dealt, "--json")
    assert json.loads(out)["images"] == {client: len(index) for client, index in lists.items()}
    listed = ["--set", "partition.name=listed", "--set", "partition.path=lists.json"]
    for name, sets in (("dealt", dealt), ("listed", listed)):
        assert cli("run", "mine.toml", *sets, "--dir", name, "--quiet")[0] == 0
    both = [Path(name, "backbone.safetensors").read_bytes()[-4096:] for name in ("dealt", "listed")]
    assert both[0] == both[1]


def test_views(here: Path, cli: Cli) -> None:
    code, out, _ = cli("views", "mine.toml", "--out", "sheet.png")
    assert (code, out) == (0, "wrote sheet.png\n")
    with Image.open("sheet.png") as sheet:
        assert sheet.size[0] > 8 * 96


def test_views_of_all_presets(here: Path, cli: Cli) -> None:
    assert cli("views", "mine.toml", "--views", "all")[:2] == (0, "wrote views.png\n")
    assert cli("views", "mine.toml", "--views", "photo", "--out", "photo.png")[0] == 0
    sizes = []
    for name in ("views.png", "photo.png"):
        with Image.open(name) as sheet:
            sizes.append(sheet.height)
    # A line of settings for each of five presets, in place of one line.
    assert sizes[0] - sizes[1] == 4 * 20
    code, _, err = cli("views", "mine.toml", "--views", "al")
    assert (code, 'unknown view preset "al"' in err) == (2, True)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (
            ["views", "mine.toml", "--out", "no/where.png"],
            "no/where.png cannot be written: there is no",
        ),
        (["views", "mine.toml", "--out", "sheet.doc"], "the name must end in .png"),
        (["views", "mine.toml", "--out", "data"], "data cannot be written: it is a folder"),
        (
            ["partition", "mine.toml", "--save", "no/where.json"],
            "no/where.json cannot be written: there is no",
        ),
        (["partition", "mine.toml", "--picture", "who.doc"], "the name must end in .png"),
    ],
)
def test_files_that_cannot_be_written(args: list[str], sentence: str, here: Path, cli: Cli) -> None:
    code, out, err = cli(*args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert sentence in err
