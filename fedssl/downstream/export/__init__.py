"""Export a trained backbone or a classifier for other libraries.

Every export is loaded again in its library and compared with fedssl before it gets its name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from fedssl.core.errors import ConfigError
from fedssl.core.files.atomic import check_replaceable
from fedssl.core.suggestions import suggest
from fedssl.downstream.backbone import load_backbone
from fedssl.downstream.classify.classifier import is_classifier, load_classifier
from fedssl.downstream.export import to_hub, to_onnx, to_timm, to_torch, to_torchvision
from fedssl.downstream.export.target import Comparison, Exported, Model, Target

__all__ = ["FORMATS", "Exported", "export"]


class Format(NamedTuple):
    """How one format is written, loaded and named."""

    write: Callable[[Target], Comparison]
    lines: Callable[[Target, str], str]
    ending: str  # of the default name
    computes: bool  # True if the file contains the computation, so that classifiers fit
    is_folder: bool = False


FORMATS = {
    "torch": Format(to_torch.write, to_torch.lines, ".pt2", computes=True),
    "torchvision": Format(
        to_torchvision.write, to_torchvision.lines, "-torchvision.safetensors", computes=False
    ),
    "timm": Format(to_timm.write, to_timm.lines, "-timm", computes=False, is_folder=True),
    "onnx": Format(to_onnx.write, to_onnx.lines, ".onnx", computes=True),
    "hub": Format(to_hub.write, to_hub.lines, "-hub", computes=False, is_folder=True),
}


def export(
    place: str | Path,
    to: str,
    out: str | Path | None = None,
    *,
    model: str | None = None,
    normalise: bool = True,
    force: bool = False,
) -> Exported:
    """Write a backbone or a classifier for another library; return the path and the difference.

    `place` is a run directory, an exported backbone, a hub folder or a classifier's file; `to` a
    name in FORMATS; `model` one of the backbones of a run that has several. `normalise` is about
    formats that contain the computation: they take uint8 pixels, or else images that are normalised
    already. An existing export is replaced with `force` only; other files in its folder are kept.

    Raise ConfigError if the library cannot hold this network, or is not installed, and FedsslError
    if its features differ by more than rounding; nothing is written then.
    """
    place = Path(place)
    chosen = _format(to)
    final = Path(out or _default_name(place, chosen))
    _check_name(final, chosen, force)
    source: Model
    if not is_classifier(place):
        source = load_backbone(place, model)
    elif chosen.computes:
        source = load_classifier(place)
    else:
        raise ConfigError(f"a classifier can be exported to torch and onnx, not to {to}")
    # A hidden folder on the same disk, so that the export appears at once and complete.
    with TemporaryDirectory(prefix=".export-", dir=final.parent) as folder:
        target = Target(source, Path(folder) / final.name, final, normalise=normalise, place=place)
        comparison = chosen.write(target)
        _put(target.path, final)
    return Exported(final, comparison, chosen.lines(target, str(final)))


def _format(name: str) -> Format:
    if name not in FORMATS:
        hint = suggest(name, FORMATS) or f"; known: {', '.join(FORMATS)}"
        raise ConfigError(f'unknown format "{name}"{hint}')
    return FORMATS[name]


def _default_name(place: Path, chosen: Format) -> Path:
    """Return a name in the working directory, after the run directory or the file."""
    name = place.resolve().name.removesuffix(".safetensors")
    return Path(f"{name}{chosen.ending}")


def _check_name(path: Path, chosen: Format, force: bool) -> None:
    """Raise ConfigError if an export cannot be written to a path."""
    suffix = Path(f"name{chosen.ending}").suffix  # "" of a folder
    if suffix and path.suffix != suffix:
        raise ConfigError(f"{path} cannot be written: the name must end in {suffix}")
    if not path.parent.is_dir():
        raise ConfigError(f"{path} cannot be written: there is no folder {path.parent}")
    check_replaceable(path)
    if not path.exists():
        return
    if not force:
        raise ConfigError(
            f"{path} exists: choose another name with --out, or replace it by --force"
        )
    if path.is_dir() != chosen.is_folder:
        kind = "file" if chosen.is_folder else "folder"
        raise ConfigError(f"{path} is a {kind}: choose another name with --out")


def _put(written: Path, final: Path) -> None:
    """Move an export to its name. In an existing folder, other files are kept, such as .git."""
    if not final.is_dir():
        written.replace(final)
        return
    for file in written.iterdir():
        file.replace(final / file.name)
