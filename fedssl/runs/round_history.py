"""Facts from the rounds log that belong to the results of a run."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedssl.core.provenance import UNKNOWN, code
from fedssl.runs.collapse_warning import Collapse
from fedssl.runs.rounds_log import read_rounds


class History(NamedTuple):
    """Facts from the rounds log that belong to the results."""

    notes: list[str]
    codes: list[str]  # that computed the rounds and compute the results


def read_history(folder: Path) -> History:
    """Return the facts from the rounds log in a run directory."""
    collapse = Collapse()
    lengths: set[int] = set()
    codes: dict[str, None] = {}  # in the order of their first rounds
    for line in read_rounds(folder / "rounds.jsonl"):
        collapse.update(line)
        lengths.add(line["of"])
        codes[line.get("code", UNKNOWN)] = None
    codes[code()] = None
    notes = []
    # Unless the learning rate is constant, one run of that length would give other weights.
    if len(lengths) > 1:
        notes.append(f"started as a run of {min(lengths)} rounds and extended to {max(lengths)}")
    if collapse.likely:
        notes.append(collapse.likely)
    if len(codes) > 1:
        notes.append(
            f"computed by several versions of fedssl's code ({', '.join(codes)}), which may differ "
            "in their results"
        )
    return History(notes, list(codes))
