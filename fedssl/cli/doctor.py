"""Examine the installation: packages, extras, devices, permissions and problems."""

from __future__ import annotations

import importlib.util
import platform
import shlex
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from fedssl.core import kernels
from fedssl.core.errors import ConfigError
from fedssl.core.missing_paths import no_folder
from fedssl.data.cache import default_cache_dir
from fedssl.runs.client_files import default_node_memory, find_places, open_to_others

REQUIRED = (
    "fedssl",
    "torch",
    "numpy",
    "pillow",
    "safetensors",
    "pydantic",
    "typer",
    "rich",
    "tomli-w",
)
EXTRAS = {
    "viz": ("matplotlib", "scikit-learn"),
    "maps": ("umap-learn",),
    "vision": ("torchvision", "timm", "pycocotools"),
    "flower": ("flwr", "cryptography", "psutil"),
    "privacy": ("dp-accounting",),
    "dashboard": ("starlette", "uvicorn"),
    "onnx": ("onnx", "onnxruntime"),
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow-skinny", "sqlalchemy", "alembic"),
    "wandb": ("wandb",),
}
PURPOSES = {
    "viz": "pictures",
    "maps": "maps by UMAP",
    "vision": "backbones of timm, and detection",
    "flower": "clients on their own machines",
    "privacy": "differential privacy",
    "dashboard": "fedssl watch",
    "onnx": "fedssl export --to onnx",
    "tensorboard": "a tracker",
    "mlflow": "a tracker",
    "wandb": "a tracker",
}
TORCHVISION_MISMATCH = (
    "torchvision is built for CUDA and cannot be imported with this CPU build of torch (operator "
    "torchvision::nms does not exist). Only the extra `vision` needs it: install torch and "
    "torchvision from the same index."
)


def examine(folders: Sequence[Path] = ()) -> dict[str, Any]:
    """Return the state of the installation as plain values.

    Raise ConfigError if one of the folders has no files of clients.
    """
    extras = {extra: _versions(packages) for extra, packages in EXTRAS.items()}
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "python": platform.python_version(),
        "packages": _versions(REQUIRED),
        "extras": extras,
        "cpu_threads": torch.get_num_threads(),
        "cuda": devices,
        "problems": _problems() + _open_folders(folders),
    }


def _versions(packages: Iterable[str]) -> dict[str, str | None]:
    return {package: _version(package) for package in packages}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _problems() -> list[str]:
    problems = []
    if importlib.util.find_spec("torchvision") is not None:
        try:
            import torchvision  # noqa: F401
        except Exception as failure:  # a broken installation may raise anything
            if "torchvision::nms" in str(failure):
                problems.append(TORCHVISION_MISMATCH)
            else:
                problems.append(f"torchvision: {failure}")
    if torch.cuda.is_available():
        missing = kernels.unavailable_reason(torch.device("cuda"))
        if missing:
            problems.append(
                f"{missing}: training on CUDA runs at about half its speed without compiled kernels"
            )
    elif torch.version.cuda is not None:
        problems.append("this torch is built for CUDA, but there is no CUDA device")
    return problems


def _open_folders(folders: Sequence[Path]) -> list[str]:
    """Return a problem for each folder with files of clients that others may read."""
    checked = [default_cache_dir(), default_node_memory()]
    for folder in folders:
        if not folder.expanduser().is_dir():
            raise ConfigError(no_folder(folder))
        if not find_places(folder.expanduser().resolve()):
            raise ConfigError(
                f"{folder} is not a run directory, a cache of decoded images, or the memory of a "
                "Flower node"
            )
        checked.append(folder.expanduser().resolve())
    problems = []
    for folder in checked:
        if folder.is_dir():
            for place in open_to_others(folder):
                problems.append(
                    f"other users of this machine may read {place}: "
                    f"chmod 700 {shlex.quote(str(place))}"
                )
    return problems


def print_report(report: Mapping[str, Any]) -> None:
    """Print the values of `examine`, one per line."""
    print(f"python {report['python']}")
    for package, number in report["packages"].items():
        print(f"{package} {number or 'MISSING'}")
    for extra, packages in report["extras"].items():
        state = _extra_state(extra, packages, report["problems"])
        print(f"extra {extra} ({PURPOSES[extra]}): {state}")
    print(f"CPU threads: {report['cpu_threads']}")
    print(f"CUDA: {', '.join(report['cuda']) or 'no device'}")
    for problem in report["problems"]:
        print(f"! {problem}")
    if not report["problems"]:
        print("no problems; fedssl run demo trains an example")


def _extra_state(extra: str, packages: Mapping[str, str | None], problems: Iterable[str]) -> str:
    missing = [package for package, number in packages.items() if number is None]
    if missing:
        return f'needs {", ".join(missing)}: in a clone of fedssl, pip install ".[{extra}]"'
    for problem in problems:
        if any(package in problem for package in packages):
            return "installed, but see the problem below"
    return "ready"
