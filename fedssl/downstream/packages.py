"""Check that optional packages are installed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from fedssl.core.errors import ConfigError


def need_packages(packages: Sequence[str], extra: str) -> None:
    """Raise ConfigError with the line that installs them if packages of an extra are missing."""
    for package in packages:
        try:
            import_module(package)
        except ImportError:
            raise ConfigError(
                f'{package} is not installed: in a clone of fedssl, run pip install ".[{extra}]"'
            ) from None
        except RuntimeError as problem:  # torchvision for another build of torch
            first_line = str(problem).partition("\n")[0]
            raise ConfigError(
                f"{package} is installed but cannot be imported ({first_line}): install the "
                "version that belongs to your torch"
            ) from None
