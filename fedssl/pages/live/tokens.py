"""The token that a browser needs to see the live page.

On a free port it is new each time. On a port that was chosen it is kept in a private file, so that
open pages connect again when the server is restarted there.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from fedssl.core.errors import ConfigError
from fedssl.core.files.lock import make_private

TOKEN_BYTES = 32
MAX_LENGTH = 100


def token_folder() -> Path:
    """Return the private folder of kept tokens."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(state) / "fedssl/watch"


def new_token() -> str:
    """Return a new random token."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def kept_token(port: int) -> str:
    """Return the token of a port; a new one the first time.

    Raise ConfigError if others could have read or written its file.
    """
    folder = token_folder()
    make_private(folder)
    path = folder / f"{port}.token"
    token = new_token()
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
    except FileExistsError:
        return _read(path)
    with os.fdopen(descriptor, "w") as file:
        file.write(token)
    return token


def _read(path: Path) -> str:
    """Return the token in a file that only this user may read."""
    status = path.lstat()
    private = stat.S_ISREG(status.st_mode) and not status.st_mode & 0o077
    if not private or status.st_uid != os.getuid():
        raise ConfigError(
            f"{path} is not a file that only you may read; remove it, and start again with a new "
            "token"
        )
    token = path.read_text("utf-8", "replace").strip()
    if not token.isascii() or not TOKEN_BYTES <= len(token) <= MAX_LENGTH:
        raise ConfigError(
            f"{path} contains no valid token; remove it, and start again with a new one"
        )
    return token
