"""A node: the checks before an upload is masked, and what it refuses."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from error_messages import raises
from fake_grid import Nodes, tiny

from fedssl.core.errors import ClientError, ConfigError, RunError
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree
from fedssl.engine.uploads.records import Reply
from fedssl.flower.deadline import DEADLINE_PASSED
from fedssl.flower.messages import RoundTask
from fedssl.flower.node import Node, NodeConfig
from fedssl.flower.secure_aggregation.messages import MaskRequest, UnmaskRequest
from fedssl.flower.secure_aggregation.node import SecureNode
from fedssl.flower.secure_aggregation.roster import SecureRoster, SessionId
from fedssl.flower.secure_aggregation.server import SecureSum
from fedssl.flower.secure_aggregation.storage import SecretFile
from fedssl.flower.secure_aggregation.vector import VectorLayout
from fedssl.training.trainer import Metrics

pytestmark = pytest.mark.rows("C8")

RUN = "0" * 32
MODEL = "model"


class Round:
    """Three nodes and a server in one round, up to the phase in which clients train."""

    def __init__(self, nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
        experiment = tiny("fedavg", "simclr")
        self.nodes = [Node(experiment, nodes.config(str(i))) for i in range(3)]
        self.method = self.nodes[0].trainer.method
        schema = experiment.algorithm.upload_schema(self.method)
        words = VectorLayout.of(schema).words
        self.server = SecureSum(SessionId(RUN, 0, 0), words=words, fraction=0.5, uniform=False)
        self.sent = {MODEL: self.method.state.pick(self.method.online)}
        self.upload: dict[str, State] = {MODEL: self.sent[MODEL].clone()}
        # Nodes do not train: their upload is the one above.
        monkeypatch.setattr(Node, "train_round", self._train)
        for i, node in enumerate(self.nodes):
            member = SecureNode(node).advertise_keys(self.task(i))
            self.server.add_member(str(i), member, 16)
        self.roster: SecureRoster = self.server.make_roster()

    def _train(self, task: RoundTask, message: Tree) -> Reply:
        metrics = Metrics(1.0, 2, 16, 0.5, 0.9, 3.0)
        return Reply(task.client, 16, self.upload, metrics)

    def task(self, client: int, round: int = 0) -> RoundTask:
        """Return the task of a client."""
        return RoundTask(RUN, str(client), round, 0)

    def share(self) -> None:
        """Let all clients share their keys."""
        for i, node in enumerate(self.nodes):
            shares = SecureNode(node).share_keys(self.task(i), self.roster)
            self.server.add_ciphertexts(str(i), shares.ciphertexts)

    def mask(self, client: int = 0, **changes: Any) -> Any:
        """Let a client send its masked upload."""
        shares = self.server.ciphertexts_for(str(client))
        request = MaskRequest(self.server.digest, shares, None)._replace(**changes)
        node = SecureNode(self.nodes[client])
        return node.train_masked(self.task(client), request, self.sent)

    def unmask(self, survivors: tuple[int, ...], client: int = 0) -> Any:
        """Let a client reveal its shares."""
        request = UnmaskRequest(self.server.digest, survivors)
        return SecureNode(self.nodes[client]).unmask(self.task(client), request)


@pytest.fixture
def ready(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> Round:
    """Clients that have shared their keys."""
    ready = Round(nodes, monkeypatch)
    ready.share()
    return ready


# -- each request once --


def test_the_model_without_changes_is_sent_masked(ready: Round) -> None:
    """And the sum of three equal models is the model, to half a step for each client."""
    for i in range(3):
        counts, words = ready.mask(i)
        assert counts == (16, 16, 2, 0.5)
        ready.server.add_vector(str(i), words)
    for i in range(3):
        sent = ready.unmask((1, 2, 3), i)
        assert not sent.keys
    state = SecretFile(ready.nodes[0].open_memory(ready.task(0)), SessionId(RUN, 0, 0))
    assert "Finished" in state.path.read_text()


def test_a_second_request_for_a_vector_is_refused(ready: Round) -> None:
    """Two vectors with the same masks would reveal their difference."""
    ready.mask()
    with raises(ClientError):
        ready.mask()


def test_a_second_request_to_unmask_is_refused(ready: Round) -> None:
    """With another set of survivors, or the same: the server would get both kinds of shares."""
    ready.mask()
    ready.unmask((1, 2, 3))
    for survivors in ((1, 2), (1, 2, 3)):
        with raises(ClientError):
            ready.unmask(survivors)


def test_unmasking_before_the_upload_is_refused(ready: Round) -> None:
    with raises(ClientError):
        ready.unmask((1, 2, 3))


def test_another_roster_is_refused(ready: Round) -> None:
    with raises(ClientError):
        ready.mask(digest=bytes(32))
    ready.mask()


def test_another_round_is_refused(ready: Round) -> None:
    request = MaskRequest(ready.server.digest, ready.server.ciphertexts_for("0"), None)
    with raises(ClientError):
        SecureNode(ready.nodes[0]).train_masked(ready.task(0, round=1), request, ready.sent)


def test_a_second_roster_is_refused(ready: Round) -> None:
    """A client that shares its secrets twice, for two rosters, would give 2·t shares of each."""
    with raises(ClientError):
        SecureNode(ready.nodes[0]).share_keys(ready.task(0), ready.roster)


# -- the checks of a server, made by the client --


@pytest.mark.parametrize(
    "fault", ["nan", "too large", "norm", "norm above float32", "variance", "layout"]
)
def test_an_invalid_upload_is_not_masked(fault: str, ready: Round) -> None:
    """Its secrets are removed, and it cannot be asked again."""
    state = ready.upload[MODEL]
    limit = None
    if fault == "nan":
        state.floats[5] = torch.nan
    elif fault == "too large":
        state.floats[5] = 1e7
    elif fault == "norm":
        state.floats[5] += 30.0
        limit = 20.0
    elif fault == "norm above float32":
        state.floats[5:9] = 3e38
        limit = 1e38
    elif fault == "variance":
        name = next(e for e in state.layout.entries if e.name.endswith("running_var"))
        state.view(name)[0] = -1
    else:
        ready.upload[MODEL] = state.pick(["backbone"])
    with raises(ClientError):
        ready.mask(norm_limit=limit)
    file = SecretFile(ready.nodes[0].open_memory(ready.task(0)), SessionId(RUN, 0, 0))
    assert "Finished" in file.path.read_text()


def test_a_client_that_trains_until_the_deadline_has_no_secrets_left(
    ready: Round, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it states this reason."""
    task = ready.task(0)._replace(until=time.time() + 1)

    def train(task: RoundTask, message: Tree) -> Reply:
        time.sleep(task.until - time.time() + 0.01)
        raise ClientError(DEADLINE_PASSED)

    monkeypatch.setattr(ready.nodes[0], "train_round", train)
    request = MaskRequest(ready.server.digest, ready.server.ciphertexts_for("0"), None)
    with raises(ClientError):
        SecureNode(ready.nodes[0]).train_masked(task, request, ready.sent)
    file = SecretFile(ready.nodes[0].open_memory(ready.task(0)), SessionId(RUN, 0, 0))
    assert "Finished" in file.path.read_text()


def test_an_update_within_the_limit_is_sent(ready: Round) -> None:
    ready.upload[MODEL].floats[5] += 19.0
    ready.mask(norm_limit=20.0)


def test_a_roster_for_vectors_of_another_length_is_refused(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    round = Round(nodes, monkeypatch)
    round.server._roster = round.roster = round.roster._replace(words=7)
    round.share()
    with raises(ClientError):
        round.mask()


# -- a node that requires it --


def _config(nodes: Nodes, choice: str) -> NodeConfig:
    config = {"client-id": "0", "data-dir": str(nodes.root / "data"), "images": "dealt"}
    return NodeConfig.read({**config, "secure-aggregation": choice}, {})


def test_a_node_that_requires_masks_refuses_a_plain_round(nodes: Nodes) -> None:
    node = Node(tiny("fedavg", "simclr"), _config(nodes, "required"))
    with raises(ClientError):
        node.train(RoundTask(RUN, "0", 0, 0), {})
    assert node.hello().masked_only
    assert not Node(tiny("fedavg", "simclr"), _config(nodes, "allowed")).hello().masked_only


def test_an_unknown_choice_is_rejected(nodes: Nodes) -> None:
    with raises(ConfigError):
        _config(nodes, "yes")


def test_a_server_without_masks_rejects_a_node_that_requires_them(nodes: Nodes) -> None:
    """The server has no images of it, and the node's operator gets the reason."""
    experiment = tiny("fedavg", "simclr", rounds=1)
    grid = nodes.grid(experiment, **{"secure-aggregation": "required"})
    with raises(RunError):
        nodes.serve(experiment, grid)
    assert not grid.receivers("train")
    nodes.serve(experiment, grid, secure_aggregation=True)
    assert nodes.dropped() == [dict.fromkeys("012")]
