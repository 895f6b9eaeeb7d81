"""Frozen settings, and registries that find classes by name.

Everything that an experiment chooses by `name` (a data set, a partition, a method, an algorithm, a
topology) is a frozen `Settings` value, found in a `Registry`. Unknown names and unknown keys are
errors that name the nearest match.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Generic, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fedssl.core.errors import ConfigError
from fedssl.core.suggestions import suggest
from fedssl.core.wrong_keys import WrongKey, WrongKeysError

T = TypeVar("T")
S = TypeVar("S", bound="Settings")

LARGEST = 1_000_000_000  # the bound of every number without an explicit upper bound
LARGEST_VIEW = 4096  # pixels a side


class Settings(BaseModel):
    """Hyper-parameters: validated, immutable and hashable; unknown keys are errors.

    A pydantic model: a subclass declares a field with its type and default, and with `Field` its
    bounds, e.g. `tau: float = Field(0.7, ge=0)`. Numbers are finite and below 10⁹ unless a field
    has other bounds.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=False, allow_inf_nan=False, validate_default=True
    )

    # Fields whose name was changed, with the name in earlier versions, which is still accepted.
    earlier_names: ClassVar[Mapping[str, str]] = {}
    # Fields that earlier versions did not have; at its default, such a field is not part of the
    # hash of an experiment.
    added_later: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _accept_earlier_names(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        present = {earlier: name for name, earlier in cls.earlier_names.items()}
        renamed = {}
        # If both names are set, the later entry applies: it is a change to the other one.
        for key, value in values.items():
            renamed[present.get(key, key)] = value
        return renamed

    @field_validator("*")
    @classmethod
    def _limit_magnitude(cls, value: Any, info: ValidationInfo) -> Any:
        """Reject numbers that overflow a float32, a 64-bit integer or the memory of any machine."""
        field = cls.model_fields[info.field_name or ""]
        bounded = any(hasattr(limit, "le") or hasattr(limit, "lt") for limit in field.metadata)
        if not bounded:
            _check_magnitude(value)
        return value


def _check_magnitude(value: Any) -> None:
    """Raise ValueError if a number, or a number in a tuple, is larger than LARGEST."""
    if isinstance(value, tuple):
        for item in value:
            _check_magnitude(item)
    elif isinstance(value, int | float) and LARGEST < abs(value) < math.inf:
        raise ValueError(f"input should be at most {LARGEST:,} in magnitude")


def validate(cls: type[S], values: Mapping[str, Any], where: str = "") -> S:
    """Return settings built from plain values.

    Raise ConfigError for all unknown and missing keys, or else for the first wrong value. `where`
    is the dotted name of the table, e.g. `algorithm`.
    """
    try:
        return cls.model_validate(dict(values))
    except ValidationError as failure:
        raise explain(cls, failure, where) from None


def explain(
    cls: type[BaseModel],
    failure: ValidationError,
    where: str = "",
    elsewhere: Mapping[str, bool] | None = None,
) -> ConfigError:
    """Return the error for a user: all unknown and missing keys, or else the first wrong value.

    `elsewhere` holds the known keys of other tables, which are suggested too (see `known_keys`).
    """
    wrong = _wrong_keys(cls, failure, where)
    if wrong:
        return WrongKeysError(wrong, elsewhere)
    problem = _first_problem(failure)
    key = _dotted(where, problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    message = message.replace("valid tuple", "list")  # the term of TOML
    message = message[:1].lower() + message[1:]
    # A rule that spans several keys has the whole table as its input.
    is_table = isinstance(problem["input"], Mapping | BaseModel)
    if not is_table and problem["type"] != "missing":
        message += f" (got {_abbreviate(problem['input'])})"
    return ConfigError(f"{key}: {message}" if key else message)


def _wrong_keys(cls: type[BaseModel], failure: ValidationError, where: str) -> list[WrongKey]:
    """Return the unknown and missing keys in a failed validation, also those of inner tables."""
    wrong: list[WrongKey] = []
    for problem in failure.errors():
        cause = problem.get("ctx", {}).get("error")
        if isinstance(cause, WrongKeysError):
            wrong.extend(cause.wrong)
            continue
        path = problem["loc"]
        missing = problem["type"] == "missing"
        unknown = problem["type"] == "extra_forbidden"
        if not (missing or unknown) or not isinstance(path[-1], str):  # an item of a list
            continue
        table = _model_at(cls, path[:-1])
        siblings = known_keys(table, _dotted(where, path[:-1]), levels=1)
        key = _dotted(where, path)
        is_table = siblings.get(key, isinstance(problem["input"], Mapping))
        wrong.append(WrongKey(key, missing, is_table, siblings))
    return wrong


def known_keys(cls: type[BaseModel], where: str = "", levels: int = 2) -> dict[str, bool]:
    """Return the dotted names of settings, with True for those that are tables."""
    keys = {}
    for name in cls.model_fields:
        key = _dotted(where, [name])
        inner = _model_at(cls, [name])
        keys[key] = inner is not cls
        if keys[key] and levels > 1:
            keys |= known_keys(inner, key, levels - 1)
    return keys


def _dotted(where: str, path: Sequence[int | str]) -> str:
    return ".".join(filter(None, [where, *map(str, path)]))


def _abbreviate(value: Any) -> str:
    """Return the `repr` of a user's value in at most 100 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of more than 4,300 digits
        return "an integer of thousands of digits"
    return text if len(text) <= 100 else f"{text[:97]}..."


def _first_problem(failure: ValidationError) -> Any:
    """Return the first error; for a field of type `int | float`, its error as a float."""
    errors = failure.errors()
    location = errors[0]["loc"][:-1]
    as_number = [(*location, "int"), (*location, "float")]
    number_errors = [error for error in errors if error["loc"] in as_number]
    if len(number_errors) > 1:
        return {**number_errors[-1], "loc": location}
    return errors[0]


def _model_at(cls: type[BaseModel], path: Sequence[int | str]) -> type[BaseModel]:
    """Return the model that a path of field names leads to, as far as it does."""
    for name in path:
        field = cls.model_fields.get(str(name))
        if field is None:
            break
        choices = (field.annotation, *get_args(field.annotation))  # a table, or a table or None
        tables = [
            each for each in choices if isinstance(each, type) and issubclass(each, BaseModel)
        ]
        if not tables:
            break
        cls = tables[0]
    return cls


class UnknownNameError(ConfigError):
    """A name that no registered class has."""

    def __init__(self, noun: str, group: str, name: str, known: list[str]) -> None:
        hint = suggest(name, known) or (
            f"; known: {', '.join(known)}, "
            "and yours once their module is imported (--import FILE) or installed as a plugin"
        )
        super().__init__(f'unknown {noun} "{name}"{hint}')
        self.noun = noun
        self.group = group
        self.name = name


def _is_own(cls: type[Any]) -> bool:
    """True for a class of this package."""
    return cls.__module__.partition(".")[0] == __name__.partition(".")[0]


def _full_name(cls: type[Any]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


class Registry(Generic[T]):
    """Classes by name: those of this package, of imported modules, and of entry points.

    `registry["name"]` returns a class. For an unknown name it raises UnknownNameError, a
    ConfigError with the nearest known name. Iteration yields the names, sorted, without loading
    plugins.

    The modules in `modules` register the package's own classes. They are imported on first lookup,
    so that a lookup works whatever was imported before.
    """

    def __init__(self, noun: str, group: str, modules: Sequence[str] = ()) -> None:
        self.noun = noun
        self.group = group
        self._modules = list(modules)
        self._classes: dict[str, type[T]] = {}

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Return a decorator that registers a class under a name.

        A class that is defined again, as by a cell of a notebook, replaces its earlier definition.
        Raise ConfigError if another class has the name.
        """

        def add(cls: type[T]) -> type[T]:
            if not _is_own(cls):
                self._import_modules()  # so that a user's class cannot take a name of the package
            other = self._classes.get(name, cls)
            if _full_name(other) != _full_name(cls):
                raise ConfigError(
                    f'{self.noun} "{name}" is registered twice, by {_full_name(other)} and by '
                    f"{_full_name(cls)}: choose another name"
                )
            self._classes[name] = cls
            return cls

        return add

    def names(self) -> list[str]:
        """Return all names, sorted; plugins are not loaded."""
        self._import_modules()
        plugins = {point.name for point in entry_points(group=self.group)}
        return sorted(plugins.union(self._classes))

    def __getitem__(self, name: str) -> type[T]:
        if name not in self._classes:
            self._import_modules()
        if name not in self._classes:
            for point in entry_points(group=self.group, name=name):
                self._classes[name] = self._load(point)
        if name not in self._classes:
            raise UnknownNameError(self.noun, self.group, name, self.names())
        return self._classes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def _import_modules(self) -> None:
        while self._modules:
            import_module(self._modules.pop())

    def _load(self, point: EntryPoint) -> type[T]:
        """Return a plugin's class; raise ConfigError that names the plugin for any error in it."""
        try:
            cls: type[T] = point.load()
        except Exception as problem:
            owner = f" of the package {point.dist.name}" if point.dist is not None else ""
            raise ConfigError(
                f'{self.noun} "{point.name}" is a plugin{owner}, '
                f"but {point.value} cannot be loaded: {type(problem).__name__}: {problem}"
            ) from problem
        return cls

    def name_of(self, cls: type[Any]) -> str:
        """Return the name under which a class is registered."""
        return next(name for name, known in self._classes.items() if known is cls)
