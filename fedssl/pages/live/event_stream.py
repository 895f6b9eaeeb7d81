"""Send what is new about a run to all browsers that show it, as server-sent events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from fedssl.pages.live.watcher import View, Watcher

INTERVAL = 1.0  # seconds between two polls
PING = 15.0  # seconds after which a comment shows that the connection is alive


class Rows:
    """The rows of the table, with the number of the poll at which each has changed last."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[int, dict[str, Any]]] = {}
        self.complete_since = 0  # the poll before which rows were removed

    def update(self, rows: dict[str, dict[str, Any]], poll: int) -> None:
        """Replace the rows."""
        if self._rows.keys() - rows.keys():
            self.complete_since = poll
        updated = {}
        for name, row in rows.items():
            previous = self._rows.get(name)
            if previous is not None and previous[1] == row:
                updated[name] = previous
            else:
                updated[name] = (poll, row)
        self._rows = updated

    def since(self, poll: int) -> dict[str, Any] | None:
        """Return the rows that have changed after a poll; None if there are none."""
        reset = poll < self.complete_since or poll == 0
        changed = []
        for number, row in self._rows.values():
            if reset or number > poll:
                changed.append(row)
        if not changed and not reset:
            return None
        return {"reset": reset, "rows": changed}


class EventStream:
    """Polls a run directory while at least one browser shows it."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._polls = 0
        self._polled_at = float("-inf")
        self._view: View | None = None
        self._rows = Rows()
        self._charts_poll = 0  # at which the charts changed last
        self._changed = asyncio.Condition()
        self._stopping = asyncio.Event()
        self.browsers = 0

    def stop(self) -> None:
        """End all streams. Called in the event loop."""
        self._stopping.set()

    async def run(self) -> None:
        """Poll the run directory until `stop` is called."""
        while not self._stopping.is_set():
            if self.browsers:
                await self._poll()
            await self._pause(INTERVAL if self.browsers else INTERVAL / 10)
        async with self._changed:
            self._changed.notify_all()

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    async def _poll(self) -> None:
        view = await asyncio.to_thread(self._watcher.poll)
        self._polls += 1
        self._polled_at = time.monotonic()
        if self._view is None or view.charts != self._view.charts:
            self._charts_poll = self._polls
        self._rows.update(view.rows, self._polls)
        self._view = view
        async with self._changed:
            self._changed.notify_all()

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the content of the page, and then its changes."""
        self.browsers += 1
        seen = 0
        head: dict[str, Any] = {}
        sent_at = time.monotonic()
        try:
            await self._wait_for_first_poll()
            while not self._stopping.is_set():
                messages, head = self._news(seen, head)
                seen = self._polls  # before the messages are sent, which may take several polls
                if messages:
                    sent_at = time.monotonic()
                    yield messages
                elif time.monotonic() - sent_at > PING:
                    sent_at = time.monotonic()
                    yield b": alive\n\n"
                async with self._changed:
                    if seen == self._polls and not self._stopping.is_set():
                        await self._changed.wait()
        finally:
            self.browsers -= 1

    async def _wait_for_first_poll(self) -> None:
        """Wait for a poll, unless the last one was made for other browsers a moment ago."""
        async with self._changed:
            if time.monotonic() - self._polled_at > 2 * INTERVAL and not self._stopping.is_set():
                await self._changed.wait()

    def _news(self, seen: int, head: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
        """Return the events after a poll, and the head of the page that was sent last."""
        assert self._view is not None
        messages = b""
        new_head = self._view.head
        if new_head | {"now": 0} != head | {"now": 0}:
            messages += event("head", new_head)
        if self._charts_poll > seen:
            messages += event("charts", self._view.charts)
        rows = self._rows.since(seen)
        if rows is not None:
            messages += event("clients", rows)
        return messages, new_head


def event(name: str, data: Any) -> bytes:
    """Return one server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
