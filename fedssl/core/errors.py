"""Errors for users: each is one sentence that a user can act on, with an exit code per class."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path


class FedsslError(Exception):
    """Base of every error that fedssl raises for a user to read; the command line prints it without
    a traceback."""

    exit_code = 1


class ConfigError(FedsslError):
    """The experiment cannot be run as written: a typo, a wrong type, an impossible combination."""

    exit_code = 2


class DataError(FedsslError):
    """Images are missing, unreadable or not as the experiment describes them.

    The sentence may appear in any log or report. It does not contain names of private files; they
    are in `detail`, which is for their owner: the command line prints it, except into logs that
    fedssl writes.
    """

    exit_code = 3

    def __init__(self, sentence: str, detail: str = "") -> None:
        super().__init__(sentence)
        self.detail = detail


class RunError(FedsslError):
    """The run stopped safely; its last checkpoint is intact."""

    exit_code = 4


class OutOfMemory(RunError):  # noqa: N818 - named after torch's
    """The machine has too little memory; the last checkpoint is intact."""

    exit_code = 5


_ALLOCATOR_MESSAGES = (
    "DefaultCPUAllocator",
    "out of memory",
    "Storage size calculation overflowed",
)


def is_out_of_memory(problem: BaseException) -> bool:
    """True for MemoryError, the RuntimeError of torch's allocators and the system's ENOMEM."""
    if isinstance(problem, MemoryError):
        return True
    if isinstance(problem, OSError):
        return problem.errno == errno.ENOMEM
    if isinstance(problem, RuntimeError):
        return any(text in str(problem) for text in _ALLOCATOR_MESSAGES)
    return False


def out_of_memory(problem: BaseException) -> OutOfMemory:
    """Return the error for a user, with the first line of torch's message; a stack follows it."""
    first_line = (str(problem) or type(problem).__name__).partition("\n")[0].strip()
    return OutOfMemory(
        "the machine has too little memory for this: try a smaller train.batch, method.view_size "
        "or model, or fewer train.workers; "
        f"files saved before are intact ({first_line[:200]})"
    )


@contextlib.contextmanager
def explained_errors(folder: Path) -> Iterator[None]:
    """Turn errors of memory, and of writing to a folder, into errors that a user can act on."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as problem:
        if is_out_of_memory(problem):
            raise out_of_memory(problem) from problem
        if not isinstance(problem, OSError):
            raise
        raise RunError(
            f"{folder} cannot be written: {problem}; files saved before are intact"
        ) from problem


class ClientError(FedsslError):
    """One client cannot take part in this round; the others continue."""


class TooFewUploadsError(FedsslError):
    """A mean cannot be computed from so few uploads; the site keeps its previous model."""
