"""Build a backbone by its name: one of fedssl's or of a user's, of timm, or passed from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import get_args

from fedssl.core.errors import ConfigError
from fedssl.core.suggestions import suggest
from fedssl.nets.adopted import prepare
from fedssl.nets.backbone import BACKBONES, Backbone, Stem
from fedssl.nets.given_backbone import GIVEN, build_given
from fedssl.nets.group_norm import Norm, use_norm
from fedssl.nets.timm_backbone import build_timm

# By the word before the colon in a backbone's name: (rest of the name, channels) -> backbone.
BUILDERS: Mapping[str, Callable[[str, int], Backbone]] = {"timm": build_timm, GIVEN: build_given}


def build(name: str, channels: int = 3, stem: str = "cifar", norm: Norm = "batch") -> Backbone:
    """Return a backbone by name, its weights drawn from torch's default generator.

    `timm:NAME` is a model of timm, and `given:NAME` one that was passed from Python; both have a
    single stem. `norm = "group"` replaces its BatchNorm layers, in both training and evaluation.
    """
    stems = get_args(Stem)
    if stem not in stems:
        hint = suggest(stem, stems) or f"; known: {', '.join(stems)}"
        raise ConfigError(f'unknown stem "{stem}"{hint}')
    if channels < 1:
        raise ConfigError(f"images must have at least one channel (got {channels})")
    family, _, rest = name.partition(":")
    if family in BUILDERS:
        backbone = BUILDERS[family](rest, channels)
    else:
        backbone = BACKBONES[name](channels, stem)  # type: ignore[arg-type]  # checked above
        if not is_own(name):
            prepare(backbone)
    use_norm(backbone, norm)
    return backbone


def is_own(name: str) -> bool:
    """True for a backbone of this package, which needs no check before it is trained."""
    if name.partition(":")[0] in BUILDERS:
        return False
    return BACKBONES[name].__module__.startswith("fedssl.")
