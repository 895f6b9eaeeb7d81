"""Events for browsers: the whole state at first, then changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from watched_runs import client_line, encoded, round_line, write_run

from fedssl.core.files.checked_lines import append
from fedssl.pages.live import event_stream
from fedssl.pages.live.event_stream import EventStream, Rows
from fedssl.pages.live.watcher import Watcher


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "INTERVAL", 0.02)


def test_rows_are_sent_once_until_they_change() -> None:
    rows = Rows()
    rows.update({"a": {"loss": 1}, "b": {"loss": 1}}, 1)
    assert rows.since(0) == {"reset": True, "rows": [{"loss": 1}, {"loss": 1}]}
    assert rows.since(1) is None
    rows.update({"a": {"loss": 1}, "b": {"loss": 2}}, 2)
    assert rows.since(1) == {"reset": False, "rows": [{"loss": 2}]}
    assert rows.since(2) is None


def test_if_a_row_is_removed_all_are_sent_again() -> None:
    rows = Rows()
    rows.update({"a": {}, "b": {}}, 1)
    rows.update({"b": {}}, 2)
    assert rows.since(1) == {"reset": True, "rows": [{}]}
    assert rows.since(2) is None


def _decode(data: bytes) -> dict[str, Any]:
    """Return the data of the events in a chunk, by name."""
    events = {}
    for block in data.decode().split("\n\n"):
        if block.startswith("event: "):
            name, _, text = block.removeprefix("event: ").partition("\ndata: ")
            events[name] = json.loads(text)
    return events


async def _next(events: AsyncIterator[bytes]) -> dict[str, Any]:
    return _decode(await asyncio.wait_for(anext(events), 10))


def test_two_browsers_get_everything_and_then_what_changes(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", round_line(1))

    async def watch() -> None:
        stream = EventStream(Watcher(folder))
        task = asyncio.create_task(stream.run())
        first = stream.events()
        initial = await _next(first)
        assert initial.keys() == {"head", "charts", "clients"}
        assert initial["head"]["finished"] == 1
        second = stream.events()
        assert (await _next(second)).keys() == {"head", "charts", "clients"}
        assert stream.browsers == 2
        line = round_line(2, client_line("a"), client_line("b", loss=1.0))
        append(folder / "rounds.jsonl", 1, encoded(line)[0])
        for events in (first, second):
            news = await _next(events)
            assert news["head"]["finished"] == 2
            assert news["charts"][0]["x"] == [1, 2]
            assert [row["name"] for row in news["clients"]["rows"]] == ["a", "b"]
            assert not news["clients"]["reset"]
        stream.stop()
        for events in (first, second):
            with pytest.raises(StopAsyncIteration):
                await _next(events)
        assert stream.browsers == 0
        await asyncio.wait_for(task, 10)

    asyncio.run(watch())


def test_without_browsers_the_run_is_not_read(tmp_path: Path) -> None:
    class Counted(Watcher):
        looks = 0

        def poll(self, now: float | None = None) -> Any:
            self.looks += 1
            return super().poll(now)

    async def watch() -> None:
        watcher = Counted(tmp_path)
        stream = EventStream(watcher)
        task = asyncio.create_task(stream.run())
        await asyncio.sleep(0.1)
        assert watcher.looks == 0
        events = stream.events()
        await _next(events)
        assert watcher.looks > 0
        stream.stop()
        await task

    asyncio.run(watch())
