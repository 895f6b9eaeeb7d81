"""Load the global model, keep local parts between rounds, and average the clients' models."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable

from fedssl.algorithm import Averaging, Upload
from fedssl.core.state.layout import Layout
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, model
from fedssl.method import Method
from fedssl.training.client import Client


def online_layout(method: Method) -> Layout:
    """Return the layout of the parts that are trained and uploaded."""
    return method.state.layout.pick(method.online)


def online_model(method: Method) -> State:
    """Return a copy of the parts that are trained and uploaded."""
    return method.state.pick(method.online)


def load_model(client: Client, received: State, *others: State) -> None:
    """Load the model that training starts from into the client's resident method.

    `others` are parts that complete or replace those of the `received` model, such as a target
    that the client kept from its last round. Parts that are in none of them start afresh: a target
    as a copy of the received encoder, a queue at random.
    """
    method = client.method
    method.state.load(received)
    loaded = set(method.online)
    for state in others:
        loaded.update(state.layout.parts)
    if method.provides - loaded:
        method.init_local_parts(client.generator("fresh"))
    for state in others:
        method.state.load(state)


def stored_models(tree: Tree, key: str) -> list[State]:
    """Return the model under a key as a list, which is empty if the key is missing."""
    return [model(tree, key)] if key in tree else []


def keep(client: Client, parts: Collection[str]) -> Tree:
    """Return the memory of local parts, under the key "kept"; empty if there are none."""
    layout = client.method.state.layout.pick(parts)
    if not layout.entries:
        return {}
    return {"kept": client.method.state.restricted(layout)}


def for_each(uploads: Iterable[Upload], function: Callable[[Upload], None]) -> None:
    """Call a function on each upload, and release the upload before the next one arrives.

    The variable of a `for` loop would hold an upload until the next one is complete, so that two
    models are in memory at a time.
    """
    deque(map(function, uploads), maxlen=0)


def average(models: Tree, uploads: Iterable[Upload], mean: Callable[[], Averaging]) -> Tree:
    """Return the weighted mean of the uploads under each key of `models`.

    Entries of a model that clients do not upload keep their value: it is the start for newcomers.
    """
    totals = {key: mean() for key in models}

    def add(upload: Upload) -> None:
        for key, total in totals.items():
            total.add(model(upload.tree, key), upload.weight)

    for_each(uploads, add)
    return {key: model(models, key).overwritten(total.result()) for key, total in totals.items()}
