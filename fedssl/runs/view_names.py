"""Name the views of a run by their preset, instead of by its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedssl.experiment.overrides import dump
from fedssl.views import Augment
from fedssl.views.presets import PRESETS

VIEWS = "method.augment."
PRESET = f"{VIEWS}views"  # a key of labels, not a setting


def preset_of_views(values: Mapping[str, Any]) -> str | None:
    """Return the preset that all settings of the views are those of; None if there is none."""
    own = {}
    for key, value in values.items():
        if key.startswith(VIEWS):
            own[key.removeprefix(VIEWS)] = value
    for preset in PRESETS:
        if own == dump(Augment.model_validate(preset)):
            return preset
    return None


def name_preset(changed: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace several settings of the views by the key PRESET with the name of the preset.

    `values` are all settings of the run. One setting alone is kept, because it shows what differs;
    so are views that are not those of a preset.
    """
    views = [key for key in changed if key.startswith(VIEWS)]
    preset = preset_of_views(values)
    if len(views) < 2 or preset is None:
        return dict(changed)
    named: dict[str, Any] = {}
    for key, value in changed.items():
        if key == views[0]:
            named[PRESET] = preset
        elif key not in views:
            named[key] = value
    return named
