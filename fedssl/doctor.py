"""`fedssl doctor`: what is installed here, what each extra needs, and what is in the way."""

from __future__ import annotations

import importlib.util
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from fedssl import kernels

EXTRAS = {
    "viz": ("matplotlib", "scikit-learn"),
    "maps": ("umap-learn",),
    "vision": ("torchvision", "timm", "pycocotools"),
    "flower": ("flwr", "cryptography"),
}
CLASH = (
    "torchvision's wheel is built for CUDA and cannot be imported beside this CPU build of torch "
    "(operator torchvision::nms does not exist). fedssl itself does not need it; for the extra `vision` "
    "install torch and torchvision from the same index."
)


def examine() -> dict[str, Any]:
    """Everything as plain values."""
    core = ("fedssl", "torch", "numpy", "pillow", "safetensors", "pydantic", "typer", "rich", "tomli-w")
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in core},
        "extras": {extra: {name: _version(name) for name in names} for extra, names in EXTRAS.items()},
        "cpu_threads": torch.get_num_threads(),
        "cuda": devices,
        "problems": _problems(),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _problems() -> list[str]:
    problems = []
    if importlib.util.find_spec("torchvision") is not None:
        try:
            import torchvision  # noqa: F401
        except Exception as failure:  # whatever a broken installation raises is what the user came to hear
            problems.append(CLASH if "torchvision::nms" in str(failure) else f"torchvision: {failure}")
    if not torch.cuda.is_available() and "+cpu" not in torch.__version__:
        problems.append("this torch is built for CUDA, but no CUDA device is in reach")
    if torch.cuda.is_available() and (problem := kernels.missing(torch.device("cuda"))):
        problems.append(f"{problem}: training on CUDA runs at about half its speed without compiled kernels")
    return problems


def show(found: dict[str, Any]) -> None:
    print(f"python {found['python']}")
    for name, number in found["packages"].items():
        print(f"{name} {number or 'MISSING'}")
    for extra, packages in found["extras"].items():
        missing = [name for name, number in packages.items() if number is None]
        broken = any(name in problem for name in packages for problem in found["problems"])
        ready = "installed, but see the problem below" if broken else "ready"
        state = f'needs {", ".join(missing)}: in a clone of fedssl, pip install ".[{extra}]"' if missing else ready
        print(f"extra {extra}: {state}")
    print(f"CPU threads: {found['cpu_threads']}")
    print(f"CUDA: {', '.join(found['cuda']) or 'no device'}")
    for problem in found["problems"]:
        print(f"! {problem}")
