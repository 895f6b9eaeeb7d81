"""Serve the live page of a run on the loopback address."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedssl.core.errors import ConfigError
from fedssl.pages.live.access import App, Guard
from fedssl.pages.live.event_stream import EventStream
from fedssl.pages.live.watcher import Watcher

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

HOST = "127.0.0.1"
MAX_BROWSERS = 64
SHUTDOWN_SECONDS = 1  # for connections that do not end when they are asked to
OWN_FILES = Path(__file__).parent
SHARED_FILES = Path(__file__).parent.parent / "assets"
TYPES = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".html": "text/html",
    ".svg": "image/svg+xml",
}
FILES = {
    "page.css": SHARED_FILES,
    "charts.js": SHARED_FILES,
    "uplot.css": SHARED_FILES,
    "uplot.js": SHARED_FILES,
    "live.css": OWN_FILES,
    "live.js": OWN_FILES,
    "clients.js": OWN_FILES,
    "icon.svg": OWN_FILES,
}


def need_dashboard() -> None:
    """Raise ConfigError if the packages that serve pages are missing."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise ConfigError(
            "starlette and uvicorn are not installed: "
            'in a clone of fedssl, run pip install ".[dashboard]"'
        ) from None


def open_port(port: int) -> socket.socket:
    """Return a socket on the loopback address; on a free port for 0.

    Raise ConfigError if the port is not free.
    """
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((HOST, port))
    except OSError as problem:
        opened.close()
        raise ConfigError(
            f"{HOST}:{port} cannot be used ({problem.strerror}): choose another --port, or none "
            "for a free one"
        ) from None
    return opened


def make_app(stream: EventStream, token: str, port: int) -> App:
    """Return the ASGI application of the live page."""
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route

    async def page(request: Request) -> Response:
        return _file(OWN_FILES / "page.html")

    async def asset(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in FILES:
            return PlainTextResponse("404: no such file\n", 404)
        return _file(FILES[name] / name)

    async def alive(request: Request) -> Response:
        return Response(status_code=204)

    async def events(request: Request) -> Response:
        if stream.browsers >= MAX_BROWSERS:
            return PlainTextResponse("503: too many browsers\n", 503)
        return StreamingResponse(stream.events(), media_type="text/event-stream")

    @contextlib.asynccontextmanager
    async def running(app: Any) -> AsyncIterator[None]:
        task = asyncio.create_task(stream.run())
        yield
        stream.stop()
        await task

    routes = [
        Route("/", page),
        Route("/assets/{name}", asset),
        Route("/alive", alive),
        Route("/events", events),
    ]
    return Guard(Starlette(routes=routes, lifespan=running), token, port)


def _file(path: Path) -> Response:
    from starlette.responses import Response

    return Response(path.read_bytes(), media_type=TYPES[path.suffix])


def serve(folder: Path, opened: socket.socket, token: str, ready: Callable[[], None]) -> None:
    """Serve the live page until Ctrl-C or a termination signal, which raises KeyboardInterrupt.

    `ready` is called once requests are answered.
    """
    asyncio.run(_serve(folder, opened, token, ready))


async def _serve(
    folder: Path, opened: socket.socket, token: str, ready: Callable[[], None]
) -> None:
    import uvicorn

    loop = asyncio.get_running_loop()
    stream = EventStream(Watcher(folder))

    class Server(uvicorn.Server):
        """A server that ends the streams of all browsers as soon as it is asked to stop."""

        def handle_exit(self, sig: int, frame: Any) -> None:
            loop.call_soon_threadsafe(stream.stop)
            super().handle_exit(sig, frame)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

    config = uvicorn.Config(
        make_app(stream, token, opened.getsockname()[1]),
        access_log=False,  # it would show the token
        log_level=logging.WARNING,
        server_header=False,
        date_header=False,
        ws="none",
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    await Server(config).serve(sockets=[opened])
