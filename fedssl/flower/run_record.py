"""flower.json in a run directory: the clients of a run on Flower and the starts of its server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

from fedssl.core.console import print_to_stderr
from fedssl.core.errors import RunError
from fedssl.core.files import integrity
from fedssl.flower.messages import first_problem
from fedssl.runs.resume_checks import started

FILE = "flower.json"


class RunRecord(NamedTuple):
    """The contents of flower.json.

    Each start of the server is an attempt at the run, from the round that it resumed at.
    """

    run: str
    starts: tuple[int, ...]
    clients: tuple[str, ...]  # with images, in order; empty: none has joined yet
    image: tuple[int, int, int] | None
    kept: Mapping[str, int]  # client -> rounds after which its own model was made
    registered: bool = False  # True if clients have the names their keys were registered with
    secure_aggregation: bool = False  # True if uploads are masked

    @classmethod
    def start_attempt(
        cls, folder: Path, first_round: int | None, secure_aggregation: bool = False
    ) -> RunRecord:
        """Return the record with one more start, at `first_round`; None: nothing was saved yet.

        Raises if there are saved rounds but no record: clients would be treated as new ones, and
        their stored state would be lost. Raises also if the run has masked uploads and this start
        does not, or the other way round.
        """
        text = integrity.read_text(folder, FILE, print_to_stderr)
        # Without a checkpoint, the file is left over from a start that failed.
        if text is None or not started(folder):
            if first_round is not None:
                raise RunError(
                    f"{folder} has checkpoints but no {FILE}: the run was not started on Flower, "
                    "or the file is lost, and with it the link to the state of its clients. "
                    "Nothing was changed; choose another run-dir"
                )
            return cls(
                uuid4().hex,
                starts=(0,),
                clients=(),
                image=None,
                kept={},
                secure_aggregation=secure_aggregation,
            )
        try:
            record = TypeAdapter(cls).validate_json(text, strict=True)
        except ValidationError as failure:
            problem = first_problem(failure)
            raise RunError(f"{folder / FILE} is damaged ({problem}); nothing was changed") from None
        if record.secure_aggregation != secure_aggregation:
            raise RunError(
                f"{folder} was started with secure-aggregation = {_toml(not secure_aggregation)}, "
                f"and the app's config has {_toml(secure_aggregation)}; nothing was changed. "
                "Restore the setting, or choose another run-dir"
            )
        integrity.write_copied(folder, FILE, text)  # repairs the file
        return record._replace(starts=(*record.starts, first_round or 0))

    def write(self, folder: Path) -> RunRecord:
        """Write the record to the run directory, and return it."""
        integrity.write_copied(folder, FILE, json.dumps(self._asdict()) + "\n")
        return self


def _toml(value: bool) -> str:
    return str(value).lower()
