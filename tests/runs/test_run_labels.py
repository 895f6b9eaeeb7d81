"""Labels of runs by the settings in which they differ."""

from __future__ import annotations

from typing import Any

from fedssl.runs.run_labels import label, labelled_keys, varying_keys


def _labels(*settings: dict[str, Any]) -> list[str]:
    keys = labelled_keys(varying_keys(settings), settings)
    return [label(values, keys) for values in settings]


def test_only_differences_are_named() -> None:
    first = {"rounds": 8, "train.lr": 0.1, "train.schedule": "cosine"}
    second = {"rounds": 8, "train.lr": 0.01, "train.schedule": "constant"}
    assert _labels(first, second) == ["lr 0.1, schedule cosine", "lr 0.01, schedule constant"]


def test_equal_settings_have_no_label() -> None:
    assert _labels({"rounds": 8}, {"rounds": 8}) == ["", ""]


def test_the_name_of_a_method_stands_for_its_settings() -> None:
    simclr = {"method.name": "simclr", "method.temperature": 0.5}
    byol = {"method.name": "byol", "method.momentum": 0.99}
    assert _labels(simclr, byol) == ["simclr", "byol"]
    warm = simclr | {"method.temperature": 1.0}
    assert _labels(simclr, warm, byol) == [
        "simclr, temperature 0.5",
        "simclr, temperature 1",
        "byol",
    ]


def test_keys_with_the_same_last_part_are_written_out() -> None:
    assert _labels({"train.lr": 1, "algorithm.lr": 2}, {"train.lr": 3, "algorithm.lr": 4}) == [
        "train.lr 1, algorithm.lr 2",
        "train.lr 3, algorithm.lr 4",
    ]


def test_settings_without_a_value() -> None:
    assert _labels({"method.init": "a.safetensors"}, {}) == ["init a.safetensors", "no init"]
    assert _labels({"public.name": "folder"}, {}) == ["folder", "no public"]


def test_values_are_written_as_in_a_file() -> None:
    assert _labels({"crop": [0.2, 1.0], "clip": True}, {"crop": [0.5, 1.0], "clip": False}) == [
        "crop [0.2, 1], clip true",
        "crop [0.5, 1], clip false",
    ]
