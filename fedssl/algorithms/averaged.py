"""What most algorithms share: a site holds one model, clients start from it, and their models are averaged."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterable, Mapping

from fedssl.algorithm import Algorithm, Averaging, Spec, Upload
from fedssl.client import Client
from fedssl.layout import Layout
from fedssl.method import Method
from fedssl.tree import State, Tree, model


class Averaged(Algorithm, ABC):
    """A round at a client is `begin`, training, `upload` and `remember`; an algorithm replaces those it needs to."""

    def shared(self, method: Method) -> Layout:
        """What travels."""
        return method.state.layout.pick(method.online)

    def kept(self, method: Method) -> Layout:
        """What outlives a round at the client."""
        return method.state.layout.pick(method.kept)

    def wire(self, method: Method) -> Mapping[str, Spec]:
        return {"model": self.shared(method)}

    def init(self, home: Client) -> Tree:
        return {"model": home.method.state.pick(home.method.online)}

    def broadcast(self, site: Tree, client_id: str) -> Tree:
        return site

    def client(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        self.begin(client, message)
        client.train(self.objective, self.given(client, message), self.draw)
        return self.upload(client, message), self.remember(client, message)

    def begin(self, client: Client, message: Tree) -> None:
        """Load what training starts from: what was sent, and what the client has of its own from an earlier round. Of
        parts it has neither, a target copies the encoder sent."""
        method = client.method
        method.state.load(model(message, "model"))
        own = [model(tree, key) for tree, key in ((message, "target"), (client.memory, "kept")) if key in tree]
        if method.provides - {*method.online, *(part for found in own for part in found.layout.parts)}:
            method.fresh(client.generator("fresh"))
        for found in own:
            method.state.load(found)

    def upload(self, client: Client, message: Tree) -> Tree:
        return {"model": client.method.state.restricted(self.shared(client.method))}

    def remember(self, client: Client, message: Tree) -> Tree:
        kept = self.kept(client.method)
        return {"kept": client.method.state.restricted(kept)} if kept.entries else {}

    def merge(self, site: Tree, uploads: Iterable[Upload], mean: Callable[[], Averaging]) -> Tree:
        means = {key: mean() for key in site}
        for upload in uploads:
            for key, total in means.items():
                total.add(model(upload.tree, key), upload.weight)
            del upload  # or it would live on until the next one has come
        # Overwritten, not replaced: what stays local keeps its first value here, for newcomers.
        return {key: model(site, key).overwritten(total.result()) for key, total in means.items()}

    def export(self, site: Tree) -> dict[str, State]:
        return {"global": model(site, "model")}
