"""Settings as the hash of an experiment has them: with the names and defaults of its first version.

Hashes find runs of earlier versions, so that a new setting at its default, or a new name, must not
change them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedssl.core.settings import Settings

# Left out at their default values, by table: earlier versions did not have them. Likewise the keys
# in `added_later` of a class.
ADDED_LATER = {
    "data": ("background", "fit"),
    "public": ("background", "fit"),
    "method": ("norm",),
    "guard": ("statistics_bound", "statistics_floor", "max_share"),
    "probe": ("frozen", "on"),
}
# Always left out: a run can be resumed with another value.
CHANGEABLE = {"guard": ("min_uploads",)}
# Values of earlier versions for settings that now have none by default.
EARLIER_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"probe": {"k": 200, "baselines": []}}


def hashed_settings(table: str, settings: Settings, plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain values of a table as the hash has them."""
    hashed = {**EARLIER_DEFAULTS.get(table, {}), **plain}
    for key in (*ADDED_LATER.get(table, ()), *settings.added_later):
        field = type(settings).model_fields.get(key)  # only some data sets have it
        if field is not None and getattr(settings, key) == field.default:
            hashed.pop(key, None)
    for key in CHANGEABLE.get(table, ()):
        del hashed[key]
    for name, earlier in settings.earlier_names.items():
        if name in hashed:
            hashed[earlier] = hashed.pop(name)
    return hashed
