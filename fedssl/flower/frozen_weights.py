"""Check that nodes and server have the same file of `method.init`, if adapters depend on it.

The weights in that file are frozen and never sent. A client that adapted other weights would upload
factors that have no meaning for the rest of the federation, and nothing else would show it.
"""

from __future__ import annotations

from fedssl.core.errors import ClientError
from fedssl.experiment.init_file import file_sha256, recorded_sha256
from fedssl.method import MethodSettings

ADVICE = "copy the server's file to the node, and name it with init='FILE' in its --node-config"


def own_init_sha256(method: MethodSettings) -> str | None:
    """Return the SHA-256 of a node's file of `method.init`; None without adapters.

    Raise ClientError if the node has no file, or another one than the app was written for.
    """
    if method.adapters is None or method.init is None:
        return None
    if not method.init.is_file():
        raise ClientError(
            f"it has no file of method.init, whose frozen weights the adapters need: {ADVICE}"
        )
    found = file_sha256(method.init)
    problem = difference(recorded_sha256(method) or found, found)
    if problem is not None:
        raise ClientError(problem)
    return found


def difference(expected: str | None, found: str | None) -> str | None:
    """Return why a node's frozen weights are not those of the run; None if they are."""
    if expected == found:
        return None
    return (
        f"its file of method.init has SHA-256 {_short(found)}, that of the run has "
        f"{_short(expected)}: {ADVICE}"
    )


def _short(digest: str | None) -> str:
    """Return the beginning of a hash, since the length of a reason is limited."""
    return "unknown" if digest is None else f"{digest[:16]}…"
