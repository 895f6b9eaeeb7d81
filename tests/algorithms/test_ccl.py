"""CCL: the uploads, the features that each client receives, and the loss.

By hand, with toy.py's clients and a momentum encoder that returns (pixel, target weight) for an
image of one pixel. A ends round 1 with target 12, B with 16; pixels and targets give Pythagorean
triples:
    A: 5           → (5, 12)/13
    B: 12, 30, 63  → (12, 16)/20, (30, 16)/34, (63, 16)/65
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import toy
from error_messages import raises
from factories import (
    first_site,
    interrupted_in_round,
    make_client,
    make_experiment,
    make_trainer,
    random_pixels,
    train_rounds,
)
from test_ccl_losses import looped_contrast, looped_matching
from torch import Tensor, nn
from toy import Federation, Numbers, Scripted, Toy

import fedssl
from fedssl.algorithm import Algorithm, Upload
from fedssl.algorithms import CCL, FedAvg
from fedssl.algorithms._shared_rows import features_of_others, join_features, owner_number
from fedssl.core.errors import ConfigError
from fedssl.core.state.codec import dumps
from fedssl.core.state.mean import Mean
from fedssl.core.state.tree import Tree, Value, model
from fedssl.engine.checkpoints.store import Store
from fedssl.engine.federate import Round
from fedssl.engine.uploads.guard import Guard
from fedssl.engine.uploads.records import Reply
from fedssl.experiment.experiment import Experiment
from fedssl.method import Batch, Constants, Method, MethodSettings, Output
from fedssl.runs.local import Interrupted
from fedssl.topologies.graphs import Cycle
from fedssl.topologies.topology import SERVER, Isolated, Topology

SIZES = {"a": 20, "b": 33, "c": 2, "d": 3}
TINY: dict[str, Any] = {"neighbours": 3, "candidates": 9, "features": 8, "remote": 16}


# -- by hand --


class Queued(Toy):
    """The toy method with a queue of twelve keys (1, 0)."""

    private = ("queue",)

    def __init__(self, settings: MethodSettings, backbone: nn.Module, size: int) -> None:
        super().__init__(settings, backbone, size)
        self.queue = nn.Module()
        self.queue.register_buffer("keys", torch.eye(2)[:1].repeat(12, 1))

    def encode_target(self, images: Tensor, groups: int = 1) -> Tensor:
        assert not self.training
        pixel = 255 * images.flatten()
        return torch.stack([pixel, self.target["backbone"].w.expand_as(pixel)], 1)


class Imaged(Scripted):
    """A scripted client with pictures."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.trainer = SimpleNamespace(device="cpu", eval_mode=self._at_rest)
        images = {"A": [5], "B": [12, 30, 63]}.get(self.id, [1])
        self.pixels = torch.tensor(images, dtype=torch.uint8).view(-1, 1, 1, 1)
        self.count = len(self.pixels)

    @contextmanager
    def _at_rest(self) -> Iterator[Method]:
        yield self.method.eval()

    def generator(self, purpose: str, device: str = "cpu") -> torch.Generator:
        return super().generator(purpose)

    def chunks(self, index: Tensor, size: int) -> Iterator[Tensor]:
        return iter(self.pixels[index].split(size))

    def train(self, objective: Any, constants: Constants, draw: Any) -> None:
        super().train(objective, constants, draw)
        GIVEN[self.id], DRAW[self.id] = constants, draw


GIVEN: dict[str, Constants] = {}
DRAW: dict[str, Any] = {}


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Federation]:
    monkeypatch.setattr(toy, "Scripted", Imaged)
    monkeypatch.setattr(
        toy, "toy", lambda: Queued(MethodSettings(), toy.Number(10.0, norm=True), 1).reside()
    )
    return lambda **settings: Federation(CCL(**{"mix": 1, **settings}))


def rows(tensor: Value) -> list[list[float]]:
    assert isinstance(tensor, Tensor)
    return sorted([round(x, 4) for x in row] for row in tensor.tolist())


OF_A = [[0.3846, 0.9231]]
OF_B = sorted([[0.6, 0.8], [0.8824, 0.4706], [0.9692, 0.2462]])


def test_two_rounds_by_hand(scripted: Callable[..., Federation]) -> None:
    """The models are those of FedAvg that aggregates and updates both networks (test_fedavg.py). In
    round 1 no client has features of others; in round 2 A has B's three in four slots, B has A's
    one.
    """
    federation = scripted()
    assert federation.round("A", "B") == {"A": Numbers(10, 10, 1), "B": Numbers(10, 10, 1)}
    for constants in GIVEN.values():
        assert constants["remote"].tolist() == [[0, 0]]
        assert (
            constants["known"].tolist() == constants["negative"].tolist() == [True] * 12 + [False]
        )
    assert federation.held() == {"encoder": 17, "target": 15, "predictor": 3.5}
    assert rows(federation.site["features"]) == sorted(OF_A + OF_B)
    assert federation.site["owners"].tolist() == [owner_number("A")] + 3 * [owner_number("B")]  # type: ignore[union-attr]
    assert owner_number("A") != owner_number("B")

    assert federation.round("A", "B") == {"A": Numbers(17, 15, 3.5), "B": Numbers(17, 15, 3.5)}
    assert rows(GIVEN["A"]["remote"]) == [[0, 0], *OF_B]
    assert GIVEN["A"]["known"].tolist() == [True] * 15 + [False]
    assert rows(GIVEN["B"]["remote"]) == OF_A
    assert GIVEN["B"]["known"].tolist() == [True] * 13
    assert [federation.notes[c]["remote"] for c in "AB"] == [3, 1]


def test_only_features_of_the_last_round_are_sent(scripted: Callable[..., Federation]) -> None:
    """B alone takes part in round 2; in round 3 A receives B's new features, B receives none."""
    federation = scripted()
    federation.round("A", "B")
    federation.round("B")
    assert federation.site["owners"].tolist() == 3 * [owner_number("B")]  # type: ignore[union-attr]
    federation.round("A", "B")
    assert [federation.notes[c]["remote"] for c in "AB"] == [3, 0]
    federation.start_of("C")
    assert federation.notes["C"]["remote"] == 4  # C is new: all four features are of others


def test_remote_only_leaves_local_keys_out_once_there_are_others(
    scripted: Callable[..., Federation],
) -> None:
    federation = scripted(remote_only=True)
    federation.round("A", "B")
    assert GIVEN["A"]["negative"].tolist() == [True] * 12 + [False]
    federation.round("A", "B")
    assert GIVEN["A"]["negative"].tolist() == [False] * 12 + [True] * 3 + [False]
    assert GIVEN["A"]["known"].tolist() == [True] * 15 + [False]  # all are candidates


def test_neighbours_are_searched_among_local_keys_too(
    scripted: Callable[..., Federation],
) -> None:
    """Eq. 7: local keys are candidates even if only features of others are negatives. A has 12
    local keys and 3 features of B.
    """
    federation = scripted(remote_only=True, candidates=100)
    federation.round("A", "B")
    federation.round("A", "B")
    drawn = DRAW["A"](1, torch.Generator().manual_seed(0))["candidates"]
    assert sorted(set(drawn.tolist()) & set(range(15))) == list(range(15))


def test_what_is_stored_and_what_is_sent(scripted: Callable[..., Federation]) -> None:
    for settings, keys in (
        ({}, {"model", "target", "features"}),
        ({"fusion": False, "lam": 0}, {"model", "target"}),
    ):
        federation = scripted(**settings)
        federation.round("A", "B")
        assert federation.uploads["A"].keys() == keys
        assert federation.site.keys() == (keys | {"owners"} if "features" in keys else keys)
        assert model(federation.memory["A"], "kept").layout.parts == ("queue",)


def test_no_client_shares_more_than_its_quota(scripted: Callable[..., Federation]) -> None:
    federation = scripted(features=2)
    federation.round("A", "B")
    assert [len(federation.uploads[c]["features"]) for c in "AB"] == [1, 2]  # type: ignore[arg-type]
    swollen = {**federation.uploads["B"], "features": torch.ones(9, 2)}
    site = federation.algorithm.merge(federation.site, [Upload("B", 1.0, swollen)], Mean)
    assert len(site["features"]) == 2  # type: ignore[arg-type]


def test_features_of_another_width_are_left_out_and_the_model_counts(
    scripted: Callable[..., Federation],
) -> None:
    """The model moves from 10 to 14 whatever the features are; malformed ones are all dropped."""
    federation = scripted()
    federation.round("A")
    schema = federation.algorithm.upload_schema(federation.method)
    for wrong in (
        torch.ones(3, 5),
        torch.ones(3),
        torch.full((3, 2), float("nan")),
        torch.ones(3, 2).double(),
    ):
        guard = Guard(schema, 0, ["A"], {"A": {}})
        received = next(
            guard([Reply("A", 1, {**federation.uploads["A"], "features": wrong}, None)])
        )
        assert received.upload is not None
        assert guard.reports[0].dropped is None
        assert "features" in str(guard.reports[0].dropped_rows_reason)
        site = federation.algorithm.merge(
            federation.site, [Upload("A", 1.0, received.upload)], Mean
        )
        assert model(site, "model").tensors()["backbone.w"].item() == 14
        assert (site["features"].shape, site["owners"].shape) == ((0, 2), (0,))  # type: ignore[union-attr]


# -- choosing among the features of others --


def make_message(**counts: int) -> Tree:
    """Return a message with so many feature rows of each client, near one axis per client."""
    stream = torch.Generator().manual_seed(3)
    return join_features(
        {
            c: torch.randn(n, 4, generator=stream) + 9 * torch.eye(4)[i]
            for i, (c, n) in enumerate(counts.items())
        }
    )


def test_a_clients_own_features_never_count() -> None:
    message = make_message(a=5, b=7, c=4)
    found, count = features_of_others(message, "b", 99, torch.Generator().manual_seed(0))
    features = message["features"]
    owners = message["owners"]
    assert isinstance(features, Tensor)
    changed = {
        **message,
        "features": torch.where((owners == owner_number("b"))[:, None], 1e6, features),
    }  # type: ignore[operator,arg-type]
    again, _ = features_of_others(changed, "b", 99, torch.Generator().manual_seed(0))
    assert torch.equal(found, again)
    assert count == 9
    assert found[:9].argmax(1).bincount().tolist() == [5, 0, 4]
    for other in "ac":
        assert not torch.equal(
            features_of_others(changed, other, 99, torch.Generator().manual_seed(0))[0], found
        )


@pytest.mark.parametrize(
    ("count", "most", "room"),
    [(0, 99, 1), (1, 99, 1), (2, 9, 2), (5, 99, 8), (8, 99, 8), (9, 6, 6)],
)
def test_shapes_are_few_and_features_are_limited(count: int, most: int, room: int) -> None:
    found, drawn = features_of_others(
        make_message(a=3, b=count), "a", most, torch.Generator().manual_seed(0)
    )
    assert found.shape == (room, 4)
    assert drawn == min(count, most)
    torch.testing.assert_close(found[:drawn].norm(dim=1), torch.ones(drawn))  # sent with any norm
    assert not found[drawn:].any()


def test_each_round_samples_other_features() -> None:
    message = make_message(a=3, b=50)
    taken = [
        set(
            map(
                tuple,
                features_of_others(message, "a", 10, torch.Generator().manual_seed(s))[0].tolist(),
            )
        )
        for s in (0, 0, 1)
    ]
    assert [len(one) for one in taken] == [10, 10, 10]
    assert taken[0] == taken[1] != taken[2]


# -- the objective --


class Step:
    """A MoCo method after a step, the output of that step, and the constants of a client."""

    def __init__(self, algorithm: CCL, message: Tree, images: int = 4) -> None:
        self.algorithm = algorithm
        trainer = make_trainer("mocov2", dim=4, queue=6)
        self.method = trainer.method
        self.method.init_local_parts(torch.Generator().manual_seed(1))
        client = make_client(trainer, random_pixels(8), round=1)
        self.constants = algorithm.constants(client, message)
        stream = torch.Generator().manual_seed(2)
        z, keys = torch.randn(2, 2, images, 4, generator=stream)
        self.out = Output(z, z, z, F.normalize(keys, dim=-1))
        self.queue = self.method.get_buffer("queue.keys")

    def loss(self, candidates: list[int]) -> Tensor:
        batch = Batch(*[None] * 4, {"candidates": torch.tensor(candidates)}, None)  # type: ignore[arg-type]
        return self.algorithm.objective(self.method, batch, self.out, self.constants)


@pytest.mark.parametrize("remote_only", [False, True])
@pytest.mark.parametrize(("fusion", "lam"), [(True, 0.0), (True, 0.3), (False, 0.3), (False, 0.0)])
def test_the_objective_is_equation_12(fusion: bool, lam: float, remote_only: bool) -> None:
    """Six local keys, five features of others in eight slots; the loops use only the eleven."""
    settings = {
        "fusion": fusion,
        "lam": lam,
        "remote_only": remote_only,
        "tau": 0.3,
        "tau_nm": 0.2,
        "neighbours": 2,
    }
    step = Step(CCL(**settings), make_message(a=3, b=5))
    chosen = [9, 0, 3, 7, 10, 5]
    loss = step.loss(chosen)
    if not fusion and not lam:
        assert step.constants == {}
        assert torch.equal(loss, step.method.loss(step.out, {}))
        return
    queries = F.normalize(step.out.z, dim=-1)
    keys = step.out.keys
    assert keys is not None
    remote = step.constants["remote"][:5]
    everything = torch.cat([step.queue, remote])
    negatives = remote if remote_only else everything
    counted = torch.ones(11, dtype=torch.bool)
    contrast = looped_contrast(queries, keys.flip(0), negatives, counted[: len(negatives)], 0.3)
    expected = contrast if fusion else step.method.loss(step.out, {})
    if lam:
        expected = expected + lam * looped_matching(
            queries, everything[chosen], counted[:6], 2, 0.2
        )
    torch.testing.assert_close(loss, expected, check_dtype=False)


@pytest.mark.parametrize("remote_only", [False, True])
def test_empty_slots_do_not_change_the_loss(remote_only: bool) -> None:
    """The same features with 3 empty slots, and with 11 more, of which one is among the
    candidates.
    """
    step = Step(CCL(neighbours=2, remote_only=remote_only), make_message(a=3, b=5))
    first = step.loss([9, 0, 3, 7, 10, 5])
    step.constants = {
        key: F.pad(t, (0, 0, 0, 11) if t.ndim == 2 else (0, 11))
        for key, t in step.constants.items()
    }
    torch.testing.assert_close(step.loss([9, 0, 3, 7, 10, 5, 11, 20]), first)
    step.constants["remote"][5:] = 7.0  # type: ignore[index]
    torch.testing.assert_close(step.loss([9, 0, 3, 7, 10, 5, 11, 20]), first)
    step.constants["remote"][4] += 7.0  # type: ignore[index]
    assert not torch.isclose(step.loss([9, 0, 3, 7, 10, 5, 11, 20]), first)


def test_without_others_it_is_mocos_loss_at_its_temperature() -> None:
    step = Step(CCL(lam=0, tau=0.2), make_message(a=3))
    torch.testing.assert_close(step.loss([]), step.method.loss(step.out, {}))


# -- whole rounds --


def train_all(algorithm: Algorithm, rounds: int, topology: Topology | None = None) -> list[Round]:
    """Return rounds with clients of very different sizes; none is dropped."""
    done = train_rounds(
        algorithm,
        {client: random_pixels(n, i) for i, (client, n) in enumerate(SIZES.items())},
        make_trainer("mocov2", queue=7),
        rounds=rounds,
        lr=0.05,
        topology=topology,
    )
    assert not [report for one in done for report in one.reports if report.dropped]
    return done


def test_with_both_modules_off_it_is_fedavg_of_both_models_to_the_bit() -> None:
    ours = train_all(CCL(fusion=False, lam=0), 3)
    theirs = train_all(FedAvg(aggregate="both", update="both"), 3)
    assert [dumps(one.sites[SERVER]) for one in ours] == [
        dumps(one.sites[SERVER]) for one in theirs
    ]
    for mine, other in zip(ours, theirs, strict=True):
        assert [r._replace(metrics=None) for r in mine.reports] == [
            r._replace(metrics=None) for r in other.reports
        ]


@pytest.mark.parametrize(
    "settings", [{}, {"remote_only": True}, {"fusion": False}, {"lam": 0}, {"flips": True}]
)
def test_clients_of_any_size(settings: dict[str, Any]) -> None:
    """a and b share 8 features each; c with 2 and d with 3 have fewer images than a mixture."""
    done = train_all(CCL(**{**TINY, **settings}), 3)
    features = done[-1].sites[SERVER]["features"]
    assert isinstance(features, Tensor)
    assert features.shape == (21, 5)
    assert features.isfinite().all()
    torch.testing.assert_close(features.norm(dim=1), torch.ones(21))
    received = [[report.notes["remote"] for report in one.reports] for one in done]
    assert received == [
        [0, 0, 0, 0],
        [13, 13, 16, 16],
        [13, 13, 16, 16],
    ]  # 19 and 18 of others, but 16 at most


def test_every_module_changes_what_is_learned() -> None:
    rest: list[dict[str, Any]] = [
        {"fusion": False},
        {"lam": 0},
        {"flips": True},
        {"mix": 1},
        {"tau": 0.2},
    ]
    ways = [
        {},
        *rest,
        {"remote_only": True},
        {"remote": 2},
        {"tau_nm": 0.1},
        {"neighbours": 2},
        {"candidates": 5},
    ]
    ends = [train_all(CCL(**{**TINY, **way}), 2)[-1].sites[SERVER] for way in ways]
    assert len({model(end, "model").floats.numpy().tobytes() for end in ends}) == len(ways)


def test_isolated_clients_receive_nothing_and_peers_receive_from_neighbours() -> None:
    """In a cycle a, b, c, d of 8, 8, 2 and 3 features, a receives those of b and d, b those of a
    and c …
    """
    apart = train_all(CCL(**TINY), 2, Isolated())
    assert [report.notes["remote"] for report in apart[-1].reports] == [0, 0, 0, 0]
    cycle = train_all(CCL(**TINY), 2, Cycle())
    assert [report.notes["remote"] for report in cycle[-1].reports] == [11, 10, 11, 10]


def test_features_are_the_trained_momentum_encoders_in_eval_mode() -> None:
    algorithm = CCL(**TINY, mix=1)
    trainer = make_trainer("mocov2", queue=7)
    client = make_client(trainer, random_pixels(6), lr=0.05)
    upload, _ = algorithm.client_update(client, first_site(algorithm, trainer))
    target = model(upload, "target")
    assert torch.equal(
        target.floats, trainer.method.state.pick(("target",)).floats
    )  # statistics were left alone
    assert trainer.method.training
    expected = F.normalize(client.embed(target.without_prefix("target"), "z"), dim=-1)
    features = upload["features"]
    assert isinstance(features, Tensor)
    order = [int((expected - one).norm(dim=1).argmin()) for one in features]
    assert sorted(order) == list(range(6))
    torch.testing.assert_close(features, expected[order])


def test_an_upload_is_freed_before_the_next_one_arrives() -> None:
    algorithm = CCL(**TINY)
    site = first_site(algorithm, make_trainer("mocov2", queue=7))
    alive = []

    class Sent(dict[str, Value]):
        def __del__(self) -> None:
            alive.remove(id(self))

    def uploads() -> Iterator[Upload]:
        for client in "abc":
            assert not alive
            sent = Sent(
                {"model": site["model"], "target": site["target"], "features": torch.ones(2, 5)}
            )
            alive.append(id(sent))
            upload = Upload(client, 1.0, sent)
            del sent
            yield upload
            del upload

    merged = algorithm.merge(site, uploads(), Mean)
    assert len(merged["features"]) == 6  # type: ignore[arg-type]
    assert not alive


def test_a_queue_too_small_for_its_neighbours_is_refused() -> None:
    home = make_client(make_trainer("mocov2", queue=7), random_pixels(0), id="home")
    for settings in ({"neighbours": 7}, {"neighbours": 4, "candidates": 4}):
        with raises(ConfigError):
            CCL(**settings).init(home)
        CCL(**settings, lam=0).init(home)
    CCL(neighbours=6, candidates=7).init(home)


# -- whole runs --


@pytest.fixture
def small() -> Experiment:
    return make_experiment(
        rounds=4,
        method={"name": "mocov2", "hidden": 16, "dim": 8, "queue": 16},
        algorithm={"name": "ccl", **TINY},
        train__checkpoint_every=60,
        probe={"epochs": 1, "linear": True},
    )


@pytest.fixture
def images() -> tuple[Tensor, Tensor]:
    return random_pixels(45, size=10), torch.arange(45) % 3


def last_site(run: fedssl.Run) -> Tree:
    snapshot = Store(run.dir).load(print)
    assert snapshot is not None
    assert snapshot.rounds == 4
    return snapshot.sites[SERVER]


def test_resumed_is_uninterrupted(small: Experiment, images: Any, tmp_path: Path) -> None:
    """Stop in the third round and resume from the checkpoint of the second, which includes
    features.
    """
    straight = fedssl.run(small, tmp_path / "straight", "cpu", dataset=images, quiet=True)
    with interrupted_in_round(3), raises(Interrupted):
        fedssl.run(small, tmp_path / "resumed", "cpu", dataset=images, quiet=True)
    resumed = fedssl.run(small, tmp_path / "resumed", "cpu", dataset=images, quiet=True)
    assert dumps(last_site(resumed)) == dumps(last_site(straight))
    assert len(resumed.rounds) == 4
    assert resumed.rounds[-1]["clients"][0]["notes"] == {"remote": 16}


def test_the_warning_depends_on_what_is_shared(small: Experiment) -> None:
    """Where and when it is printed: tests/robustness/test_shared_features.py."""

    def warning(**settings: Any) -> str | None:
        changes = {f"algorithm.{key}": value for key, value in settings.items()}
        return small.with_changes(changes).algorithm.warning

    assert "Carlini" in str(warning())
    assert "not even mixed" in str(warning(mix=1))
    assert warning(fusion=False, lam=0) is None


def test_a_method_without_a_queue_is_refused(small: Experiment) -> None:
    for name in ("simclr", "byol"):
        with raises(ConfigError):
            small.with_changes({"method": {"name": name}}).check()


def test_a_random_queue_holds_no_keys_of_earlier_rounds() -> None:
    """The first step of a client's second round has the negatives of a freshly filled queue."""
    trainer = make_trainer("mocov2", queue_start="random")
    started: list[Tensor] = []

    class Recording(CCL):
        def objective(
            self, method: Method, batch: Batch, out: Output, constants: Constants
        ) -> Tensor:
            started.append(method.queue.keys.clone())
            return super().objective(method, batch, out, constants)

    algorithm = Recording(**TINY)
    site = first_site(algorithm, trainer)
    first = make_client(trainer, random_pixels(16), lr=0.1)
    _, memory = algorithm.client_update(first, algorithm.broadcast(site, "a"))
    assert memory == {}
    second = make_client(trainer, random_pixels(16), lr=0.1, round=1, memory=memory)
    started.clear()
    algorithm.client_update(second, algorithm.broadcast(site, "a"))
    filled = make_trainer("mocov2").method.queue
    filled.fill(second.generator("fresh"))
    assert torch.equal(started[0], filled.keys)
