"""The settings of an experiment that may be published: no path, and no name of a client."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin

from fedssl.core.settings import Settings
from fedssl.experiment.experiment import Experiment

TABLES = ("partition", "method", "algorithm", "topology", "mean", "train", "guard")
NAMES = ("name", "backbone", "stem")  # of registered classes, which are part of the code
OWN_IMAGES = "the user's own images"
# Sources of the package whose name does not identify a published data set.
UNNAMED_DATA = ("folder", "given", "npz")


def public_settings(experiment: Experiment) -> dict[str, Any]:
    """Return the settings as nested plain values.

    Numbers, switches and words from a fixed list are included; any other text is left out, since it
    may be a path or a client's name. The seed is left out with [privacy]: who knows it knows which
    clients were drawn.
    """
    plain = experiment.to_dict()
    public: dict[str, Any] = {"rounds": experiment.rounds, "clients": experiment.clients}
    if experiment.privacy.enabled:
        public["privacy"] = _of_table(experiment.privacy, plain["privacy"])
    else:
        public["seed"] = experiment.seed
    public["data"] = data_name(experiment)
    for table in TABLES:
        public[table] = _of_table(getattr(experiment, table), plain[table])
    return public


def data_name(experiment: Experiment) -> str:
    """Return the name of a published data set, or that the images are a user's."""
    name: str = experiment.to_dict()["data"]["name"]
    published = type(experiment.data).__module__.startswith("fedssl.")
    if not published or name in UNNAMED_DATA:
        return OWN_IMAGES
    return name


def _of_table(settings: Settings, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a table that may be published."""
    public: dict[str, Any] = {}
    for key, value in values.items():
        nested = getattr(settings, key, None)
        if isinstance(nested, Settings) and isinstance(value, dict):
            public[key] = _of_table(nested, value)
        elif _is_public(type(settings), key, value):
            public[key] = value
    return public


def _is_public(settings: type[Settings], key: str, value: Any) -> bool:
    """True for numbers, switches, lists of numbers, and words from a fixed list."""
    if _is_number(value) or key in NAMES:
        return True
    if isinstance(value, list):
        return all(map(_is_number, value))
    field = settings.model_fields.get(key)
    return isinstance(value, str) and field is not None and value in _words(field.annotation)


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float)


def _words(annotation: Any) -> Iterable[Any]:
    """Return the words of all Literal types in an annotation."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    words: list[Any] = []
    for argument in get_args(annotation):
        words.extend(_words(argument))
    return words
