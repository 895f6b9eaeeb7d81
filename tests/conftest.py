"""Which tests run, and how torchvision is imported beside a CPU build of torch."""

from __future__ import annotations

import importlib
import sys
import warnings

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("fedssl", deadline=None, derandomize=True)
hypothesis.settings.load_profile("fedssl")

_shim: list[torch.library.Library] = []  # a library's definitions live as long as the object


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also run the tests marked slow and oracle")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--all"):
        _import_torchvision()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all"):
        return
    for item in items:
        for mark in ("slow", "oracle"):
            if mark in item.keywords:
                item.add_marker(pytest.mark.skip(reason=f"{mark}: runs with --all"))


def _import_torchvision() -> None:
    """Import it once for all oracles (timm and lightly import it too), or leave it to them to be skipped.

    Its wheel is a CUDA build: without its compiled operators it stops at the first it registers a kernel for,
    unless that operator has a schema.
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
            library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _shim.append(library)
            importlib.import_module("torchvision")
