"""fedssl views: rows of clients, titles and presets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedssl.cli.plain_views import plain_share, plain_views_line
from fedssl.cli.view_sheet import choose_rows, describe, preset_of
from fedssl.plots.contact_sheet import STEP, TILE
from fedssl.views import Augment, ViewGroup
from fedssl.views.presets import PRESETS


def test_every_client_has_a_row_and_all_rows_are_used() -> None:
    """Eight rows for five clients: two images of three clients, one of the others."""
    owners = {str(client): torch.arange(10 * client, 10 * client + 5) for client in range(5)}
    rows = choose_rows(owners, seed=0)
    assert [client for client, _ in rows] == ["0", "0", "1", "1", "2", "2", "3", "4"]
    assert all(row in owners[client] for client, row in rows)
    assert len(set(rows)) == 8
    assert rows == choose_rows(owners, seed=0)


def test_clients_without_images_and_further_clients_have_no_row() -> None:
    owners = {str(client): torch.tensor([client]) for client in range(20)}
    owners["0"] = torch.empty(0, dtype=torch.int64)
    assert choose_rows(owners, seed=0) == [(str(client), client) for client in range(1, 9)]


def test_a_client_with_few_images_has_few_rows() -> None:
    assert sorted(choose_rows({"a": torch.tensor([3, 4])}, seed=0)) == [("a", 3), ("a", 4)]


def test_views_are_named_by_their_preset() -> None:
    for name in PRESETS:
        assert preset_of(Augment.model_validate(name)) == name
    assert preset_of(Augment(flip=0.25)) == "custom"
    assert preset_of(Augment(blur=0.5)) == "custom"


def test_the_settings_of_views_are_one_line() -> None:
    line = "crop 0.5 to 1, ratio 0.75 to 1.3, flip 0, jitter 0.3/0.3/0/0 with p 0.8, gray 0"
    assert describe(Augment.model_validate("xray")) == line
    blurred = Augment.model_validate({"preset": "xray", "blur": 0.5})
    assert describe(blurred) == f"{line}, blur 0.5"


def test_views_of_the_background_are_counted() -> None:
    """A square is in one corner: most small crops miss it, and views of the whole image do not."""
    images = torch.zeros(40, 3, 32, 32, dtype=torch.uint8)
    images[:, :, :8, :8] = 255
    images[0] = 0  # of one colour itself: not counted
    small = ViewGroup(2, 32, Augment(crop=(0.05, 0.1), jitter_p=0.0))
    whole = ViewGroup(2, 32, Augment(crop=(1.0, 1.0), jitter_p=0.0))
    share = plain_share(images, small, seed=0)
    assert 0.6 < share < 0.95
    assert plain_share(images, whole, seed=0) == 0.0
    assert plain_views_line(images, whole, seed=0) is None
    line = plain_views_line(images, small, seed=0, name="photo")
    assert line is not None
    assert line.startswith(f"about {100 * share:.0f}% of the photo views show (nearly) one colour")
    assert line.endswith("method.augment.crop, now 0.05")
    assert plain_share(images[:1], small, seed=0) == 0.0


SCANS = """
clients = 1
[data]
name = "folder"
path = "scans"
layout = "flat"
size = 24
cache = "off"
[method]
name = "simclr"
backbone = "cnn"
augment = { crop = [1.0, 1.0], ratio = [1.0, 1.0], flip = 0.0, jitter_p = 0.0, gray = 0.0 }
[guard]
min_uploads = 1
"""


@pytest.mark.parametrize(
    ("fit", "background", "colours"),
    [
        ("crop", "black", ["green"]),
        ("pad", "black", ["black", "blue", "green", "red"]),
        ("pad", "white", ["blue", "green", "red", "white"]),
    ],
)
def test_images_and_views_are_cropped_or_padded(
    fit: str,
    background: str,
    colours: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: Any,
) -> None:
    """A scan is red, green and blue from left to right; its middle is green."""
    monkeypatch.chdir(tmp_path)
    Path("scans").mkdir()
    scan = np.zeros((8, 24, 3), np.uint8)
    for third in range(3):
        scan[:, 8 * third : 8 * (third + 1), third] = 255
    for number in range(2):
        Image.fromarray(scan).save(f"scans/{number}.png")
    Path("scans.toml").write_text(SCANS)
    changes = ["--set", f"data.fit={fit}", "--set", f"data.background={background}"]
    assert cli("views", "scans.toml", *changes)[0] == 0
    names = {(0, 0, 0): "black", (255, 255, 255): "white"}
    names |= {(255, 0, 0): "red", (0, 255, 0): "green", (0, 0, 255): "blue"}
    with Image.open("views.png") as sheet:
        last_view = sheet.crop(
            (sheet.width - STEP, sheet.height - STEP, sheet.width - STEP + TILE, sheet.height - 4)
        )
        found = {names[colour] for _, colour in last_view.getcolors()}
    assert sorted(found) == colours
