"""A reverse proxy in front of a SuperLink that forwards only the fleet's part of its port."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class FleetOnly(BaseHTTPRequestHandler):
    """Forward requests to `/v1/fleet/`, and answer all others with 403."""

    protocol_version = "HTTP/1.1"
    link: tuple[str, ssl.SSLContext]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not self.path.startswith("/v1/fleet/"):
            return self._respond(403, b"", {})
        address, context = self.link
        superlink = http.client.HTTPSConnection(address, context=context)
        superlink.request("POST", self.path, body, dict(self.headers))
        answer = superlink.getresponse()
        content = answer.read()
        superlink.close()
        headers = {"Content-Type": answer.headers["Content-Type"]}
        return self._respond(answer.status, content, headers)

    def do_GET(self) -> None:
        self._respond(403, b"", {})

    def _respond(self, code: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None: ...


@contextlib.contextmanager
def fleet_only(
    link: str, keys: Path, port: int = 0, authority: str = "server.pem"
) -> Iterator[str]:
    """Yield the address of a proxy in front of the SuperLink at `link`.

    `keys` contains the server's certificate and key, and the certificate of their authority.
    """
    inside = ssl.create_default_context(cafile=str(keys / authority))
    handler = type("Proxy", (FleetOnly,), {"link": (link, inside)})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    outside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    outside.load_cert_chain(keys / "server.pem", keys / "server.key")
    server.socket = outside.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
