"""Public images on their way from the experiment to every client; and who never sees them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedssl
from fedssl import assemble
from fedssl.algorithm import ALGORITHMS
from fedssl.algorithms import FedAvg
from fedssl.changes import merge_changes
from fedssl.client import Client
from fedssl.data import Dataset, HeldOut, Images, Npz
from fedssl.errors import ConfigError, RunError
from fedssl.experiment import Experiment, load
from fedssl.models import models_of
from fedssl.tree import Tree

SMALL: dict[str, Any] = {
    "rounds": 2,
    "clients": 3,
    "data": {"name": "given"},
    "method": {"name": "simclr", "backbone": "cnn", "hidden": 8, "dim": 4},
    "algorithm": {"name": "fedca"},
    "train": {"batch": 8, "checkpoint_every": 0},
    "probe": {"every": 0, "linear": False},
}


def experiment(changes: dict[str, Any] | None = None) -> Experiment:
    return Experiment.from_dict(merge_changes(SMALL, changes or {}))


def images(n: int, seed: int = 0) -> Tensor:
    """No two are alike, whatever is done to them: each has a number of its own in its first pixels."""
    pixels = torch.randint(256, (n, 3, 10, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    pixels[:, 0, 0, 0], pixels[:, 0, 0, 1] = torch.arange(n) % 256, torch.arange(n) // 256
    return pixels


def dataset(n: int = 120) -> Dataset:
    owners = {str(k): torch.arange(k, n, 4) for k in range(4)}
    return Dataset(Images(images(n), torch.arange(n) % 6), Images(images(12, 1), torch.arange(12) % 6), owners)


# -- the experiment --


def test_toml_and_back_and_its_hash() -> None:
    held = experiment()
    assert held.to_dict()["public"] == {"name": "held-out", "holdout": 0, "leave_out": 0.0, "images": 3200}
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


def test_experiments_that_need_none_do_not_speak_of_them() -> None:
    plain = experiment({"algorithm.name": "fedavg"})
    assert "public" not in plain.to_dict()
    assert "public" not in experiment({"algorithm.beta": 0}).to_dict()
    assert experiment().with_changes({"algorithm": "fedavg"}) == plain
    kept = plain.with_changes({"public.images": 7})  # and what was asked for is not forgotten
    assert Experiment.from_toml(kept.to_toml()).public == HeldOut(images=7)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"public": "cifar100", "data.name": "cifar100"}, r"\[public\] names the images of \[data\] itself: .*"),
        (
            {
                "public": {"name": "folder", "path": "a", "size": 9, "layout": "flat"},
                "data": {"name": "folder", "path": "a", "size": 8, "layout": "classes"},
            },
            r"\[public\] names the images of \[data\] itself: .*",
        ),
        ({"public": "nowhere"}, 'unknown public data set "nowhere"; known: .*'),
        ({"public.pictures": 3}, 'unknown key "public.pictures"; known: .*images'),
        ({"public": {"name": "npz"}}, "public.path: field required"),
        (
            {"method": {"name": "mae", "backbone": "vit_mini"}},
            'algorithm "fedca" as set needs a method with a projector; "mae" .*',
        ),
        (
            {"method": {"name": "swav", "small": 2}},
            'algorithm "fedca" needs a method with two views of each image, of one kind; "swav" as set has others',
        ),
    ],
)
def test_refused_before_any_image_is_read(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}$"):
        experiment(changes).check()


@pytest.mark.parametrize("name", ["simclr", "mocov1", "mocov2", "simsiam", "byol", "swav", "deepcluster", "dino"])
def test_methods_it_works_with(name: str) -> None:
    experiment({"method": {"name": name, "backbone": "cnn"}}).check()


def test_a_wide_blur_is_for_the_images_to_refuse() -> None:
    """Before images are read nobody knows that they are small."""
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


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda p: p["name"])
def test_no_client_holds_a_public_image(partition: dict[str, Any]) -> None:
    """Held-out images and the clients' are all different rows of one set, and the clients' are what they would be."""
    data = dataset()
    chosen = experiment({"partition": partition, "clients": 4 if partition["name"] == "natural" else 3})
    _, before = assemble.deal(chosen.with_changes({"algorithm": "fedavg"}), data, print)
    _, owners = assemble.deal(chosen, data, print)
    public = assemble.read_public(chosen, data, Path(), print)
    assert public is not None
    held = {tuple(image.flatten().tolist()) for image in public}
    own = {tuple(image.flatten().tolist()) for index in owners.values() for image in data.train.pixels[index]}
    assert len(held) == 12
    assert not held & own
    everybody = {tuple(image.flatten().tolist()) for image in data.train.pixels}
    assert held <= everybody
    assert own == {tuple(i.flatten().tolist()) for index in before.values() for i in data.train.pixels[index]} - held
    rows = set(range(120)) - {i for index in owners.values() for i in index.tolist()}
    for client, index in before.items():  # in their order, less the public ones
        assert owners[client].tolist() == [i for i in index.tolist() if i not in rows]


def test_lists_go_on_meaning_the_images_they_meant(tmp_path: Path) -> None:
    """Indices are into all training images, whether some of them are public or not."""
    lists = {"a": [5, 3, 90, 91, 92], "b": list(range(100, 120))}
    (tmp_path / "lists.json").write_text(json.dumps(lists))
    listed = experiment({"partition": {"name": "listed", "path": str(tmp_path / "lists.json")}, "clients": 2})
    seen, owners = assemble.deal(listed, dataset(), print)
    public = HeldOut().rows(120, fedssl.seeds.generator(0, "public")).tolist()
    assert {c: index.tolist() for c, index in owners.items()} == {
        c: sorted(set(lists[c]) - {*public}) for c in ("a", "b")
    }
    assert any(i in public for i in lists["b"]), "the draw took nothing from anybody: nothing was shown"
    assert torch.equal(seen.train.pixels, dataset().train.pixels)


def test_the_draw_is_of_the_seed_alone(tmp_path: Path) -> None:
    data, said = dataset(), [].append
    first = assemble.read_public(experiment(), data, tmp_path, said)
    assert torch.equal(first, assemble.read_public(experiment({"algorithm.dictionary": 0}), data, tmp_path, said))
    assert not torch.equal(first, assemble.read_public(experiment({"seed": 1}), data, tmp_path, said))


def test_nobody_loads_what_nobody_needs(tmp_path: Path) -> None:
    said: list[str] = []
    plain = experiment({"algorithm.name": "fedavg"})
    assert assemble.read_public(plain, dataset(), tmp_path, said.append) is None
    assert said == []
    gone = plain.with_changes({"public": "npz", "public.path": "there-is-none.npz"})
    assert assemble.read_public(gone, dataset(), tmp_path, said.append) is None
    assert said == ["[public] is not used: the algorithm as set needs no public images"]


# -- on the way to clients --


def test_home_and_clients_get_them_and_the_number_of_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int, Tensor | None]] = []

    class Seeing(FedAvg):
        @property
        def needs_public(self) -> bool:
            return True

        def init(self, home: Client) -> Tree:
            seen.append((home.id, home.rounds, home.public))
            return super().init(home)

        def client(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
            seen.append((client.id, client.rounds, client.public))
            return super().client(client, message)

    monkeypatch.setattr(ALGORITHMS, "_classes", {**ALGORITHMS._classes, "seeing": Seeing})
    chosen = experiment({"algorithm": {"name": "seeing"}, "train.workers": 1, "probe.beside": ["random"]})
    fedssl.run(chosen, tmp_path / "run", dataset=dataset(), quiet=True, device="cpu")
    public = assemble.read_public(chosen, dataset(), tmp_path, print)
    assert public is not None
    assert (seen[0][0], sorted(who for who, *_ in seen[1:])) == ("home", ["0", "0", "1", "1", "2", "2"])
    assert {rounds for _, rounds, _ in seen} == {2}
    assert all(got is not None and torch.equal(got, public) for _, _, got in seen)


def test_an_untrained_backbone_is_measured_without_the_algorithm(tmp_path: Path) -> None:
    """`random` is the model that all start from, not one that an algorithm trained before the first round."""
    changes = {"probe.beside": ["random"], "probe.k": 5}
    for name in ("fedca", "fedavg"):
        chosen = experiment(changes | {"algorithm": {"name": name}})
        run = fedssl.run(chosen, tmp_path / name, dataset=dataset(), quiet=True, device="cpu")
        first = assemble.first_sites(
            chosen.with_changes({"algorithm": "fedavg"}),
            assemble.build_trainers(chosen, (3, 10, 10), torch.device("cpu"), 1)[0],
            ["0"],
        )
        score = fedssl.evaluate.Evaluation(chosen, dataset(), torch.device("cpu"))
        expected = score.measure(models_of(chosen, first), ("knn",))["knn"].mean
        assert run.results["table"]["random"]["knn"]["mean"] == expected


def test_probes_learn_from_all_labelled_images(tmp_path: Path) -> None:
    run = fedssl.run(experiment(), tmp_path / "run", dataset=dataset(), quiet=True, device="cpu")
    assert len(run.data().train) == 120
    assert sum(c["images"] for c in run.rounds[0]["clients"]) <= 108


def test_a_run_does_not_go_on_with_other_public_images(tmp_path: Path) -> None:
    def save(seed: int) -> None:
        pixels = images(40, seed).permute(0, 2, 3, 1).numpy()
        np.savez(tmp_path / "public.npz", x_train=pixels)

    def run(rounds: int) -> fedssl.Run:
        chosen = experiment({"public": {"name": "npz", "path": "public.npz", "images": 20}, "rounds": rounds})
        return fedssl.run(chosen, tmp_path / "run", "cpu", tmp_path, dataset=dataset(), quiet=True)

    save(5)
    run(1)
    save(6)
    with pytest.raises(ConfigError, match="holds a run on other images"):
        run(2)
    save(5)
    assert len(run(2).rounds) == 2
    other = experiment({"public": {"name": "npz", "path": "public.npz", "images": 21}})
    with pytest.raises(ConfigError, match=r"another experiment \(public.images: 20 there, 21 asked for\)"):
        fedssl.run(other, tmp_path / "run", "cpu", tmp_path, dataset=dataset(), quiet=True)


def test_what_goes_wrong_before_the_first_round_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="before the first round, on public images: its loss is not finite any more"):
        fedssl.run(
            experiment({"train.lr": 1e9, "train.epochs": 20}), tmp_path / "run", "cpu", dataset=dataset(), quiet=True
        )


def test_training_before_the_first_round_has_a_clients_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the same experiment would give other bits on a machine with more cores."""
    threads: list[int] = []

    class Counting(FedAvg):
        def init(self, home: Client) -> Tree:
            threads.append(torch.get_num_threads())
            return super().init(home)

    monkeypatch.setattr(ALGORITHMS, "_classes", {**ALGORITHMS._classes, "counting": Counting})
    before = torch.get_num_threads()
    for count in (1, 2):
        chosen = experiment({"algorithm": {"name": "counting"}, "train.threads": count})
        trainer = assemble.build_trainers(chosen, (3, 10, 10), torch.device("cpu"), 1)[0]
        assemble.first_sites(chosen, trainer, ["0"])
    assert threads == [1, 2]
    assert torch.get_num_threads() == before


def test_the_command_line_deals_without_them(tmp_path: Path, cli: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = cli("partition", "demo", "--json", "--set", "algorithm=fedca", "--set", "public.images=100")
    assert code == 0
    assert sum(json.loads(out)["images"].values()) == 4900
