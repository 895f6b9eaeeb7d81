"""Variants of a recipe: NAME-short trains one epoch a round, NAME-mini is for a CPU.

Both are functions of the recipe's plain values. Neither compares the name of a method or an
algorithm: the fields of a choice decide what is made smaller.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fedssl.experiment.overrides import merge_changes, settings_class
from fedssl.nets import BACKBONES, ViT

Values = dict[str, Any]

IMAGES = 5000  # of fashion-mini
CLASSES = 10
HEADS = {"hidden": 256, "dim": 128}
# Upper bounds: a client of fashion-mini has a tenth of the images of the papers' clients.
MAX_SIZES = {
    "queue": 512,
    "prototypes": 50,
    "clusters": 20,
    "dictionary": 256,
    "features": 256,
    "remote": 1024,
    "candidates": 256,
    "aligned": 64,
}


def short(values: Values) -> Values:
    """Return the recipe with one epoch of local training a round."""
    return merge_changes(values, {"train.epochs": 1})


def mini(values: Values) -> Values:
    """Return the same method, algorithm, topology and kind of partition on fashion-mini."""
    clients = min(values.get("clients") or 5, 10)
    partition = _mini_partition(values.get("partition", {"name": "iid"}), clients)
    images_per_client = IMAGES / clients * partition.get("share", 1)
    train = values.get("train", {})
    small = copy.deepcopy(values)
    small.pop("public", None)
    small["rounds"] = min(values.get("rounds", 100), 10)
    small["clients"] = clients
    small["data"] = {"name": "fashion-mini"}
    small["partition"] = partition
    small["method"] = _mini_method(values["method"])
    small["algorithm"] = _capped("algorithm", values.get("algorithm", {"name": "fedavg"}))
    small["train"] = {**train, **_mini_train(train, images_per_client)}
    small["probe"] = {**values.get("probe", {}), "every": 5, "k": 20, "epochs": 50}
    if clients * values.get("topology", {}).get("participation", 1) < 2:
        # So few clients take part that some rounds have a single one.
        small["guard"] = {**values.get("guard", {}), "min_uploads": 1}
    return small


def _mini_partition(partition: Values, clients: int) -> Values:
    partition_class = settings_class("partition", partition["name"])
    if partition_class.brings_clients:  # type: ignore[attr-defined]
        # The images of fashion-mini have no owners: they are sorted by class instead.
        return {"name": "skew", "beta": 0.0}
    small = copy.deepcopy(partition)
    if "balanced" in partition_class.model_fields:
        small["balanced"] = True  # otherwise some client may get too few of so few images
        small.pop("capped", None)
    if "share" in small:
        small["share"] = max(small["share"], 0.1)
    if "per_client" in small:
        small["per_client"] = _mini_classes(small["per_client"], clients)
    return small


def _mini_classes(per_client: int, clients: int) -> int:
    """Return the number of classes of a client, such that each class has as many clients."""
    if per_client > CLASSES:  # of a data set with a hundred classes
        per_client //= 10
    candidates = range(max(1, per_client), CLASSES + 1)
    return next(n for n in candidates if clients * n % CLASSES == 0)


def _mini_method(method: Values) -> Values:
    fields = settings_class("method", method["name"]).model_fields
    backbone = BACKBONES[method.get("backbone", fields["backbone"].default)]
    small = _capped("method", method)
    for key, size in HEADS.items():
        if key in fields:
            small[key] = size
    small["backbone"] = "vit_mini" if issubclass(backbone, ViT) else "cnn"
    small["stem"] = "cifar"
    if "classes" in fields:
        small["classes"] = CLASSES
    small["augment"] = _mini_augment(method.get("augment", {}), fields["augment"].default)
    small.pop("init", None)
    small.pop("view_size", None)
    return small


def _mini_augment(augment: Values, defaults: Iterable[tuple[str, Any]]) -> Values:
    """Return weaker views, without changes of colour: the images are grey."""
    views = {**dict(defaults), **augment}
    jitter = [min(strength, 0.4) for strength in views["jitter"][:2]]
    return {**augment, "crop": [0.5, 1.0], "jitter": [*jitter, 0.0, 0.0], "gray": 0.0}


def _mini_train(train: Values, images: float) -> Values:
    """Return the training settings of the demo.

    A client has at least four batches, unless that would need batches smaller than 16.
    """
    batch = max(16, 2 ** int(images / 4).bit_length() // 2)
    batch = min(batch, train.get("batch", 128), 128)
    return {"epochs": 1, "batch": batch, "optimizer": "adam", "lr": 0.004, "weight_decay": 0.0}


def _capped(table: str, values: Values) -> Values:
    """Return a copy in which the sizes that the choice has are at most MAX_SIZES."""
    fields = settings_class(table, values["name"]).model_fields
    capped = dict(values)
    for key, most in MAX_SIZES.items():
        if key in fields:
            capped[key] = min(values.get(key, fields[key].default), most)
    return capped


# By the suffix of a recipe's name.
MAKERS: Mapping[str, Callable[[Values], Values]] = {"short": short, "mini": mini}
