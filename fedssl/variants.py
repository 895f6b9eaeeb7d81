"""Variants of a recipe, by its name: NAME-short trains one epoch a round, NAME-mini is for a CPU.

Both are functions of the recipe's plain values, and neither compares the name of a method or an algorithm: what a
choice lets one set decides what is made smaller.
"""

from __future__ import annotations

import copy
from typing import Any

from fedssl.changes import merge_changes, settings_class
from fedssl.errors import ConfigError
from fedssl.nets import BACKBONES, ViT
from fedssl.recipes import VARIANTS, recipes
from fedssl.settings import suggest

Values = dict[str, Any]

IMAGES, CLASSES = 5000, 10  # of fashion-mini
HEADS = {"hidden": 256, "dim": 128}
# At most: a client of fashion-mini has a tenth of the images that those of the papers have.
SIZES = {
    "queue": 512,
    "prototypes": 50,
    "clusters": 20,
    "dictionary": 256,
    "features": 256,
    "remote": 1024,
    "candidates": 256,
    "aligned": 64,
}


def find(name: str) -> Values:
    """The plain values of a recipe, or of a variant of one."""
    known = recipes()
    recipe, _, variant = name.rpartition("-")
    if name in known:
        return copy.deepcopy(known[name].values)
    if variant in VARIANTS and recipe in known:
        return {"short": short, "mini": mini}[variant](known[recipe].values)
    near = suggest(name, [*known, *(f"{each}-{variant}" for each in known for variant in VARIANTS)])
    raise ConfigError(f'there is no recipe or file "{name}"{near or "; fedssl recipes lists them"}')


def short(values: Values) -> Values:
    """One epoch of local training a round, all else the same."""
    return merge_changes(values, {"train.epochs": 1})


def mini(values: Values) -> Values:
    """The same method, algorithm, topology and kind of partition on the images that come with the package."""
    clients = min(values.get("clients") or 5, 10)
    partition = _mini_partition(values.get("partition", {"name": "iid"}), clients)
    each = IMAGES / clients * partition.get("share", 1)
    guard = dict(values.get("guard", {}))
    if clients * values.get("topology", {}).get("participation", 1) < 2:
        guard["min_uploads"] = 1  # so few clients that some rounds have one
    return {
        **{key: value for key, value in copy.deepcopy(values).items() if key != "public"},
        "rounds": min(values.get("rounds", 100), 10),
        "clients": clients,
        "data": {"name": "fashion-mini"},
        "partition": partition,
        "method": _mini_method(values["method"]),
        "algorithm": _capped("algorithm", values.get("algorithm", {"name": "fedavg"})),
        "train": {**values.get("train", {}), **_mini_train(values.get("train", {}), each)},
        "probe": {**values.get("probe", {}), "every": 5, "k": 20, "epochs": 50},
        **({"guard": guard} if guard else {}),
    }


def _mini_partition(partition: Values, clients: int) -> Values:
    kind = settings_class("partition", partition["name"])
    if kind.brings_clients:  # type: ignore[attr-defined]  # fashion-mini has no owners: sorted by class instead
        return {"name": "skew", "beta": 0.0}
    small = copy.deepcopy(partition)
    if "balanced" in kind.model_fields:
        small["balanced"] = True  # of so few images no other draw may give everybody enough
    if "share" in small:
        small["share"] = max(small["share"], 0.1)
    if "per_client" in small:
        held = small["per_client"] if small["per_client"] <= CLASSES else small["per_client"] // 10  # of a hundred
        small["per_client"] = next(n for n in range(max(1, held), CLASSES + 1) if clients * n % CLASSES == 0)
    return small


def _mini_method(method: Values) -> Values:
    fields = settings_class("method", method["name"]).model_fields
    large = BACKBONES[method.get("backbone", fields["backbone"].default)]
    small = {**_capped("method", method), **{key: most for key, most in HEADS.items() if key in fields}}
    small |= {"backbone": "vit_mini" if issubclass(large, ViT) else "cnn", "stem": "cifar"}
    small |= {"classes": CLASSES} if "classes" in fields else {}
    views = {**dict(fields["augment"].default), **(method.get("augment", {}))}
    jitter = [min(strength, 0.4) for strength in views["jitter"][:2]]
    small["augment"] = {**method.get("augment", {}), "crop": [0.5, 1.0], "jitter": [*jitter, 0.0, 0.0], "gray": 0.0}
    return {key: value for key, value in small.items() if key not in ("init", "view_size")}


def _mini_train(train: Values, images: float) -> Values:
    """As the demo trains; a client has at least four batches, if they need not be smaller than 16."""
    batch = max(16, 2 ** int(images / 4).bit_length() // 2)
    batch = min(batch, train.get("batch", 128), 128)
    return {"epochs": 1, "batch": batch, "optimizer": "adam", "lr": 0.004, "weight_decay": 0.0}


def _capped(table: str, values: Values) -> Values:
    """With sizes that the choice knows at most what SIZES says."""
    fields = settings_class(table, values["name"]).model_fields
    sizes = {key: (values.get(key, fields[key].default), most) for key, most in SIZES.items() if key in fields}
    return {**values, **{key: min(size, most) for key, (size, most) in sizes.items()}}
