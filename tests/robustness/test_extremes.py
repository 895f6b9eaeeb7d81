"""P13: absurd sizes, counts and files give one line and an exit code, and no memory is allocated
for them.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

import numpy as np
import pytest
from error_messages import raises

import fedssl
from fedssl.core.errors import ConfigError, FedsslError, OutOfMemory
from fedssl.core.settings import LARGEST, Settings
from fedssl.core.wrong_keys import MAX_LISTED
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.overrides import CHOICES, settings_class

pytestmark = pytest.mark.rows("P13")

HUGE = 2**63


class Number(NamedTuple):
    """A setting that takes numbers: its dotted key, the changes that make it known, and its values'
    types.
    """

    key: str
    chosen: dict[str, Any]
    kinds: frozenset[type]
    items: int  # of a list of numbers; 0: a single number


def _kinds(annotation: Any) -> frozenset[type]:
    """Return int and float if they occur anywhere in a type."""
    if get_origin(annotation) in (Annotated, Union, types.UnionType, tuple):
        arguments = (
            get_args(annotation)[:1]
            if get_origin(annotation) is Annotated
            else get_args(annotation)
        )
        return frozenset().union(*map(_kinds, arguments))
    return frozenset({annotation}) & {int, float}


def _items(annotation: Any) -> int:
    for each in (annotation, *get_args(annotation)):
        if get_origin(each) is tuple:
            arguments = get_args(each)
            return 1 if arguments[-1] is Ellipsis else len(arguments)
    return 0


def _numbers(cls: type[Settings], prefix: str, chosen: dict[str, Any]) -> Iterator[Number]:
    for name, field in cls.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, Settings):
            yield from _numbers(annotation, f"{prefix}{name}.", chosen)
        elif name != "edges" and _kinds(
            annotation
        ):  # edges are pairs of clients, which may be numbers
            yield Number(f"{prefix}{name}", chosen, _kinds(annotation), _items(annotation))


def _every_number() -> Iterator[Number]:
    for key in ("seed", "rounds", "clients"):
        yield Number(key, {}, frozenset({int}), 0)
    for table in ("train", "guard", "probe"):
        annotation: Any = Experiment.model_fields[table].annotation
        yield from _numbers(annotation, f"{table}.", {})
    for table, registry in CHOICES.items():
        for name in registry.names():
            cls = settings_class(table, name)
            chosen = {f"{table}.name": name} | REQUIRED.get(f"{table}.{name}", {})
            yield from _numbers(cls, f"{table}.", chosen)


REQUIRED = {
    "data.folder": {"data.path": "x", "data.size": 8, "data.layout": "flat"},
    "data.npz": {"data.path": "x"},
    "public.folder": {"public.path": "x", "public.size": 8, "public.layout": "flat"},
    "public.npz": {"public.path": "x"},
    "partition.classes": {"partition.per_client": 1},
    "partition.clusters": {"partition.alpha": 1.0},
    "partition.dirichlet": {"partition.alpha": 1.0},
    "partition.quantity": {"partition.alpha": 1.0},
    "partition.listed": {"partition.path": "x"},
    "partition.rotation": {},
    "partition.skew": {"partition.beta": 0.5},
    "method.supervised": {"method.classes": 3},
    "topology.edges": {"topology.edges": [[0, 1]]},
}
NUMBERS = list(_every_number())


def _base() -> Experiment:
    return Experiment.from_dict(
        {"clients": 3, "data": {"name": "given"}, "method": {"name": "simclr"}}
    )


def test_the_table_has_every_numeric_setting() -> None:
    keys = {number.key for number in NUMBERS}
    assert len(NUMBERS) > 150
    assert {
        "train.lr",
        "method.hidden",
        "method.augment.crop",
        "data.mean",
        "partition.alpha",
        "probe.k",
    } <= keys


@pytest.mark.parametrize(
    "number", NUMBERS, ids=lambda number: f"{number.chosen.get(number.key, '')}{number.key}"
)
def test_every_number_has_a_bound(number: Number) -> None:
    """2⁶³, 1e308, NaN and infinity are refused everywhere; FedU's μ alone may be infinite."""
    base = _base().with_changes(number.chosen)
    absurd: list[float] = [HUGE, -HUGE, 10**400]
    if float in number.kinds:
        absurd += [1e308, -1e308, math.nan, math.inf]
    if number.chosen.get("algorithm.name") == "fedu" and number.key == "algorithm.mu":
        absurd.remove(math.inf)
    for value in absurd:
        with pytest.raises(ConfigError) as refused:
            base.with_changes({number.key: [value] * number.items if number.items else value})
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    "number", NUMBERS, ids=lambda number: f"{number.chosen.get(number.key, '')}{number.key}"
)
def test_small_and_largest_numbers_are_checked_without_memory(number: Number) -> None:
    """0, −1 and the largest number of any setting are accepted or refused in a sentence, before
    images are read. `check` builds the model without memory.
    """
    base = _base().with_changes(number.chosen)
    for value in (0, -1, LARGEST):
        with contextlib.suppress(ConfigError):
            changed = base.with_changes(
                {number.key: [value] * number.items if number.items else value}
            )
            changed.check()


# On the command line:
ABSURD = {
    "method.hidden=1000000000": "the model would have 5",
    "method.view_size=100000": "method.view_size: input should be less than or equal to 4096 (got 100000)",
    "train.lr=1e308": "train.lr: input should be at most 1,000,000,000 in magnitude (got 1e+308)",
    "train.threads=9223372036854775807": "train.threads: input should be less than or equal to 256",
    "train.workers=9223372036854775807": "train.workers: input should be less than or equal to 1024",
    "train.batch=9223372036854775807": "train.batch: input should be at most 1,000,000,000",
    f"rounds={'9' * 5000}": "rounds: ",
    f"train.lr={'[' * 5000}": "is nested too deeply",
    f"train.lr={'[' * 50}{']' * 50}": "is nested too deeply: no setting has more than 20 levels",
    f"{'a.' * 5000}a=1": "is nested too deeply: no setting has more than 20 levels",
}


@pytest.mark.parametrize("absurd", ABSURD, ids=lambda text: text[:40])
def test_absurd_settings_are_one_line(absurd: str, federation: Any, cli: Any) -> None:
    code, out, err = cli(*federation.command("run", "simclr", absurd)[3:])
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("fedssl: ")
    assert ABSURD[absurd] in err
    assert len(err) < 1000
    assert not (federation.root / "run").exists()


def test_the_largest_model_is_refused_in_python_too() -> None:
    images = np.zeros((8, 8, 8, 3), np.uint8)
    with raises(ConfigError):
        fedssl.run("demo", dataset=images, set={"method.hidden": LARGEST})
    with raises(ConfigError):
        fedssl.run("demo", dataset=images, set={"method": "autoencoder", "method.width": LARGEST})


TOML = {
    "deep list": f"x = {'[' * 20_000}",
    "deep table": f"{'a.' * 20_000}a = 1",
    "deep inline table": "x = " + "{a = " * 3000 + "1" + "}" * 3000,
    "long integer": f"rounds = {'9' * 5000}",
    "many keys": "\n".join(f"key{k} = {k}" for k in range(20_000)),
    "many tables": "\n".join(f"[table{k}]" for k in range(20_000)),
    "more than a megabyte": "# x\n" * 300_000,
}


@pytest.mark.parametrize("kind", TOML)
def test_absurd_files_are_refused_in_a_few_lines(kind: str, tmp_path: Path, cli: Any) -> None:
    """One line, or for thousands of unknown keys a heading, the first of them and their number."""
    path = tmp_path / "mine.toml"
    path.write_text(TOML[kind])
    code, _, err = cli("run", str(path), "--dir", str(tmp_path / "run"))
    assert code == 2
    assert err.count("\n") == (1 if not kind.startswith("many") else 1 + MAX_LISTED + 2 + 1)
    assert len(err) < 6000


def _limited(bytes: int) -> Any:
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (bytes, bytes))


def test_memory_that_runs_out_is_one_line(federation: Any) -> None:
    """A model of 4 GB in a process limited to 3: valid settings, but too large for the machine."""
    process = federation.start(
        "run", "simclr", "method.hidden=900000", "rounds=1", preexec_fn=_limited(3_000_000_000)
    )
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (5, "")
    assert err.splitlines()[-1].startswith("fedssl: ")
    assert "memory" in err.splitlines()[-1]
    assert "Traceback" not in err


def test_too_little_free_memory_is_detected_before_training(
    federation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and gradients in float32 and the two views of 8 images of 12 × 12 take more than a
    megabyte.
    """
    monkeypatch.setattr("fedssl.experiment.federation_setup.free_host_memory", lambda: 1_000_000)
    with raises(OutOfMemory):
        federation.here("run", "simclr", "rounds=1")


@pytest.mark.rows("P9")
def test_a_client_without_memory_on_a_cpu_is_dropped(
    federation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*_: Any, **__: Any) -> None:
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"
        )

    monkeypatch.setattr("fedssl.training.client.Client.train", train)
    with raises(FedsslError):
        federation.here("run", "simclr", "rounds=1")
    (record,) = federation.rounds("run")
    assert {client["dropped"] for client in record["clients"]} == {
        "the device is out of memory; try a smaller train.batch"
    }


def test_other_errors_of_torch_are_not_memory_errors(
    federation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*_: Any, **__: Any) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr("fedssl.training.client.Client.train", train)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        federation.here("run", "simclr", "rounds=1")


ASCII_ONLY = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}


@pytest.mark.parametrize(
    "args",
    [
        ("--help",),
        ("recipes", "FedEMA"),
        pytest.param(("reproduce", "--list"), marks=pytest.mark.slow),
        pytest.param(("combinations",), marks=pytest.mark.slow),
    ],
)
def test_standard_output_that_takes_ascii_only(args: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedssl", *args], capture_output=True, env=os.environ | ASCII_ONLY
    )
    assert (done.returncode, done.stderr) == (0, b""), args
    assert done.stdout.isascii()
    assert done.stdout
    assert b"\\" not in done.stdout  # no escapes


def test_a_locale_without_an_encoding_takes_ascii_only() -> None:
    """Python then writes with "surrogateescape", which raises for all other characters."""
    env = os.environ | {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    env.pop("PYTHONIOENCODING", None)
    done = subprocess.run(
        [sys.executable, "-m", "fedssl", "recipes", "FedEMA"], capture_output=True, env=env
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b" x " in done.stdout


def test_a_run_whose_output_takes_ascii_only(federation: Any) -> None:
    code, out, err = federation.run("λ", "simclr", "rounds=1", env=os.environ | ASCII_ONLY)
    assert code == 0, err
    assert "simclr x fedavg x star" in out
    assert "+-----" in out  # the table
    assert (out + err).isascii()
