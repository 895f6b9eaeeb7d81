"""The part of a backbone's header that may be published."""

from __future__ import annotations

from collections.abc import Mapping

# Left out: `model`, which may be a client's name; `notes`, which may name clients; `experiment`, a
# hash that covers paths and names, so that a guess of them could be confirmed.
PUBLIC_KEYS = (
    "format",
    "fedssl",
    "method",
    "backbone",
    "stem",
    "norm",
    "rounds",
    "image",
    "mean",
    "std",
    "fit",
    "background",
    "input",
    "privacy",
)


def public_header(header: Mapping[str, str]) -> dict[str, str]:
    """Return the keys of a header that describe the network, its input and its privacy."""
    return {key: header[key] for key in PUBLIC_KEYS if key in header}
