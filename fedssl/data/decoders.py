"""Many files decoded side by side: by threads into memory, or by processes into a file.

Pillow lets other threads run while it decodes, but not while Python reads a header and looks for orientation: about a
tenth of the time of a photo of 500 × 375, so that more than eight threads or so are of no use. Processes have no such
limit. They are not multiprocessing's: those run a user's script once more in each, and endlessly so where its author
forgot `if __name__ == "__main__"`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedssl.data import decode
from fedssl.data.decode import Array, Job, Outcome, Unreadable
from fedssl.data.progress import Say, meter
from fedssl.errors import DataError

CHUNK = 32  # files per task: a million files make 30,000 tasks, not a million
FEW = 500  # files that are decoded before processes have started
_MOST_THREADS = 8

Open = Callable[[str], Path | bytes]
T = TypeVar("T")
R = TypeVar("R")


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def decode_all(names: Sequence[str], source: Open, size: int, channels: int, say: Say) -> tuple[Tensor, dict[int, str]]:
    """Decode `source(name)` of all names in a pool of threads.

    Returns the pixels (n, channels, size, size) of those that could be read, in order, and the places in
    `names` of those that could not, each with its reason.
    """
    pixels = torch.empty(len(names), channels, size, size, dtype=torch.uint8)
    bad: dict[int, str] = {}

    def work(chunk: Sequence[str]) -> list[Array | str]:
        return [_attempt(source(name), size, channels) for name in chunk]

    with (
        meter(f"decoding {len(names):,} images", len(names), say) as advance,
        _side_by_side(work, chunked(names), min(_MOST_THREADS, cores())) as answers,
    ):
        done = 0
        for results in answers:
            for result in results:
                if isinstance(result, str):
                    bad[done] = result
                else:
                    pixels[done - len(bad)] = torch.from_numpy(result)
                done += 1
            advance(len(results))
    return pixels[: len(names) - len(bad)], bad


def _attempt(source: Path | bytes, size: int, channels: int) -> Array | str:
    try:
        return decode.decode(source, size, channels)
    except Unreadable as failure:
        return str(failure)


def chunked(items: Sequence[T]) -> list[Sequence[T]]:
    return [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]


@contextmanager
def filling(
    target: int, size: int, channels: int, chunks: Sequence[Sequence[Job]], held: int
) -> Iterator[Iterator[list[Outcome]]]:
    """Outcomes of every chunk of jobs, in order, whose pixels are then in the open file `target`.

    Worker processes inherit `held`, a lock's descriptor: should this process be killed, the lock is free when the last
    of them has stopped writing.
    """
    able = bool(sys.executable) and not getattr(sys, "frozen", False)  # frozen: it is the program itself
    if not able or sum(map(len, chunks)) < FEW:
        work = partial(decode.fill, target, size, channels)
        with _side_by_side(work, chunks, min(_MOST_THREADS, cores())) as answers:
            yield answers
        return
    count = min(cores(), len(chunks))
    workers: list[_Worker] = []
    idle: SimpleQueue[_Worker] = SimpleQueue()

    def ask(chunk: Sequence[Job]) -> list[Outcome]:
        worker = idle.get()
        try:
            return worker.ask(chunk)
        finally:
            idle.put(worker)

    def kill() -> None:
        for worker in workers:
            worker.kill()

    try:
        for _ in range(count):
            workers.append(_Worker(target, size, channels, held))
            idle.put(workers[-1])
        with _side_by_side(ask, chunks, count, hurry=kill) as answers:
            yield answers
    finally:
        for worker in workers:
            worker.end()


@contextmanager
def _side_by_side(
    work: Callable[[T], R], chunks: Sequence[T], threads: int, hurry: Callable[[], object] = lambda: None
) -> Iterator[Iterator[R]]:
    """`work` of every chunk, in order; whoever leaves early does not wait for chunks that have not begun."""
    # Filters of warnings belong to the whole process, so they are changed once, around all threads.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with ThreadPoolExecutor(threads) as pool:
            try:
                yield pool.map(work, chunks)
            except BaseException:  # Ctrl-C must not wait for the rest
                hurry()
                pool.shutdown(cancel_futures=True)
                raise


class _Worker:
    """A process that runs decode.py."""

    def __init__(self, target: int, size: int, channels: int, held: int) -> None:
        # -P: beside decode.py lie modules with everyday names, which must not hide others.
        command = [sys.executable, "-P", decode.__file__, str(target), str(size), str(channels)]
        where = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}  # Pillow, wherever it was found
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **where},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(target, held),
        )

    def ask(self, chunk: Sequence[Job]) -> list[Outcome]:
        to, back = self._process.stdin, self._process.stdout
        assert to is not None
        assert back is not None
        try:
            to.write(json.dumps(chunk).encode() + b"\n")
            to.flush()
            line = back.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise DataError("a process that decodes images ended early; the machine may be short of memory")
        answer: Any = json.loads(line)
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        return list(answer)

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        """Without input it stops."""
        to, back = self._process.stdin, self._process.stdout
        assert to is not None
        assert back is not None
        with suppress(BrokenPipeError):
            to.close()
        self._process.wait()
        back.close()
