"""View presets: how strong random operations may be for a kind of images.

A view should keep what a person would use to recognise an image. The values follow from that rule,
not from any measurement: colours carry the diagnosis in a stained cell, left and right differ in a
chest X-ray, and a small patch of a texture is still that texture.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fedssl.core.suggestions import suggest

PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # SimCLR's: objects are recognised in any light and from a small part.
        "photo": {
            "crop": (0.08, 1.0),
            "flip": 0.5,
            "jitter": (0.8, 0.8, 0.8, 0.2),
            "jitter_p": 0.8,
            "gray": 0.2,
        },
        # Photos without colour: objects may be mirrored, and the light varies. Without colour a
        # very small part shows little, so crops are larger than those of "photo".
        "grey": {
            "crop": (0.2, 1.0),
            "flip": 0.5,
            "jitter": (0.4, 0.4, 0.0, 0.0),
            "jitter_p": 0.8,
            "gray": 0.0,
        },
        # Stains are colours, and a cell is small in its image: keep hue and most of the area.
        "microscopy": {
            "crop": (0.4, 1.0),
            "flip": 0.5,
            "jitter": (0.2, 0.2, 0.1, 0.02),
            "jitter_p": 0.8,
            "gray": 0.0,
        },
        # Grey, and not symmetric: exposure varies, left and right do not.
        "xray": {
            "crop": (0.5, 1.0),
            "flip": 0.0,
            "jitter": (0.3, 0.3, 0.0, 0.0),
            "jitter_p": 0.8,
            "gray": 0.0,
        },
        # Every part shows the same material; light varies more than colour.
        "texture": {
            "crop": (0.2, 1.0),
            "flip": 0.5,
            "jitter": (0.4, 0.4, 0.2, 0.05),
            "jitter_p": 0.8,
            "gray": 0.1,
        },
    }
)


def preset_settings(name: Any) -> Mapping[str, Any]:
    """Return the settings of a preset; raise ValueError if there is none of this name."""
    if name not in PRESETS:
        hint = suggest(str(name), PRESETS) or f"; known: {', '.join(PRESETS)}"
        raise ValueError(f'unknown view preset "{name}"{hint}')
    return PRESETS[name]
