"""Kernels for CUDA, in Triton: one pass over memory where torch would take several.

Each has an equivalent in plain torch where it is called. The modules of this package import Triton;
this file does not.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path

import torch


def unavailable_reason(device: torch.device) -> str | None:
    """Return the reason why steps cannot be compiled on a device, in a few words; None if they
    can."""
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "Triton is not installed"
        if not _has_compiler("CC", ("gcc", "clang")):
            return "there is no C compiler"
    elif not _has_compiler("CXX", ("c++", "g++", "clang++")):
        return "there is no C++ compiler"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return "Python's header files are not installed"
    return None


def _has_compiler(variable: str, programs: tuple[str, ...]) -> bool:
    """True if the compiler that an environment variable names, or one of the programs, is found."""
    chosen = os.environ.get(variable)
    candidates = (chosen,) if chosen else programs
    return any(map(shutil.which, candidates))
