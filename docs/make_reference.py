"""Write docs/reference/experiment.md: every key of an experiment, from the settings classes themselves.

    python docs/make_reference.py          write the page
    python docs/make_reference.py --print  print it

A key's meaning is the comment on its line in the source, or an entry of MEANINGS below where the line has none. A key
without a meaning, or a meaning without a key, is an error.
"""

from __future__ import annotations

import inspect
import io
import json
import re
import sys
import textwrap
import tokenize
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fedssl.algorithm import ALGORITHMS, Algorithm
from fedssl.data import PARTITIONS, SOURCES, Partition, Public, Source
from fedssl.experiment import Experiment
from fedssl.method import METHODS, MethodSettings
from fedssl.nets import BACKBONES
from fedssl.probes import ProbeSettings
from fedssl.topology import TOPOLOGIES, Topology
from fedssl.train import TrainSettings
from fedssl.views import Augment

PAGE = Path(__file__).parent / "reference" / "experiment.md"

MEANINGS = {
    "seed": "every random stream of the run derives from it",
    "rounds": "rounds of training",
    "clients": "clients that the partition deals images to; 0: as many as the data (`natural`) or the file (`listed`) "
    "brings, other partitions need a number",
    "data.mean": "per channel, of pixels / 255; none: pixels are not normalised",
    "data.holdout": "this many training images, drawn blindly, take the place of the test images; "
    "[choose settings on them](../how-to/choose-settings.md)",
    "data.leave_out": "share of the training images, as many of each class, drawn by the seed, that no client gets: "
    "for [fine-tuning](../how-to/evaluate.md#semi)",
    "data.folder.bad_share": "largest share of a client's files (or of all) that may be unreadable; more is an error",
    "data.std": "per channel, comes with `mean`",
    "data.folder.path": "the folder, looked up in the data directory (`--data-dir`), then in the current one",
    "data.folder.size": "side of the square every image is scaled to, in pixels",
    "data.folder.layout": "what the folders directly inside stand for; `clients-classes`: a folder per class in each "
    "client's; `flat`: nothing",
    "data.folder.channels": "1: grey, 3: RGB",
    "data.folder.test": "another folder, looked up likewise, with one folder per class: labelled test images",
    "data.npz.path": "the archive, looked up in the data directory (`--data-dir`), then in the current one",
    "data.stl10.part": "which images to train on; only those of `train` have labels",
    "partition.quantity.shares": "each client's share of all images; either this or `alpha`",
    "partition.quantity.alpha": "shares are drawn from Dirichlet(`alpha`); small: very unequal",
    "partition.listed.path": "the JSON file, from the current directory; `fedssl partition --save` writes one",
    "partition.classes.per_client": "classes each client holds",
    "partition.classes.shuffled": "put the classes in a random order first",
    "partition.dirichlet.alpha": "small: clients differ much in their classes",
    "partition.dirichlet.balanced": "all clients hold equally many images",
    "partition.skew.beta": "0: sorted by class, 1: all clients alike",
    "method.backbone": "the network that is kept; see below",
    "method.stem": "how a ResNet meets its images: `cifar` keeps their resolution (3x3 convolution of stride 1, no "
    "max-pooling) and draws the first weights as torch does, `imagenet` quarters it and draws them as torchvision "
    "does; of a ViT, how many pixels make a patch",
    "method.view_size": "side of the views, in pixels; none: the images' own",
    "method.init": "a safetensors file, from the current directory, to start the backbone from; torchvision's and "
    "timm's names are known",
    "method.augment": "how views are made; the table `[method.augment]` below",
    "method.byol.hidden": "width of the heads' hidden layer",
    "method.byol.dim": "width of projections and predictions",
    "method.byol.momentum": "of the target: target ← momentum · target + (1 − momentum) · online, after every step",
    "method.deepcluster.hidden": "width of the projector's hidden layer",
    "method.deepcluster.dim": "width of projections",
    "method.deepcluster.temperature": "of the softmax over clusters",
    "method.dino.hidden": "width of the head's two hidden layers",
    "method.dino.momentum": "of the teacher, after every step",
    "method.mae.backbone": "a vision transformer",
    "method.simclr.hidden": "width of the projector's hidden layer",
    "method.simclr.dim": "width of projections",
    "method.simclr.temperature": "of the softmax over similarities",
    "method.barlow.hidden": "width of the projector's hidden layers",
    "method.barlow.dim": "width of projections",
    "method.vicreg.hidden": "width of the projector's hidden layers",
    "method.vicreg.dim": "width of projections",
    "method.simsiam.hidden": "width of the heads' hidden layer",
    "method.simsiam.dim": "width of projections and predictions",
    "method.swav.hidden": "width of the projector's hidden layer",
    "method.swav.dim": "width of projections and prototypes",
    "method.swav.temperature": "of the softmax over prototypes",
    "method.moco.dim": "width of projections",
    "method.moco.momentum": "of the key encoder, after every step",
    "method.moco.temperature": "of the softmax over similarities",
    "method.mocov1.augment": "as in `[method.augment]`, with weaker jitter",
    "method.mocov2.hidden": "width of the head's hidden layer; none: as wide as the backbone's features",
    "method.mocov2.temperature": "of the softmax over similarities",
    "method.augment.flip": "probability of a mirror image",
    "method.augment.jitter": "strengths of brightness, contrast, saturation, hue",
    "method.augment.jitter_p": "probability of the jitter",
    "method.augment.gray": "probability of turning grey",
    "method.augment.blur": "probability of a Gaussian blur",
    "method.augment.crop": "the crop's share of the image's area is drawn from here",
    "method.augment.ratio": "width : height of the crop is drawn from here",
    "method.augment.blur_kernel": "taps of the blur, an odd number; none: about a tenth of the side",
    "method.augment.blur_sigma": "the blur's standard deviation in pixels is drawn from here",
    "algorithm.weights": "how a server weighs its clients: by their number of images, or all alike",
    "algorithm.fedavg.aggregate": "which network is averaged; both: each with its own kind",
    "algorithm.fedavg.predictor": "whether the predictor travels and is averaged, or stays with its client",
    "topology.star.participation": "share of the clients asked in a round, drawn at random, at least one",
    "train.schedule": "of the learning rate over rounds; inside a round it is constant. `step`: × 0.3 at 30, 60 and "
    "90% of the rounds",
    "train.epochs": "passes over a client's images in a round",
    "train.batch": "images in a step; a client with fewer trains on one smaller batch",
    "train.optimizer": "begins afresh in every round",
    "train.lr": "the learning rate at the start of the run",
    "train.momentum": "of `sgd`",
    "train.weight_decay": "decoupled with `adamw`",
    "train.memory": "where what clients keep to themselves lies between their turns: on the device, in host memory, or "
    "in the run directory; `auto`: the first of these with room for all clients",
    "probe.k": "neighbours of the kNN probe",
    "probe.temperature": "of the kNN probe: votes weigh exp(similarity / temperature)",
    "probe.epochs": "of the linear probe; none: the protocol's, 200 with `fedema`",
    "probe.lr": "of the linear probe; none: the protocol's, 0.003 with `fedema`",
    "probe.batch": "of the linear probe; none: the protocol's, 512 with `fedema`",
}

WORDS = {  # in place of a class's docstring
    "data.folder": "Image files in folders; every file counts, except hidden ones. A folder that holds nothing but "
    "`train` and `test` (or `val`) holds the two sets. [How files become pixels](../how-to/own-images.md).",
    "data.given": "Images passed from Python: `fedssl.run(…, dataset=…, test=…)`.",
    "data.npz": "A NumPy archive with uint8 images `x_train` (N, H, W, C) or (N, H, W) and, where there are any, "
    "`y_train`, `x_test`, `y_test`, and `owner_train` (N,), which names each image's client.",
}

INTRO = (
    "# Every key of an experiment\n\n"
    "<!-- Made by docs/make_reference.py from the settings classes: change those or it, and run it again. -->\n\n"
    "An experiment is one TOML file, or one `fedssl.Experiment`. `fedssl recipes NAME` prints a recipe with every "
    'default filled in. A key changes with `--set KEY=VALUE` on the command line, or `set={"KEY": VALUE}` in Python, '
    "by its dotted name, such as `train.lr` or `method.augment.crop`. Unknown keys and values out of range are refused "
    "before any image is read.\n\n"
    "A table that has a `name` has the keys of what it names. `--set method=byol` is short for "
    "`--set method.name=byol`; of the other keys in the table, those that the new choice knows keep their values, "
    "unless these only repeat the old choice's defaults. "
    "A key whose default is *none* has no value unless you give one, and is then left out of the file."
)


def comments(cls: type[BaseModel]) -> dict[str, str]:
    """The comment on each field's line in the class's own source."""
    source = textwrap.dedent(inspect.getsource(cls))
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        field = re.match(r"    (\w+): ", token.line)
        if token.type == tokenize.COMMENT and field:
            words = token.string.removeprefix("#").strip()
            if not words.startswith(("type:", "noqa")):
                found[field[1]] = words
    return found


def inherited(cls: type[BaseModel]) -> list[str]:
    """Places of the algorithms that an algorithm is made of."""
    known = {ALGORITHMS[name]: name for name in ALGORITHMS.names()}
    return [f"algorithm.{known[parent]}." for parent in cls.__mro__[1:] if parent in known]


class Meanings:
    """Looks meanings up, and knows which of MEANINGS were never asked for."""

    def __init__(self) -> None:
        self.unused = set(MEANINGS)

    def find(self, cls: type[BaseModel], key: str, places: list[str]) -> str:
        for place in [*places, *inherited(cls)]:
            if f"{place}{key}" in MEANINGS:
                self.unused.discard(f"{place}{key}")
                return MEANINGS[f"{place}{key}"]
        for owner in cls.__mro__:
            if key in vars(owner).get("__annotations__", {}):
                if words := comments(owner).get(key):
                    return words.replace("None:", "none:")
                break
        raise SystemExit(f"{places[0]}{key} has no meaning: add a comment to its line, or an entry to MEANINGS")


def type_words(annotation: Any, metadata: Any = ()) -> str:
    """A type as a user writes its values."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_words(arguments[0], (*arguments[1:], *metadata))
    if origin in (Union, types.UnionType):
        return " or ".join(type_words(a, metadata) for a in arguments if a is not type(None))
    if origin is Literal:
        return " or ".join(f"`{json.dumps(a)}`" for a in arguments)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return f"list: {type_words(arguments[0])}"
        words = [type_words(a) for a in arguments]
        return f"list of {len(words)}: " + (words[0] if len(set(words)) == 1 else ", ".join(words))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "table"
    names = {int: "integer", float: "number", bool: "`true` or `false`", str: "text", Path: "path"}
    return names[annotation] + bounds(metadata)


def bounds(metadata: Any) -> str:
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    limits = [
        f"{sign} {getattr(item, name):g}"
        for item in flatten(metadata)
        for name, sign in signs.items()
        if getattr(item, name, None) is not None
    ]
    return " " + ", ".join(limits) if limits else ""


def flatten(metadata: Any) -> Iterator[Any]:
    for item in metadata:
        yield from flatten(item.metadata) if isinstance(item, FieldInfo) else (item,)


def default_words(field: FieldInfo) -> str:
    if field.default is PydanticUndefined and field.default_factory is None:
        return "**required**"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None:
        return "none"
    if isinstance(value, Augment):
        changed = value.model_dump(mode="json", exclude_defaults=True)
        return ", ".join(f"`{key} = {json.dumps(v)}`" for key, v in changed.items()) or "as below"
    if isinstance(value, tuple):
        return f"`{json.dumps([round(v, 4) if isinstance(v, float) else v for v in value])}`"
    return f"`{json.dumps(value)}`"


def rows(cls: type[BaseModel], keys: list[str], places: list[str], meanings: Meanings) -> str:
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key in keys:
        field = cls.model_fields[key]
        words = [
            f"`{key}`",
            type_words(field.annotation, field.metadata),
            default_words(field),
            meanings.find(cls, key, places),
        ]
        lines.append("| " + " | ".join(word.replace("|", "\\|") for word in words) + " |")
    return "\n".join(lines)


def first_words(cls: type[Any]) -> str:
    """A class's own docstring as one paragraph, or the first of its module's."""
    if text := vars(cls).get("__doc__"):
        return " ".join(inspect.cleandoc(text).split())
    return " ".join((sys.modules[cls.__module__].__doc__ or "").partition("\n\n")[0].split())


def choices(table: str, registry: Any, base: type[BaseModel], common: str, meanings: Meanings) -> Iterator[str]:
    """A table with a `name`: the keys all choices share, then each choice with its own."""
    shared = list(base.model_fields)
    if shared:
        yield f"{common}\n\n{rows(base, shared, [f'{table}.'], meanings)}"
    for name in registry.names():
        cls = registry[name]
        if not cls.__module__.startswith("fedssl."):  # a plugin that happens to be installed
            continue
        settings = cls.Settings if hasattr(cls, "Settings") else cls
        changed = [k for k, f in settings.model_fields.items() if k not in shared or differs(f, base.model_fields[k])]
        yield f"### `name = {json.dumps(name)}`"
        yield WORDS.get(f"{table}.{name}") or first_words(cls)
        places = [f"{table}.{name}.", *([f"{table}.moco."] if name.startswith("moco") else [])]
        yield rows(settings, changed, places, meanings) if changed else "No keys of its own."


def differs(field: FieldInfo, base: FieldInfo) -> bool:
    return bool(default_words(field) != default_words(base))


def backbones() -> str:
    lines = ["| backbone | features | is |", "|---|---|---|"]
    for name in BACKBONES.names():
        cls = BACKBONES[name]
        if cls.__module__.startswith("fedssl."):
            words = first_words(cls).partition(". ")[0]
            lines.append(f"| `{name}` | {cls(3, 'cifar').dim} | {words.rstrip('.')} |")
    return "\n".join(lines)


def sections(meanings: Meanings) -> Iterator[str]:
    yield INTRO
    yield "## At the top"
    yield rows(Experiment, ["seed", "rounds", "clients"], [""], meanings)
    yield "## `[data]`"
    yield "Required. Where images come from."
    yield from choices("data", SOURCES, Source, "Every data set has these keys.", meanings)
    yield "## `[partition]`"
    yield 'How training images are dealt to clients; `name = "iid"` if the table is left out.'
    yield from choices("partition", PARTITIONS, Partition, "", meanings)
    yield "## `[method]`"
    yield "Required. The method, its backbone and its views."
    yield from choices("method", METHODS, MethodSettings, "Every method has these keys.", meanings)
    yield "### `[method.augment]`"
    yield first_words(Augment)
    yield rows(Augment, list(Augment.model_fields), ["method.augment."], meanings)
    yield "### Backbones"
    yield backbones()
    yield "## `[algorithm]`"
    yield 'How models are merged; `name = "fedavg"` if the table is left out.'
    yield from choices("algorithm", ALGORITHMS, Algorithm, "Every algorithm has these keys.", meanings)
    yield "## `[topology]`"
    yield 'Who merges what; `name = "star"` if the table is left out.'
    yield from choices("topology", TOPOLOGIES, Topology, "", meanings)
    yield "## `[public]`"
    yield (
        "Images that everybody may see, for algorithms that need some; others have no use for the table, and say so. "
        '`name = "held-out"`, if the table is left out, takes training images out of pre-training, drawn by the run\'s '
        "seed. Any other name is that of a data set, whose own keys are those under `[data]`; `mean`, `std`, "
        "`holdout` and `leave_out` have their place there. [More](../how-to/own-images.md#public-images)."
    )
    yield rows(Public, ["images"], ["public."], meanings)
    yield "## `[train]`"
    yield first_words(TrainSettings)
    yield rows(TrainSettings, list(TrainSettings.model_fields), ["train."], meanings)
    yield "## `[probe]`"
    yield "How the backbone is measured; what is set here never changes what is trained."
    yield rows(ProbeSettings, list(ProbeSettings.model_fields), ["probe."], meanings)


def page() -> str:
    meanings = Meanings()
    text = "\n\n".join(sections(meanings)) + "\n"
    if meanings.unused:
        raise SystemExit(f"MEANINGS has keys that no setting has: {', '.join(sorted(meanings.unused))}")
    return text


if __name__ == "__main__":
    if "--print" in sys.argv:
        print(page(), end="")
    else:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page(), encoding="utf-8")
