"""What made the figures of a table: said, and warned of where they may not be compared with each other or with today's.

A table keeps what older code has made, because hours went into it and most changes of code change no figure. But it
says so: whether a change mattered, a person can tell, and `--fresh` makes those figures again.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedssl.provenance import code
from fedssl.reproduce.outcome import Outcome, Seed


def made_by(outcome: Outcome) -> list[str]:
    """Sentences: the versions and devices that made the figures, whatever is to be warned of first."""
    ways = sorted({_way(seed) for seed in _done(outcome)})
    if not ways:
        return []
    return [*cautions(outcome)] if len(ways) > 1 else [*cautions(outcome), f"Made by {ways[0]}."]


def cautions(outcome: Outcome) -> Iterator[str]:
    """Where figures were not all made alike, or not by the code of today."""
    done = list(_done(outcome))
    ways = sorted({_way(seed) for seed in done})
    if len(ways) > 1:
        yield f"Not all of these were made alike: {'; '.join(ways)}."
    older = [seed for seed in done if {*seed.codes} != {code()}]
    if older:
        yield (
            f"{len(older)} of {len(done)} measurements were made by other code than that of today ({code()}): "
            "--fresh makes them again, and keeps what is there under another name."
        )


def _done(outcome: Outcome) -> Iterator[Seed]:
    return (seed for result in outcome.results for seed in result.seeds if seed.done)


def _way(seed: Seed) -> str:
    """Such as "fedssl 0.1.0, code 0123abcd, torch 2.13.0, device cpu"."""
    said = {**seed.environment, "code": " and ".join(seed.codes)}
    order = [key for key in ("fedssl", "code", *said) if key in said]
    return ", ".join(f"{key} {said[key]}" for key in dict.fromkeys(order))
