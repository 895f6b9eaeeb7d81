"""Frozen settings, and registries that find them by name.

Everything an experiment chooses by `name` (a data set, a partition, a method, an algorithm, a topology) is a
frozen `Settings` value, found in a `Registry`. Unknown names and unknown keys are refused with the nearest match.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from fedssl.errors import ConfigError

T = TypeVar("T")
S = TypeVar("S", bound="Settings")

LARGEST = 1_000_000_000  # the bound of every number that has no upper bound of its own
LARGEST_VIEW = 4096  # pixels a side


class Settings(BaseModel):
    """Hyper-parameters only: validated, immutable, hashable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False, validate_default=True)

    @field_validator("*")
    @classmethod
    def _no_larger_than_any_use(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse numbers that overflow a float32, a 64-bit integer or the memory of any machine."""
        field = cls.model_fields[info.field_name or ""]
        if not any(hasattr(limit, "le") or hasattr(limit, "lt") for limit in field.metadata):
            _check_magnitude(value)
        return value


def _check_magnitude(value: Any) -> None:
    if isinstance(value, tuple):
        for item in value:
            _check_magnitude(item)
    elif isinstance(value, int | float) and LARGEST < abs(value) < math.inf:
        raise ValueError(f"input should be at most {LARGEST:,} in magnitude")


def suggest(word: str, known: Iterable[str]) -> str:
    """`, did you mean "x"?` where something known is close to the word, else an empty string."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f', did you mean "{close[0]}"?' if close else ""


def validate(cls: type[S], values: Mapping[str, Any], where: str = "") -> S:
    """Build settings from plain values; the first problem becomes one sentence naming the key.

    `where` is the dotted place of the table, e.g. `algorithm`.
    """
    try:
        return cls.model_validate(dict(values))
    except ValidationError as failure:
        raise ConfigError(explain(cls, failure, where)) from None


def explain(cls: type[BaseModel], failure: ValidationError, where: str = "") -> str:
    first = _first(failure)
    path = [str(part) for part in first["loc"]]
    key = ".".join([*([where] if where else []), *path])
    if first["type"] == "extra_forbidden":
        owner = _owner(cls, path[:-1])
        hint = suggest(path[-1], owner.model_fields) or (
            f"; known: {', '.join(owner.model_fields)}" if owner.model_fields else ""
        )
        return f'unknown key "{key}"{hint}'
    message = first["msg"].removeprefix("Value error, ").replace("valid tuple", "list")  # as a user writes it
    message = message[:1].lower() + message[1:]
    whole = isinstance(first["input"], Mapping | BaseModel)  # the table itself, where a rule spans several keys
    given = "" if first["type"] == "missing" or whole else f" (got {_abbreviated(first['input'])})"
    return f"{key or 'experiment'}: {message}{given}"


def _abbreviated(value: Any) -> str:
    """`repr` of a value as given by a user, in at most 100 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of more than 4,300 digits
        return "an integer of thousands of digits"
    return text if len(text) <= 100 else f"{text[:97]}..."


def _first(failure: ValidationError) -> Any:
    """The first problem; where a number may be whole or not, what is wrong with it as a number."""
    errors = failure.errors()
    place = errors[0]["loc"][:-1]
    numbers = [error for error in errors if error["loc"] in ((*place, "int"), (*place, "float"))]
    return {**numbers[-1], "loc": place} if numbers[1:] else errors[0]


def _owner(cls: type[BaseModel], path: list[str]) -> type[BaseModel]:
    for part in path:
        field = cls.model_fields.get(part)
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            break
        cls = field.annotation
    return cls


class Unknown(ConfigError):  # noqa: N818 - a name, not a mishap
    """A name that no registered class has."""

    def __init__(self, noun: str, group: str, name: str, known: list[str]) -> None:
        others = f"; known: {', '.join(known)}, and yours once their module is imported or installed as a plugin"
        super().__init__(f'unknown {noun} "{name}"{suggest(name, known) or others}')
        self.noun, self.group, self.name = noun, group, name


class Registry(Generic[T]):
    """Classes by name: those of the package, and those other packages announce as entry points."""

    def __init__(self, noun: str, group: str) -> None:
        self.noun, self.group = noun, group
        self._classes: dict[str, type[T]] = {}

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        def add(cls: type[T]) -> type[T]:
            if self._classes.setdefault(name, cls) is not cls:
                raise ValueError(f'{self.noun} "{name}" is registered twice')
            return cls

        return add

    def names(self) -> list[str]:
        return sorted({*self._classes, *(point.name for point in entry_points(group=self.group))})

    def __getitem__(self, name: str) -> type[T]:
        if name not in self._classes:
            for point in entry_points(group=self.group, name=name):
                self._classes[name] = self._loaded(point)
        if name not in self._classes:
            raise Unknown(self.noun, self.group, name, self.names())
        return self._classes[name]

    def _loaded(self, point: EntryPoint) -> type[T]:
        """A plugin's class. Whatever its code raises is the plugin's fault, and is said to be."""
        try:
            cls: type[T] = point.load()
        except Exception as problem:
            owner = f" of the package {point.dist.name}" if point.dist is not None else ""
            raise ConfigError(
                f'{self.noun} "{point.name}" is a plugin{owner}, and {point.value} cannot be loaded: '
                f"{type(problem).__name__}: {problem}"
            ) from problem
        return cls

    def name_of(self, cls: type[Any]) -> str:
        return next(name for name, known in self._classes.items() if known is cls)
