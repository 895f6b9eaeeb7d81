"""fedssl on Flower: the same algorithms and the same round loop, with clients on their own machines.

Needs the extra `flower`. The two apps are imported when they are asked for, a node's without the server's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedssl.runtimes.flower.app import server_app
    from fedssl.runtimes.flower.client import client_app

__all__ = ["client_app", "server_app"]


def __getattr__(name: str) -> Any:
    if name == "client_app":
        from fedssl.runtimes.flower.client import client_app

        return client_app
    if name == "server_app":
        from fedssl.runtimes.flower.app import server_app

        return server_app
    raise AttributeError(name)
