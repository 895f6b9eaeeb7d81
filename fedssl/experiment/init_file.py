"""The file of `method.init`. With adapters its weights stay frozen, so it must not change.

The experiment of a run with adapters has the SHA-256 of the file, `method.adapters.sha256`. Every
process that trains or measures loads the same file: its weights are in no checkpoint or message.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from fedssl import nets
from fedssl.core.errors import ConfigError
from fedssl.core.missing_paths import no_file
from fedssl.method import MethodSettings

SHA256 = "method.adapters.sha256"  # the key of an experiment


def check_init_exists(method: MethodSettings) -> None:
    """Raise ConfigError if `method.init` is no file, or if adapters have no weights to adapt."""
    if method.init is None:
        if method.adapters is not None:
            raise ConfigError(
                "method.adapters adapts pretrained weights, but method.init is not set: name the "
                "safetensors file of the weights, or leave out method.adapters to train all weights"
            )
        return
    if method.init.is_file():
        return
    text = f"method.init: {no_file(method.init)}"
    trained = method.init / "backbone.safetensors"
    if trained.is_file():
        text += f': for the backbone of that run, set "{trained}"'
    recorded = recorded_sha256(method)
    if recorded is not None:
        text += f". The adapters belong to the file with SHA-256 {recorded}: restore it"
    raise ConfigError(text)


def recorded_sha256(method: MethodSettings) -> str | None:
    """Return the SHA-256 of the file that the adapters belong to; None if it is not recorded."""
    return None if method.adapters is None else method.adapters.sha256


def check_init(method: MethodSettings) -> None:
    """Raise ConfigError if adapters belong to another file than `method.init` is now."""
    recorded = recorded_sha256(method)
    if recorded is None or method.init is None:
        return
    check_init_exists(method)
    found = file_sha256(method.init)
    if found != recorded:
        raise ConfigError(
            f"method.init: {method.init} has SHA-256 {found}, but the adapters belong to the file "
            f"with SHA-256 {recorded}: restore that file"
        )


def init_changes(method: MethodSettings) -> dict[str, str]:
    """Return the SHA-256 of `method.init` as a change of the experiment; {} without adapters."""
    if method.adapters is None or method.init is None:
        return {}
    check_init(method)
    return {SHA256: file_sha256(method.init)}


def absolute_init(method: MethodSettings) -> dict[str, str]:
    """Return the absolute path of `method.init` as a change of the experiment, if it is set."""
    if method.init is None:
        return {}
    return {"method.init": str(method.init.resolve())}


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file; raise ConfigError if it cannot be read."""
    try:
        status = path.stat()
        return _sha256(path, status.st_ino, status.st_size, status.st_mtime_ns)
    except OSError as problem:
        raise ConfigError(f"method.init: {path} cannot be read: {problem.strerror}") from None


@lru_cache(maxsize=8)
def _sha256(path: Path, *version: int) -> str:
    """Return the SHA-256 of one version of a file: each worker and each measurement asks for it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_init(backbone: nets.Backbone, method: MethodSettings) -> None:
    """Load the weights of `method.init`, if it is set, into a backbone."""
    if method.init is not None:
        check_init(method)
        nets.load_backbone(backbone, method.init)
