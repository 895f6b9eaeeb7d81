"""Restrict the live page to the browser of its owner.

Other programs on the machine can connect to a loopback port, and a web page elsewhere can make a
browser send requests to one. So a request needs a token, which is in the printed URL and then in a
cookie, and the name of the host must be the loopback address: a page of another host name that
resolves to it (DNS rebinding) is refused.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HOSTS = ("127.0.0.1", "localhost")
METHODS = ("GET", "HEAD")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
WRONG_HOST = (
    "403: open the URL that `fedssl watch` printed; other host names and ports are rejected\n"
)
FORBIDDEN = "403: open the URL that `fedssl watch` printed, with its token\n"
READ_ONLY = "405: this server only answers GET\n"


class Guard:
    """An ASGI application that passes permitted requests to another one."""

    def __init__(self, app: App, token: str, port: int) -> None:
        self._app = app
        self._token = token
        self._hosts = {f"{host}:{port}" for host in HOSTS}
        self.cookie = f"fedssl-watch-{port}"  # cookies are sent to all ports of a host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        headers = _headers(scope)
        if headers.get("host", "") not in self._hosts:
            await _refuse(send, 403, WRONG_HOST)
        elif scope["method"] not in METHODS:
            await _refuse(send, 405, READ_ONLY)
        elif self._is_token(_token_in_query(scope)):
            await self._app(scope, receive, self._with_headers(send, set_cookie=True))
        elif self._is_token(self._token_in_cookie(headers)):
            await self._app(scope, receive, self._with_headers(send, set_cookie=False))
        else:
            await _refuse(send, 403, FORBIDDEN)

    def _is_token(self, candidate: str) -> bool:
        return hmac.compare_digest(candidate.encode(), self._token.encode())

    def _token_in_cookie(self, headers: Mapping[str, str]) -> str:
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return "" if morsel is None else str(morsel.value)

    def _with_headers(self, send: Send, set_cookie: bool) -> Send:
        """Return a function that sends a response with the headers of every page."""
        extra = _encoded(HEADERS)
        if set_cookie:
            value = f"{self.cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/"
            extra.append((b"set-cookie", value.encode()))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *extra]
            await send(message)

        return send_with_headers


def _headers(scope: Scope) -> dict[str, str]:
    """Return the headers of a request; the value of a repeated header is ""."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        headers[key] = "" if key in headers else value.decode("latin-1")
    return headers


def _token_in_query(scope: Scope) -> str:
    """Return the token in the URL of the page; "" for other paths."""
    if scope["path"] != "/":
        return ""
    text: str = scope.get("query_string", b"").decode("latin-1")
    try:
        return parse_qs(text, max_num_fields=10).get("token", [""])[0]
    except ValueError:  # too many fields
        return ""


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


async def _refuse(send: Send, status: int, text: str) -> None:
    headers = _encoded({"content-type": "text/plain; charset=utf-8", **HEADERS})
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
