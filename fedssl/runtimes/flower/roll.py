"""flower.json in a run directory: who takes part in a run on Flower, and how often its server has begun."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from uuid import uuid4

from fedssl import integrity
from fedssl.agree import started
from fedssl.data.progress import say_on_stderr
from fedssl.errors import RunError

NOBODY: Mapping[str, int] = MappingProxyType({})


class Roll(NamedTuple):
    """The server's every start is an attempt at the run, from the round it could go on with."""

    run: str
    starts: tuple[int, ...]
    clients: tuple[str, ...]  # with images, in order; none: nobody has joined yet
    image: tuple[int, int, int] | None
    kept: Mapping[str, int] = NOBODY  # clients that have a model of their own, and after how many rounds it was made
    registered: bool = False  # whether clients' names are those that their keys were registered with

    @classmethod
    def of(cls, folder: Path, begins: int | None) -> Roll:
        """With one more start, at round `begins`; None: nothing has been saved yet.

        Refused where rounds are saved and no roll is: clients would be taken for new ones, and what they remember lost.
        """
        path = folder / "flower.json"
        text = integrity.read_text(folder, path.name, say_on_stderr)
        if text is None or not started(folder):  # without a checkpoint it is what a start that failed left behind
            if begins is not None:
                raise RunError(
                    f"{folder} has checkpoints but no flower.json: the run was not begun on Flower, or the file is "
                    "lost, and nobody knows what its clients remember. Nothing was changed; choose another run-dir"
                )
            return cls(uuid4().hex, (0,), (), None)
        try:
            values = json.loads(text)
            image = None if values["image"] is None else tuple(values["image"])
            clients, starts = tuple(values["clients"]), (*values["starts"], begins or 0)
            registered = values.get("registered", False) is True
            roll = cls(values["run"], starts, clients, image, values["kept"], registered)
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise RunError(f"{path} is damaged ({problem}); nothing was changed") from problem
        integrity.write_copied(folder, path.name, text)  # repairs the file
        return roll

    def write(self, folder: Path) -> Roll:
        values = {**self._asdict(), "kept": dict(self.kept)}
        integrity.write_copied(folder, "flower.json", json.dumps(values) + "\n")
        return self
