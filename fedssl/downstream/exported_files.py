"""Find and read exported backbones: files, run directories and folders in Hugging Face's layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from torch import Tensor

from fedssl import nets
from fedssl.core.errors import ConfigError

HUB_WEIGHTS = "model.safetensors"  # in a folder that `fedssl export --to hub` wrote
REQUIRED = ("backbone", "stem", "image")  # keys of the header, without which nothing can be built


def find_backbone(place: Path, model: str | None = None) -> Path:
    """Return the exported file of a run directory or hub folder, or the file if `place` is one.

    `model` selects a backbone of a run that has several.
    """
    if place.is_file():
        return place
    if not place.is_dir():
        raise ConfigError(f"there is no run directory or backbone file {place}")
    if model is not None:
        file = place / nets.backbone_file(model)
        if file.is_file():
            return file
    files = sorted(place.glob("backbone*.safetensors"))
    if model is None and not files and (place / HUB_WEIGHTS).is_file():
        return place / HUB_WEIGHTS
    if model is None and len(files) == 1:
        return files[0]
    if not files:
        raise ConfigError(f"{place} has no backbone.safetensors: {_why_missing(place)}")
    names = ", ".join(unquote(file.stem.removeprefix("backbone-")) for file in files)
    problem = "several backbones" if model is None else f'no backbone "{model}"'
    raise ConfigError(f"{place} has {problem}, select one with --model: {names}")


def _why_missing(place: Path) -> str:
    reason = "`fedssl run` writes it after the last round"
    if (place / "checkpoints").is_dir():
        reason += (
            ". A run whose clients train alone has none in common: in Python, "
            f"fedssl.Run({str(place)!r}).backbone(CLIENT) loads that of a client"
        )
    return reason


def read_exported(file: Path) -> tuple[Mapping[str, str], Mapping[str, Tensor]]:
    """Return the header and the tensors of an exported backbone; a ConfigError for other files."""
    header, tensors = nets.read_weights(file)
    if not set(REQUIRED) <= header.keys():
        raise ConfigError(
            f"{file} was not exported by fedssl: its header does not name its backbone"
        )
    return header, tensors
