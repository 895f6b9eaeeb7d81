"""fedssl on Flower: the same algorithms and round loop, with each client on its own machine.

Needs the extra `flower`. The two apps are imported on first access, so that a node does not import
the server's modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedssl.flower.clientapp import client_app
    from fedssl.flower.serverapp import server_app

__all__ = ["client_app", "server_app"]


def __getattr__(name: str) -> Any:
    if name == "client_app":
        from fedssl.flower.clientapp import client_app

        return client_app
    if name == "server_app":
        from fedssl.flower.serverapp import server_app

        return server_app
    raise AttributeError(name)
