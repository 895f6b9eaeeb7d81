"""fedssl views: rows of clients, titles and presets."""

from __future__ import annotations

import torch

from fedssl.cli.view_sheet import choose_rows, describe, preset_of
from fedssl.views import Augment
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
    line = "crop 0.5 to 1, flip 0, jitter 0.3/0.3/0/0 with p 0.8, gray 0"
    assert describe(Augment.model_validate("xray")) == line
    blurred = Augment.model_validate({"preset": "xray", "blur": 0.5})
    assert describe(blurred) == f"{line}, blur 0.5"
