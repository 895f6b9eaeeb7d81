"""Decode many files in parallel: by threads into memory, or by processes into a file.

Pillow releases the GIL while it decodes, but not while Python reads a header and the orientation:
about a tenth of the time of a photo of 500 × 375, so more than about eight threads do not help.
Processes have no such limit. They are not started by multiprocessing, which runs a user's script
again in each process, and endlessly so if the script lacks `if __name__ == "__main__"`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedssl.core.console import Notify, meter
from fedssl.core.devices.select import cores
from fedssl.core.errors import DataError
from fedssl.data import decode, decode_worker
from fedssl.data.decode import Array, Unreadable
from fedssl.data.decode_worker import Job, Outcome

CHUNK = 32  # files per task: a million files make 30,000 tasks, not a million
MIN_FILES_FOR_PROCESSES = 500  # fewer are decoded before processes have started
_MAX_THREADS = 8

Open = Callable[[str], Path | bytes]
Outcomes = AbstractContextManager[Iterator[list[Outcome]]]
WorkerArguments = tuple[int, int, int, int, int]  # of decode_worker.serve
T = TypeVar("T")
R = TypeVar("R")


def decode_all(
    names: Sequence[str],
    source: Open,
    size: int,
    channels: int,
    notify: Notify,
    *,
    background: int = 0,
    pad: bool = False,
) -> tuple[Tensor, dict[int, str]]:
    """Decode `source(name)` for all names, in threads.

    Return the pixels (n, channels, size, size) of the readable files, in order, and the reason for
    each unreadable file, by its position in `names`.
    """
    pixels = torch.empty(len(names), channels, size, size, dtype=torch.uint8)
    bad: dict[int, str] = {}

    def decode_chunk(chunk: Sequence[str]) -> list[Array | str]:
        return [_pixels_or_reason(source(name), size, channels, background, pad) for name in chunk]

    with (
        meter(f"decoding {len(names):,} images", len(names), notify) as advance,
        _map_in_threads(decode_chunk, chunked(names), _thread_count()) as chunk_results,
    ):
        position = 0
        for results in chunk_results:
            for result in results:
                if isinstance(result, str):
                    bad[position] = result
                else:
                    pixels[position - len(bad)] = torch.from_numpy(result)
                position += 1
            advance(len(results))
    return pixels[: len(names) - len(bad)], bad


def _pixels_or_reason(
    source: Path | bytes, size: int, channels: int, background: int, pad: bool
) -> Array | str:
    try:
        return decode.decode(source, size, channels, background, pad)
    except Unreadable as error:
        return str(error)


def _thread_count() -> int:
    return min(_MAX_THREADS, cores())


def chunked(items: Sequence[T]) -> list[Sequence[T]]:
    """Return the items in consecutive chunks of CHUNK."""
    return [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]


def decode_into_file(
    target: int,
    size: int,
    channels: int,
    chunks: Sequence[Sequence[Job]],
    *,
    lock: int,
    background: int = 0,
    pad: bool = False,
) -> Outcomes:
    """Decode all jobs into the open file `target`; enter to iterate over each chunk's outcomes.

    The outcomes are in order. Worker processes inherit `lock`, the descriptor of a lock: if this
    process is killed, the lock is released when the last worker has stopped writing.
    """
    if _can_start_workers() and sum(map(len, chunks)) >= MIN_FILES_FOR_PROCESSES:
        arguments = (target, size, channels, background, int(pad))
        return _decode_in_processes(arguments, chunks, lock=lock)
    fill = partial(decode_worker.fill, target, size, channels, background, pad)
    return _map_in_threads(fill, chunks, _thread_count())


def _can_start_workers() -> bool:
    """False without an interpreter: in a frozen program, sys.executable is the program itself."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


@contextmanager
def _decode_in_processes(
    arguments: WorkerArguments, chunks: Sequence[Sequence[Job]], *, lock: int
) -> Iterator[Iterator[list[Outcome]]]:
    count = min(cores(), len(chunks))
    workers: list[_Worker] = []
    idle: SimpleQueue[_Worker] = SimpleQueue()

    def decode_chunk(chunk: Sequence[Job]) -> list[Outcome]:
        worker = idle.get()
        try:
            return worker.decode(chunk)
        finally:
            idle.put(worker)

    def kill_all() -> None:
        for worker in workers:
            worker.kill()

    try:
        for _ in range(count):
            worker = _Worker(arguments, lock)
            workers.append(worker)
            idle.put(worker)
        with _map_in_threads(decode_chunk, chunks, count, on_error=kill_all) as outcomes:
            yield outcomes
    finally:
        for worker in workers:
            worker.close()


@contextmanager
def _map_in_threads(
    work: Callable[[T], R],
    chunks: Sequence[T],
    threads: int,
    *,
    on_error: Callable[[], object] = lambda: None,
) -> Iterator[Iterator[R]]:
    """Iterate over `work(chunk)` for every chunk, in order.

    If the body raises, chunks that have not started are cancelled.
    """
    # Warning filters belong to the whole process, so they are changed once, around all threads.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with ThreadPoolExecutor(threads) as pool:
            try:
                yield pool.map(work, chunks)
            except BaseException:  # Ctrl-C must not wait for the remaining chunks
                on_error()
                pool.shutdown(cancel_futures=True)
                raise


class _Worker:
    """A process that runs decode_worker.py."""

    def __init__(self, arguments: WorkerArguments, lock: int) -> None:
        # -P: the modules next to decode_worker.py have common names, which must not hide others.
        program = [sys.executable, "-P", decode_worker.__file__]
        # The worker finds Pillow where this process found it.
        search_path = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(  # nosec B603 # this Python, fixed arguments
            [*program, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": search_path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(arguments[0], lock),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests = self._process.stdin
        self._answers = self._process.stdout

    def decode(self, chunk: Sequence[Job]) -> list[Outcome]:
        """Decode a chunk and return its outcomes; raise the worker's OSError, or DataError."""
        try:
            self._requests.write(json.dumps(chunk).encode() + b"\n")
            self._requests.flush()
            line = self._answers.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise DataError(
                "a process that decodes images ended early; the machine may be short of memory"
            )
        answer: Any = json.loads(line)
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        return list(answer)

    def kill(self) -> None:
        """Stop the process at once."""
        self._process.kill()

    def close(self) -> None:
        """Close the input, which ends the process, and wait for it."""
        with suppress(BrokenPipeError):
            self._requests.close()
        self._process.wait()
        self._answers.close()
