"""flower.json in a run directory: who takes part in a run on Flower, and how often its server has begun."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from fedssl.store import write_atomic


class Roll(NamedTuple):
    """The server's every start is an attempt at the run, from the round it could go on with."""

    run: str
    starts: tuple[int, ...]
    clients: tuple[str, ...]  # with images, in order; none: nobody has joined yet
    image: tuple[int, int, int] | None

    @classmethod
    def of(cls, folder: Path, begins: int) -> Roll:
        """With one more start, at round `begins`."""
        path = folder / "flower.json"
        if not path.is_file():
            return cls(uuid4().hex, (begins,), (), None)
        values = json.loads(path.read_text("utf-8"))
        image = None if values["image"] is None else tuple(values["image"])
        return cls(values["run"], (*values["starts"], begins), tuple(values["clients"]), image)

    def write(self, folder: Path) -> Roll:
        write_atomic(folder / "flower.json", (json.dumps(self._asdict()) + "\n").encode())
        return self
