"""Choose which tests run, import torchvision with a CPU build of torch, and define shared
fixtures.
"""

from __future__ import annotations

import importlib
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest
import torch
from error_messages import write_golden

from fedssl.algorithm import ALGORITHMS
from fedssl.core import user_modules
from fedssl.data import PARTITIONS, SOURCES
from fedssl.method import METHODS
from fedssl.nets import BACKBONES
from fedssl.topologies.topology import TOPOLOGIES

hypothesis.settings.register_profile("fedssl", deadline=None, derandomize=True)
hypothesis.settings.load_profile("fedssl")

torch.set_num_threads(1)  # tensors here are tiny: a second thread would only wait

_shim: list[torch.library.Library] = []  # a library's definitions live as long as the object


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also run the tests marked slow and oracle")
    parser.addoption("--rows", metavar="ID,...", help="only tests of these rows of rows.toml")


def pytest_configure(config: pytest.Config) -> None:
    _accept_interrupts()
    if config.getoption("--all"):
        _import_torchvision()


def _accept_interrupts() -> None:
    """Let SIGINT raise KeyboardInterrupt, in this process and in those that tests start.

    A script starts its background jobs with SIGINT ignored, and child processes inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionfinish() -> None:
    write_golden()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--rows"):
        rows = config.getoption("--rows").split(",")
        items[:] = [item for item in items if _verifies(item, rows)]
    if config.getoption("--all"):
        return
    for item in items:
        for mark in ("slow", "oracle"):
            if mark in item.keywords:
                item.add_marker(pytest.mark.skip(reason=f"{mark}: runs with --all"))


def _verifies(item: pytest.Item, rows: list[str]) -> bool:
    """True if a test or its module is marked with one of the rows."""
    return any(row in mark.args for mark in item.iter_markers("rows") for row in rows)


def _import_torchvision() -> None:
    """Import it once for all oracles (timm and lightly import it too); without it they are skipped.

    Its wheel is a CUDA build: without its compiled operators the import fails at the first kernel
    that it registers, unless that operator has a schema. The two that Mask R-CNN needs have plain
    kernels in torchvision_operators.py.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its image decoders do not load either, and are not needed
        try:
            importlib.import_module("torchvision")
        except ModuleNotFoundError:
            return
        except RuntimeError:
            for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
            operators = importlib.import_module("torchvision_operators")
            _shim.append(operators.define())
            importlib.import_module("torchvision")
            operators.announce()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store decoded images with the tests' other files, not in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Change to an empty folder; after the test, remove the modules that were imported from it, and
    the classes that they registered.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(user_modules, "_imported", {})
    for registry in (ALGORITHMS, BACKBONES, METHODS, PARTITIONS, SOURCES, TOPOLOGIES):
        registry.names()  # imports the classes of the package, which are kept
        monkeypatch.setattr(registry, "_classes", dict(registry._classes))
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def plain_kernel(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """Replace the kernel of the fused SGD by the operations of the plain one: the bits are the
    same. Return the list of the gradients' dtypes.
    """
    dtypes = []

    def sgd(
        row: torch.Tensor,
        low: torch.Tensor | None,
        buffer: torch.Tensor,
        grad: torch.Tensor,
        lr: torch.Tensor,
        decay: float,
        momentum: float,
        target: torch.Tensor | None = None,
        target_low: torch.Tensor | None = None,
        share: float = 0.0,
    ) -> None:
        dtypes.append(grad.dtype)
        assert len(row) == len(buffer) == len(grad) > 0
        buffer.mul_(momentum).add_(grad.float().add(row, alpha=decay))
        row.addcmul_(buffer, lr, value=-1)
        if low is not None:
            low.copy_(row)
        if target is not None:
            assert len(target) == len(row)
            target.lerp_(row, share)
        if target_low is not None:
            target_low.copy_(target)

    monkeypatch.setitem(sys.modules, "fedssl.core.kernels.update", SimpleNamespace(sgd=sgd))
    return dtypes


@pytest.fixture
def cli(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """cli("run", "demo"): return exit code, standard output and standard error, in this process."""
    from fedssl.cli.main import main

    def call(*args: str) -> tuple[int, str, str]:
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        monkeypatch.setattr(sys, "argv", ["fedssl", *args])
        # Click would derive the name of the program from this package, which is pytest's.
        monkeypatch.setattr(sys.modules["__main__"], "__package__", "", raising=False)
        capfd.readouterr()
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return code or 0, *capfd.readouterr()

    return call
