"""Kernels for CUDA, in Triton: what torch would do in several passes over memory, in one. Each has a plain twin in
torch where it is called. Modules of this package import Triton; this file does not."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path

import torch


def missing(device: torch.device) -> str | None:
    """What stands in the way of compiled steps on a device, in a few words; None: nothing."""
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    programs = ("gcc", "clang") if device.type == "cuda" else ("c++", "g++", "clang++")
    chosen = os.environ.get("CC" if device.type == "cuda" else "CXX")
    if not any(map(shutil.which, [chosen] if chosen else programs)):
        return "there is no C compiler" if device.type == "cuda" else "there is no C++ compiler"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return "Python's header files are not installed"
    return None
