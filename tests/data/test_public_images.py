"""Public images in an experiment, and which images clients hold without them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from client_parts import all_indices, as_lists
from public_experiments import dataset, experiment
from torch import Tensor

import fedssl
from fedssl.core.errors import ConfigError
from fedssl.data import Dataset, HeldOut, Npz
from fedssl.experiment.client_data import partition_data, read_public
from fedssl.experiment.experiment import Experiment, load

# -- the experiment --


def test_toml_and_back_and_its_hash() -> None:
    held = experiment()
    assert held.to_dict()["public"] == {
        "name": "held-out",
        "holdout": 0,
        "leave_out": 0.0,
        "images": 3200,
    }
    hundred = held.with_changes({"public.images": 100})
    assert hundred.public == HeldOut(images=100)
    named = held.with_changes({"public": "npz", "public.path": "a.npz"})
    assert isinstance(named.public, Npz)
    for each in (held, hundred, named):
        assert Experiment.from_toml(each.to_toml()) == each
        assert Experiment.from_toml(each.to_toml()).hash() == each.hash()
    assert len({held.hash(), hundred.hash(), named.hash()}) == 3
    assert hundred.with_changes({"public": "npz", "public.path": "a.npz"}).public.images == 100
    assert named.with_changes({"public": "held-out"}) == held


def test_assignments_of_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(experiment({"data": {"name": "cifar10"}}).to_toml())
    assert load(tmp_path / "mine.toml", ["public.images=100"]).public.images == 100
    assert load("demo", ["algorithm=fedca", "public.images=100"]).public == HeldOut(images=100)


def test_experiments_without_public_images_do_not_mention_them() -> None:
    plain = experiment({"algorithm.name": "fedavg"})
    assert "public" not in plain.to_dict()
    assert "public" not in experiment({"algorithm.beta": 0}).to_dict()
    assert experiment().with_changes({"algorithm": "fedavg"}) == plain
    kept = plain.with_changes({"public.images": 7})  # a setting that was given is kept
    assert Experiment.from_toml(kept.to_toml()).public == HeldOut(images=7)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"public": "cifar100", "data.name": "cifar100"},
            r"\[public\] and \[data\] are the same images, .*",
        ),
        (
            {
                "public": {"name": "folder", "path": "a", "size": 9, "layout": "flat"},
                "data": {"name": "folder", "path": "a", "size": 8, "layout": "classes"},
            },
            r"\[public\] and \[data\] are the same images, .*",
        ),
        ({"public": "nowhere"}, 'unknown public data set "nowhere"; known: .*'),
        ({"public.xyzzy": 3}, 'unknown key "public.xyzzy"; known: .*images'),
        ({"public": {"name": "npz"}}, 'missing key "public.path", which has no default'),
        (
            {"method": {"name": "mae", "backbone": "vit_mini"}},
            'algorithm "fedca" needs a method with a projector, but method "mae" .*',
        ),
        (
            {"method": {"name": "swav", "small": 2}},
            'algorithm "fedca" needs a method that makes exactly two views of each image, both '
            'with the same size and augmentation; method "swav" makes 2 \\+ 2',
        ),
    ],
)
def test_refused_before_any_image_is_read(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}$"):
        experiment(changes).check()


@pytest.mark.parametrize(
    "name", ["simclr", "mocov1", "mocov2", "simsiam", "byol", "swav", "deepcluster", "dino"]
)
def test_methods_it_works_with(name: str) -> None:
    experiment({"method": {"name": name, "backbone": "cnn"}}).check()


def test_a_wide_blur_is_for_the_images_to_refuse() -> None:
    """The size of the images is unknown before they are read."""
    experiment({"method.augment.blur": 0.5, "method.augment.blur_kernel": 101}).check()


# -- dealing --

PARTITIONS: list[dict[str, Any]] = [
    {"name": "iid"},
    {"name": "natural"},
    {"name": "classes", "per_client": 4},
    {"name": "dirichlet", "alpha": 1.0},
    {"name": "quantity", "shares": [0.5, 0.3, 0.2]},
    {"name": "rotation"},
]


def distinct(pixels: Tensor) -> set[bytes]:
    """Return the bytes of each image, without repetitions."""
    return {image.numpy().tobytes() for image in pixels}


def pixels_of(data: Dataset, owners: Mapping[str, Tensor]) -> set[bytes]:
    """Return the images of all clients."""
    return distinct(data.train.pixels[all_indices(owners)])


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda p: p["name"])
def test_no_client_holds_a_public_image(partition: dict[str, Any]) -> None:
    """Public images are taken from the clients; the other images are dealt as before."""
    data = dataset()
    chosen = experiment(
        {"partition": partition, "clients": 4 if partition["name"] == "natural" else 3}
    )
    _, before = partition_data(chosen.with_changes({"algorithm": "fedavg"}), data, print)
    _, owners = partition_data(chosen, data, print)
    public = read_public(chosen, data, Path(), print)
    assert public is not None
    public_pixels = distinct(public)
    assert len(public_pixels) == 12
    assert public_pixels <= distinct(data.train.pixels)
    assert pixels_of(data, owners) == pixels_of(data, before) - public_pixels
    public_rows = set(range(120)) - set(all_indices(owners))
    for client, index in before.items():
        assert owners[client].tolist() == sorted(set(index.tolist()) - public_rows)


def test_index_lists_still_refer_to_all_training_images(tmp_path: Path) -> None:
    """Indices are into all training images, whether some of them are public or not."""
    lists = {"a": [5, 3, 90, 91, 92], "b": list(range(100, 120))}
    (tmp_path / "lists.json").write_text(json.dumps(lists))
    listed = experiment(
        {"partition": {"name": "listed", "path": str(tmp_path / "lists.json")}, "clients": 2}
    )
    seen, owners = partition_data(listed, dataset(), print)
    public = HeldOut().rows(120, fedssl.core.seeds.generator(0, "public")).tolist()
    assert as_lists(owners) == {
        "a": sorted(set(lists["a"]) - set(public)),
        "b": sorted(set(lists["b"]) - set(public)),
    }
    assert set(lists["b"]) & set(public), "the draw must take an image from a client"
    assert torch.equal(seen.train.pixels, dataset().train.pixels)


def test_the_draw_depends_only_on_the_seed(tmp_path: Path) -> None:
    data = dataset()
    messages = [].append
    first = read_public(experiment(), data, tmp_path, messages)
    assert torch.equal(
        first,
        read_public(experiment({"algorithm.dictionary": 0}), data, tmp_path, messages),
    )
    assert not torch.equal(first, read_public(experiment({"seed": 1}), data, tmp_path, messages))


def test_public_images_that_are_not_needed_are_not_loaded(tmp_path: Path) -> None:
    messages: list[str] = []
    plain = experiment({"algorithm.name": "fedavg"})
    assert read_public(plain, dataset(), tmp_path, messages.append) is None
    assert messages == []
    gone = plain.with_changes({"public": "npz", "public.path": "there-is-none.npz"})
    assert read_public(gone, dataset(), tmp_path, messages.append) is None
    assert messages == [
        "[public] is ignored: with these settings the algorithm needs no public images"
    ]
