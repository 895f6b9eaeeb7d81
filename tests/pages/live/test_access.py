"""Which requests the live page answers, without a server: the ASGI application is called."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fedssl.pages.live.access import POLICY, Guard, Message, Receive, Scope, Send

TOKEN = "t" * 43
HOST = ("host", "127.0.0.1:8800")
COOKIE = ("cookie", f"other=1; fedssl-watch-8800={TOKEN}")


async def _inner(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"private"})


def _ask(
    *headers: tuple[str, str], path: str = "/events", query: str = "", method: str = "GET"
) -> tuple[int, dict[str, str], bytes]:
    """Return the status, the headers and the body of a response."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("the guard reads no request body")

    encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    scope: Any = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": encoded,
    }
    asyncio.run(Guard(_inner, TOKEN, 8800)(scope, receive, send))
    received = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], received, sent[1]["body"]


def test_the_token_in_the_url_of_the_page_is_kept_in_a_cookie() -> None:
    status, headers, body = _ask(HOST, path="/", query=f"token={TOKEN}")
    assert (status, body) == (200, b"private")
    assert headers["set-cookie"] == f"fedssl-watch-8800={TOKEN}; HttpOnly; SameSite=Strict; Path=/"


def test_the_cookie_is_enough_and_is_not_set_again() -> None:
    status, headers, _ = _ask(HOST, COOKIE)
    assert status == 200
    assert "set-cookie" not in headers
    assert _ask(("host", "localhost:8800"), COOKIE)[0] == 200


@pytest.mark.parametrize(
    "query",
    ["", "token=", f"token={TOKEN[:-1]}", f"token={TOKEN}x", "token=%C3%A9", "&a=1" * 20],
)
def test_without_the_token_nothing_is_answered(query: str) -> None:
    status, headers, body = _ask(HOST, path="/", query=query)
    assert status == 403
    assert b"private" not in body
    assert "set-cookie" not in headers


def test_the_token_in_the_url_of_another_path_is_not_accepted() -> None:
    assert _ask(HOST, path="/events", query=f"token={TOKEN}")[0] == 403


@pytest.mark.parametrize(
    "cookie",
    ["", "fedssl-watch-8800=", f"fedssl-watch-8801={TOKEN}", f"fedssl-watch-8800={TOKEN}x", ";=;é"],
)
def test_another_cookie_is_not_accepted(cookie: str) -> None:
    assert _ask(HOST, ("cookie", cookie))[0] == 403


@pytest.mark.parametrize(
    "hosts",
    [
        [],
        ["attacker.example:8800"],
        ["127.0.0.1"],
        ["127.0.0.1:8801"],
        ["127.0.0.1:8800", "127.0.0.1:8800"],
        ["127.0.0.1:8800@attacker.example"],
    ],
)
def test_another_host_name_is_refused_even_with_the_token(hosts: list[str]) -> None:
    """A page of another host whose name resolves to this machine would send its own name."""
    headers = [("host", host) for host in hosts]
    assert _ask(*headers, COOKIE)[0] == 403
    assert _ask(*headers, path="/", query=f"token={TOKEN}")[0] == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_only_reading_is_possible(method: str) -> None:
    assert _ask(HOST, COOKIE, method=method)[0] == 405


def test_every_answer_has_the_headers_that_protect_the_page() -> None:
    for answer in (_ask(HOST, COOKIE), _ask(HOST), _ask(HOST, COOKIE, method="POST")):
        headers = answer[1]
        assert headers["content-security-policy"] == POLICY
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-content-type-options"] == "nosniff"
    assert "unsafe" not in POLICY
    assert "default-src 'none'" in POLICY


def test_web_sockets_are_not_answered() -> None:
    async def ask() -> None:
        async def fail(*_: Any) -> Any:
            raise AssertionError("nothing is received or sent")

        await Guard(_inner, TOKEN, 8800)({"type": "websocket"}, fail, fail)

    asyncio.run(ask())
