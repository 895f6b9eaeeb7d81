"""Write the table in SECURITY.md: what each algorithm sends, and what its clients keep.

    python docs/make_security.py          write it
    python docs/make_security.py --print  print it

Each algorithm trains two rounds on tiny images, with the first of a few usual methods that it works
with. Uploads are those that its schema requires; messages and memories are those of the second
round.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from markdown_table import table
from torch import Tensor

from fedssl.algorithm import ALGORITHMS, Features, Sites, Spec, TensorSpec
from fedssl.cli import combinations
from fedssl.cli.combinations import Combination, images, tiny
from fedssl.core.errors import ConfigError
from fedssl.core.state.layout import Layout
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, Value
from fedssl.engine.checkpoints.client_memory import ClientMemory
from fedssl.engine.federate import Round, Runtime, federate
from fedssl.engine.uploads.records import Reply

PAGE = Path(__file__).parent.parent / "SECURITY.md"
BEGIN = "<!-- table of docs/make_security.py -->\n"
END = "<!-- end of the table -->\n"
METHODS = ("simclr", "byol", "mocov2")
CLIENT = "0"
ROLES = {
    "weight": "weights",
    "norm": "norm layers",
    "statistic": "running statistics",
    "buffer": "buffers",
    "counter": "counters",
}


class Sent(NamedTuple):
    """What is sent and kept in a round, by key."""

    method: str
    message: Mapping[str, Value]
    schema: Mapping[str, Spec]
    memory: Mapping[str, Value]
    warning: str | None


class Recorder:
    """A runtime that keeps the last message to one client."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.clients = runtime.clients
        self.message: Tree = {}

    def exchange(
        self, round: int, clients: Sequence[str], message: Callable[[str], Tree]
    ) -> Iterator[Reply]:
        """Pass on messages and replies."""

        def recorded(client: str) -> Tree:
            tree = message(client)
            if client == CLIENT:
                self.message = tree
            return tree

        return self.runtime.exchange(round, clients, recorded)


def record(algorithm: str) -> Sent:
    """Train an algorithm for two rounds; return what it sends."""
    method, experiment = _experiment(algorithm)
    kept: dict[str, Any] = {}

    def watched(
        algorithm: Any, topology: Any, runtime: Runtime, sites: Sites, **rest: Any
    ) -> Iterator[Round]:
        kept["recorder"] = Recorder(runtime)
        kept["schema"] = rest["schema"]
        return federate(algorithm, topology, kept["recorder"], sites, **rest)

    memory = ClientMemory()
    with mock.patch.object(combinations, "federate", watched):
        combinations.train(experiment, images(), memory=memory)
    return Sent(
        method,
        kept["recorder"].message,
        kept["schema"],
        memory.latest(CLIENT),
        experiment.algorithm.warning,
    )


def _experiment(algorithm: str) -> tuple[str, Any]:
    """Return the first usual method that an algorithm works with, and a tiny experiment."""
    for method in METHODS:
        try:
            experiment = tiny(Combination(algorithm, method, "star"))
            experiment.check()
        except ConfigError:
            continue
        return method, experiment
    raise SystemExit(f"{algorithm} works with none of {', '.join(METHODS)}")


def describe(values: Mapping[str, Value | Spec]) -> str:
    """Return the contents of a message, upload or memory, key by key."""
    lines = [f"`{key}`: {_describe(value)}" for key, value in values.items()]
    return "<br>".join(lines) or "nothing"


def _describe(value: Value | Spec) -> str:
    if isinstance(value, State):
        return _describe_layout(value.layout)
    if isinstance(value, Layout):
        return _describe_layout(value)
    if isinstance(value, Features):
        return f"features of images, at most {value.max_rows:,} rows"
    if isinstance(value, (TensorSpec, Tensor)):
        return "a tensor"
    return "a number"


def _describe_layout(layout: Layout) -> str:
    """Return the parts of a model and the kinds of its tensors."""
    parts = _unique(entry.part for entry in layout.entries)
    roles = _unique(ROLES[entry.role] for entry in layout.entries)
    return f"{', '.join(parts)} ({', '.join(roles)})"


def _unique(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(words))


def sent_table() -> str:
    """Return the table of all algorithms of fedssl."""
    rows = []
    for name in ALGORITHMS.names():
        if not ALGORITHMS[name].__module__.startswith("fedssl."):
            continue
        sent = record(name)
        upload = describe(sent.schema)
        if sent.warning is not None:
            upload += "<br>**unencrypted features of private images**"
        cells = [f"`{name}` with `{sent.method}`", describe(sent.message), upload]
        rows.append([*cells, describe(sent.memory)])
    head = ("algorithm", "to a client", "from a client", "kept at the client")
    return table(head, rows)


def page(text: str) -> str:
    """Return the page with a new table."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{sent_table()}{END}{after}"


def main() -> None:
    if "--print" in sys.argv[1:]:
        print(sent_table(), end="")
    else:
        PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
