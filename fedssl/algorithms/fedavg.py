"""FedAvg: the mean of the clients' models, weighted by their number of images.

McMahan et al., "Communication-efficient learning of deep networks from decentralized data",
AISTATS 2017, Algorithm 1. The choices of networks in FedU's Table 4 are in _network_choice.py.
Departures: running statistics are averaged with the weights; counters keep the largest. In a
client's first round its target and predictor start from the global model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fedssl.algorithm import ALGORITHMS, Averaging, Upload
from fedssl.algorithms._averaging import for_each
from fedssl.algorithms._network_choice import NetworkChoice
from fedssl.core.state.tree import Tree, model
from fedssl.training.client import Client


@ALGORITHMS.register("fedavg")
class FedAvg(NetworkChoice):
    """The mean of the clients' models, weighted by their number of images."""

    def init(self, client: Client) -> Tree:
        return self.initial_models(client.method)

    def broadcast(self, site: Tree, client_id: str) -> Tree:
        return site

    def client_update(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        """ClientUpdate(k, w): train the model received, and return it."""
        self.start(client, message)
        client.train(self.objective, self.constants(client, message), self.draw)
        return self.upload(client), self.memory(client)

    @property
    def needs_only_means(self) -> bool:
        return True

    def merge(self, site: Tree, uploads: Iterable[Upload], mean: Callable[[], Averaging]) -> Tree:
        """w ← Σ_k n_k/n · w_k, where n_k is the number of images of client k and n = Σ_k n_k.

        Other algorithms call `_averaging.average`, which is the same.
        """
        means = {key: mean() for key in site}

        def add(upload: Upload) -> None:
            for key, total in means.items():
                total.add(model(upload.tree, key), upload.weight)

        for_each(uploads, add)
        # Entries that clients do not upload keep their first value, for newcomers.
        return {key: model(site, key).overwritten(total.result()) for key, total in means.items()}
