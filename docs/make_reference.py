"""Generate the pages in docs/reference: every key of an experiment, and every command.

    python docs/make_reference.py          write experiment.md and cli.md
    python docs/make_reference.py --print  print them

experiment.md is made from the settings classes, cli.md from the commands (cli_reference.py).

A key's meaning is the comment on its statement in the source or on the lines above it, or, where
there is none, an entry of MEANINGS in reference_words.py. A key without a meaning, or a meaning
without a key, is an error.
"""

from __future__ import annotations

import inspect
import json
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from cli_reference import command_page
from field_comments import field_comments
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from reference_words import INTRO, MEANINGS, WORDS

from fedssl.algorithm import ALGORITHMS, Algorithm
from fedssl.data import PARTITIONS, SOURCES, Partition, Public, Source
from fedssl.engine.means.mean_settings import MEANS, MeanSettings
from fedssl.engine.privacy.settings import PrivacySettings
from fedssl.engine.uploads.settings import GuardSettings
from fedssl.experiment.experiment import Experiment
from fedssl.method import METHODS, MethodSettings
from fedssl.nets import BACKBONES, AdapterSettings
from fedssl.probes import ProbeSettings
from fedssl.topologies.topology import TOPOLOGIES, Topology
from fedssl.training.trainer import TrainSettings
from fedssl.views import Augment

FOLDER = Path(__file__).parent / "reference"


def comments(cls: type[BaseModel]) -> dict[str, str]:
    """Return the comment on each field of a class: in its statement, or on the lines above it."""
    return field_comments(textwrap.dedent(inspect.getsource(cls)))


def inherited(cls: type[BaseModel]) -> list[str]:
    """Return the prefixes in MEANINGS of the algorithms that an algorithm inherits from."""
    known = {ALGORITHMS[name]: name for name in ALGORITHMS.names()}
    return [f"algorithm.{known[parent]}." for parent in cls.__mro__[1:] if parent in known]


class Meanings:
    """Look up meanings, and record in `unused` which entries of MEANINGS were never looked up."""

    def __init__(self) -> None:
        self.unused = set(MEANINGS)

    def find(self, cls: type[BaseModel], key: str, places: list[str]) -> str:
        """Return the meaning of a key; exit with an error if it has none."""
        for place in [*places, *inherited(cls)]:
            if f"{place}{key}" in MEANINGS:
                self.unused.discard(f"{place}{key}")
                return MEANINGS[f"{place}{key}"]
        for owner in cls.__mro__:
            if key in vars(owner).get("__annotations__", {}):
                if words := comments(owner).get(key):
                    return words.replace("None:", "none:")
                break
        raise SystemExit(
            f"{places[0]}{key} is not documented: add a comment to its line, or an entry to "
            "MEANINGS"
        )


def type_words(annotation: Any, metadata: Any = ()) -> str:
    """Describe a type by the values that a user may write."""
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
    """Return a class's own docstring as one paragraph, or the first paragraph of its module's."""
    if text := vars(cls).get("__doc__"):
        return " ".join(inspect.cleandoc(text).split())
    return " ".join((sys.modules[cls.__module__].__doc__ or "").partition("\n\n")[0].split())


def choices(
    table: str, registry: Any, base: type[BaseModel], common: str, meanings: Meanings
) -> Iterator[str]:
    """Describe a table with a `name`: the keys that all choices share, then each choice's own."""
    shared = list(base.model_fields)
    if shared:
        yield f"{common}\n\n{rows(base, shared, [f'{table}.'], meanings)}"
    for name in registry.names():
        cls = registry[name]
        if not cls.__module__.startswith("fedssl."):  # a plugin that happens to be installed
            continue
        settings = cls.Settings if hasattr(cls, "Settings") else cls
        changed = [
            k
            for k, f in settings.model_fields.items()
            if k not in shared or differs(f, base.model_fields[k])
        ]
        yield f"### `name = {json.dumps(name)}`"
        yield WORDS.get(f"{table}.{name}") or first_words(cls)
        places = [f"{table}.{name}.", *([f"{table}.moco."] if name.startswith("moco") else [])]
        yield rows(settings, changed, places, meanings) if changed else "No further keys."


def differs(field: FieldInfo, base: FieldInfo) -> bool:
    return bool(default_words(field) != default_words(base))


def backbones() -> str:
    lines = ["| backbone | features | description |", "|---|---|---|"]
    for name in BACKBONES.names():
        cls = BACKBONES[name]
        if cls.__module__.startswith("fedssl."):
            words = first_words(cls).partition(". ")[0]
            lines.append(f"| `{name}` | {cls(3, 'cifar').dim} | {words.rstrip('.')} |")
    return "\n".join(lines)


def sections(meanings: Meanings) -> Iterator[str]:
    yield INTRO
    yield "## Top level"
    yield rows(Experiment, ["seed", "rounds", "clients"], [""], meanings)
    yield "## `[data]`"
    yield "Required. The data set."
    yield from choices("data", SOURCES, Source, "Every data set has these keys.", meanings)
    yield "## `[partition]`"
    yield 'How training images are assigned to clients. Default: `name = "iid"`.'
    yield from choices("partition", PARTITIONS, Partition, "", meanings)
    yield "## `[method]`"
    yield "Required. The method, its backbone and its views."
    yield from choices("method", METHODS, MethodSettings, "Every method has these keys.", meanings)
    yield "### `[method.augment]`"
    yield first_words(Augment)
    yield rows(Augment, list(Augment.model_fields), ["method.augment."], meanings)
    yield "### `[method.adapters]`"
    yield (
        "[Low-rank adapters](../how-to/adapters.md) of the backbone of `method.init`. Without this "
        "table all weights are trained."
    )
    yield rows(AdapterSettings, list(AdapterSettings.model_fields), ["method.adapters."], meanings)
    yield "### Backbones"
    yield backbones()
    yield "## `[algorithm]`"
    yield 'The federated algorithm. Default: `name = "fedavg"`.'
    yield from choices(
        "algorithm", ALGORITHMS, Algorithm, "Every algorithm has these keys.", meanings
    )
    yield "## `[topology]`"
    yield 'Which sites merge which uploads. Default: `name = "star"`.'
    yield from choices("topology", TOPOLOGIES, Topology, "", meanings)
    yield "## `[mean]`"
    yield (
        "How a site averages models: the weighted mean, or a robust one that limits what "
        '[bad clients](../how-to/bad-clients.md) can do. Default: `name = "weighted"`.'
    )
    yield from choices("mean", MEANS, MeanSettings, "", meanings)
    yield "## `[public]`"
    yield (
        "Images that every client may see, for algorithms that need them; others ignore the table "
        'with a message. The default, `name = "held-out"`, excludes training images from '
        "pre-training, drawn with the run's seed. Any other name is a data set with its keys under "
        "`[data]`, except `mean`, `std`, `holdout` and `leave_out`, which are set there. "
        "See [public images](../how-to/own-images.md#add-public-images)."
    )
    yield rows(Public, ["images"], ["public."], meanings)
    yield "## `[train]`"
    yield first_words(TrainSettings)
    yield rows(TrainSettings, list(TrainSettings.model_fields), ["train."], meanings)
    yield "## `[guard]`"
    yield (
        "Checks on uploads, in addition to the algorithm's schema and finite values. "
        '`preset = "strict"`, or `guard = "strict"` without a table, sets tighter limits, '
        "[with these values](../how-to/bad-clients.md#the-strict-guard); keys next to it replace "
        "them. See [guarantees](../explanation/guarantees.md#uploads)."
    )
    yield rows(GuardSettings, list(GuardSettings.model_fields), ["guard."], meanings)
    yield "## `[privacy]`"
    yield (
        "Client-level differential privacy, off unless `clip` is set. "
        "See [differential privacy](../how-to/differential-privacy.md)."
    )
    yield rows(PrivacySettings, list(PrivacySettings.model_fields), ["privacy."], meanings)
    yield "## `[probe]`"
    yield "How the backbone is measured. These settings never affect training."
    yield rows(ProbeSettings, list(ProbeSettings.model_fields), ["probe."], meanings)


def experiment_page() -> str:
    """Return the page on the keys of an experiment."""
    meanings = Meanings()
    text = "\n\n".join(sections(meanings)) + "\n"
    if meanings.unused:
        raise SystemExit(
            f"MEANINGS has keys that no setting has: {', '.join(sorted(meanings.unused))}"
        )
    return text


def pages() -> dict[str, str]:
    """Return all generated pages by file name."""
    return {"experiment.md": experiment_page(), "cli.md": command_page()}


if __name__ == "__main__":
    for name, text in pages().items():
        if "--print" in sys.argv:
            print(text, end="")
        else:
            (FOLDER / name).write_text(text, encoding="utf-8")
