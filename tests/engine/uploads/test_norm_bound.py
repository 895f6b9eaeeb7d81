"""The bound on the norm of updates, with numbers worked out by hand."""

from __future__ import annotations

import gc
import hashlib
import json
import math
import statistics
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from error_messages import raises

from fedssl.algorithms import FeatARC
from fedssl.core.errors import ConfigError
from fedssl.core.settings import validate
from fedssl.core.state.layout import Entry, Layout
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, model
from fedssl.engine.uploads.guard import Guard
from fedssl.engine.uploads.movement import clip_update, update_norm_float64
from fedssl.engine.uploads.norm_bound import NormBound, TypicalUpdate
from fedssl.engine.uploads.records import Reply
from fedssl.engine.uploads.settings import NO_BOUNDS, GuardSettings
from fedssl.engine.uploads.upload_weights import ImageCounts, UploadWeights
from fedssl.experiment.experiment import Experiment
from fedssl.topologies.graphs import Cycle
from fedssl.topologies.topology import Isolated, Plan, Star
from fedssl.training.trainer import Metrics

LAYOUT = Layout.of(
    [
        Entry("backbone.w", (2,), "weight"),
        Entry("backbone.mean", (1,), "statistic"),
        Entry("backbone.count", (), "counter"),
    ]
)
METRICS = Metrics(1.0, 2, 3, 4.0, 0.5, 6.0)


def at(x: float, y: float = 0.0, mean: float = 0.0, count: int = 0) -> State:
    return State(LAYOUT, torch.tensor([x, y, mean]), torch.tensor([count]))


SENT: Tree = {"model": at(0)}


@dataclass
class History:
    """The bound over several rounds."""

    settings: GuardSettings = NO_BOUNDS
    lr_at: Callable[[int], float] = lambda round: 1.0
    typical: TypicalUpdate | None = None

    def bound(self, round: int = 0) -> NormBound:
        return NormBound(self.settings, self.lr_at(round), self.typical)

    def end(self, guard: Guard) -> None:
        self.typical = guard.bound.next_typical()


def received(
    history: History,
    ways: dict[str, float],
    images: dict[str, int] | None = None,
    round: int = 0,
    verified: bool = True,
) -> Guard:
    """Run a round in which each client moves by the given distance; return the guard."""
    known = dict.fromkeys(ways, 10) | (images or {})
    plan = Plan(dict.fromkeys(ways, "server"), {"server": dict.fromkeys(ways)})
    weights = UploadWeights(plan, "size", counts=ImageCounts(lambda: known, verified))
    guard = Guard(
        {"model": LAYOUT},
        round,
        ways,
        dict.fromkeys(ways, SENT),
        bound=history.bound(round),
        bounded=ways,
        weights=weights,
    )
    for _ in guard(
        Reply(c, (images or {}).get(c, 10), {"model": at(way)}, METRICS) for c, way in ways.items()
    ):
        pass
    history.end(guard)
    return guard


def dropped(guard: Guard) -> list[str]:
    return [report.client for report in guard.reports if report.dropped]


@pytest.mark.rows("U3")
@pytest.mark.parametrize("who", range(5))
@pytest.mark.parametrize("far", [1e3, 1e18, 1e30])
def test_the_first_round_is_compared_with_itself(who: int, far: float) -> None:
    """The median of 1, 2, 3, 4 and one far away is 3 or less: at most 30 is allowed, in any order
    of clients.
    """
    ways = {f"c{i}": far if i == who else i + 1.0 for i in range(5)}
    assert dropped(received(History(GuardSettings()), ways)) == [f"c{who}"]


@pytest.mark.rows("U3")
def test_an_infinite_norm_is_in_no_median() -> None:
    ways = {"a": 1e30, "b": 1e30, "c": 1e30, "d": 1.0, "e": 1e3}
    assert dropped(received(History(GuardSettings()), ways)) == ["a", "b", "c", "e"]


def test_the_reason_names_the_setting() -> None:
    """The lower median of 1, 2, 4 and 50 is 2."""
    history = History(GuardSettings())
    reports = received(history, {"a": 1, "b": 2, "c": 4, "d": 50}).reports
    reason = "the norm of its update is 50, above the limit of 20 (guard.norm_bound = 10)"
    assert [report.dropped for report in reports] == [None, None, None, reason]
    assert reports[3].memory_advanced
    (report,) = received(History(GuardSettings()), {"a": 1e30}).reports
    assert report.dropped == "the norm of its update exceeds the range of float32"


@pytest.mark.rows("U3")
def test_the_reference_is_the_largest_median_or_the_last() -> None:
    """Medians of 2, then 1. 15 is below 10 × 2 and above 10 × 1; dropped uploads do not count in a
    median.
    """
    for chosen, expected in (("largest", []), ("last", ["c"])):
        history = History(GuardSettings(typical=chosen))  # type: ignore[arg-type]
        received(history, {"a": 2, "b": 2, "c": 500})
        assert history.typical == TypicalUpdate(2, 10, 1.0, [(2, 10), (2, 10)])
        received(history, {"a": 1, "b": 1, "c": 1}, round=1)
        assert dropped(received(history, {"a": 1, "b": 1, "c": 15}, round=2)) == expected


def test_a_round_without_valid_uploads_or_without_a_step_sets_no_reference() -> None:
    history = History(GuardSettings(typical="last"), typical=TypicalUpdate(1.0, 10, 1.0))
    assert dropped(received(history, {"a": 11, "b": 12})) == ["a", "b"]
    assert dropped(received(history, {"a": 0, "b": 0})) == []
    assert history.typical == TypicalUpdate(1.0, 10, 1.0, [(0, 10), (0, 10)])
    assert dropped(received(History(GuardSettings()), {"a": 0, "b": 0, "c": 5})) == []


def test_more_images_and_a_higher_rate_allow_larger_updates() -> None:
    """A typical norm of 1 was measured with 10 images at a rate of 0.5. For 40 images it is 4, and
    for 40 images at a rate of 1 it is 8. For fewer images or a lower rate it stays 1.
    """
    usual = TypicalUpdate(1.0, 10, 0.5)
    assert [usual.norm_at(*case, 10) for case in ((0.5, 10), (0.5, 40), (1.0, 40), (0.1, 2))] == [
        1,
        4,
        8,
        1,
    ]
    assert usual.norm_at(0.5, 10**8, 10) == 10, "a client may claim any number"
    history = History(GuardSettings(), {0: 0.5, 1: 1.0}.__getitem__, usual)
    assert dropped(
        received(
            history, {"small": 9, "large": 39, "lost": 41}, {"small": 2, "large": 40, "lost": 40}
        )
    ) == ["lost"]
    history = History(GuardSettings(), {0: 0.5, 1: 1.0}.__getitem__, usual)
    assert dropped(received(history, {"a": 19, "b": 21}, round=1)) == ["b"]


def test_without_a_bound_all_finite_updates_pass() -> None:
    for history in (History(), History(GuardSettings(norm_bound=0, clip=True))):
        guard = received(history, {"a": 1, "b": 1e3, "c": 1e30})
        assert dropped(guard) == []
        assert [report.divergence for report in guard.reports] == [1, 1e3, None]


@pytest.mark.rows("U3")
@pytest.mark.parametrize("far", [1e3, 1e30, 3e38])
def test_clipped_to_the_bound(far: float) -> None:
    """Sent (1, 0); the others move by 1, so 10 is allowed. Statistics are scaled by the same share,
    counters are unchanged.
    """
    history = History(GuardSettings(clip=True), typical=TypicalUpdate(1.0, 10, 1.0))
    sent = {"model": at(1.0, mean=2.0)}
    guard = Guard({"model": LAYOUT}, 0, ["a"], {"a": sent}, bound=history.bound(), bounded=["a"])
    back = at(1.0, far, mean=far, count=7)
    (one,) = guard([Reply("a", 10, {"model": back}, METRICS)])
    assert one.upload is not None
    got = model(one.upload, "model")
    assert got.floats.tolist() == pytest.approx([1.0, 10.0, 2.0 + (far - 2.0) * 10 / far], rel=1e-4)
    assert got.counts.tolist() == [7]
    assert back.floats[1] == torch.tensor(far)  # the upload is not overwritten
    (report,) = guard.reports
    assert report.dropped is None
    assert report.clipped == pytest.approx(10 / far, rel=1e-5)
    assert report.divergence == (pytest.approx(far) if far < 1e18 else None)
    history.end(guard)
    assert history.typical == TypicalUpdate(
        10.0, 0, 1.0, [(10.0, 0)]
    )  # this guard has no image counts


def test_updates_within_the_bound_are_not_clipped() -> None:
    history = History(GuardSettings(clip=True), typical=TypicalUpdate(1.0, 10, 1.0))
    upload = {"model": at(10.0)}
    guard = Guard({"model": LAYOUT}, 0, ["a"], {"a": SENT}, bound=history.bound(), bounded=["a"])
    (one,) = guard([Reply("a", 10, upload, METRICS)])
    assert one.upload is upload
    assert guard.reports[0].clipped is None


def test_clipping_leaves_parts_that_were_not_sent_unchanged() -> None:
    wide = Layout.of([Entry("backbone.more", (1,), "weight"), *LAYOUT.entries])
    back = State(wide, torch.tensor([5.0, 4.0, 0.0, 0.0]), torch.tensor([3]))
    near = clip_update(SENT, {"model": back, "n": 3}, 0.5)
    got = model(near, "model")
    assert got.layout == wide
    assert {name: t.tolist() for name, t in got.tensors().items()} == {
        "backbone.more": [5.0],
        "backbone.w": [2.0, 0.0],
        "backbone.mean": [0.0],
        "backbone.count": 3,
    }
    assert near["n"] == 3


def test_a_distance_in_double() -> None:
    """3e30 and 4e30 in two models: 5e30."""
    way = update_norm_float64(
        {"a": at(0), "b": at(0)}, {"a": at(3e30), "b": at(0, 4e30), "c": at(9e30)}
    )
    assert way == pytest.approx(5e30)


def test_the_norm_is_relative_to_the_model_that_was_trained() -> None:
    """Of two clusters at 0 and 100 the second was chosen: a distance of 1, not of 101."""
    schema: dict[str, Any] = {"model": LAYOUT, "cluster": range(2)}
    message: Tree = {"first": 0, "model.0": at(0), "model.1": at(100)}
    history = History(GuardSettings(), typical=TypicalUpdate(1.0, 10, 1.0))
    guard = Guard(
        schema,
        0,
        ["a"],
        {"a": message},
        bound=history.bound(),
        bounded=["a"],
        received_keys=FeatARC().received_keys,
    )
    list(guard([Reply("a", 10, {"model": at(101), "cluster": 1}, METRICS)]))
    assert [(report.dropped, report.divergence) for report in guard.reports] == [(None, 1.0)]


def test_clients_whose_uploads_reach_others() -> None:
    clients = ["a", "b", "c"]
    assert Star().plan(clients, 0, 0).senders == set(clients)
    assert Star(participation=0.1).plan(clients, 0, 0).senders == set(
        Star(participation=0.1).plan(clients, 0, 0).site_of
    )
    assert Isolated().plan(clients, 0, 0).senders == set()
    assert Cycle().plan(clients, 0, 0).senders == set(clients)


def test_an_upload_that_reaches_no_other_client_has_no_bound() -> None:
    history = History(GuardSettings(), typical=TypicalUpdate(1.0, 10, 1.0))
    guard = Guard(
        {"model": LAYOUT}, 0, "ab", dict.fromkeys("ab", SENT), bound=history.bound(), bounded=["a"]
    )
    list(guard([Reply(c, 10, {"model": at(99)}, METRICS) for c in "ab"]))
    assert dropped(guard) == ["a"]


def test_the_first_round_holds_at_most_five_uploads_and_later_ones_none() -> None:
    """Invalid uploads do not count among the five and do not delay others; the order is kept."""
    alive: list[Any] = []
    most = 0

    def replies() -> Iterator[Reply]:
        for i in range(20):
            if i == 1:
                yield Reply("c1", 10, None, None, "ill")
                continue
            upload = at(1.0 + i)
            alive.append(weakref.ref(upload))
            yield Reply(f"c{i}", 10, {"model": upload}, METRICS)
            del upload

    history = History(GuardSettings())
    for round, expected in ((0, 5), (1, 1)):
        alive.clear()
        clients = [f"c{i}" for i in range(20)]
        guard = Guard(
            {"model": LAYOUT},
            round,
            clients,
            dict.fromkeys(clients, SENT),
            bound=history.bound(round),
            bounded=clients,
        )
        most, order = 0, []
        for one in guard(replies()):
            order.append(one.client)
            gc.collect()
            most = max(most, sum(ref() is not None for ref in alive))
            del one
        history.end(guard)
        assert order == clients
        assert most == expected


def test_invalid_uploads_are_not_held_back() -> None:
    """A run that diverges has only invalid uploads in its first round."""
    alive = []

    def replies() -> Iterator[Reply]:
        for i in range(20):
            upload = at(math.nan)
            alive.append(weakref.ref(upload))
            yield Reply(f"c{i}", 10, {"model": upload}, METRICS)
            del upload

    clients = [f"c{i}" for i in range(20)]
    guard = Guard(
        {"model": LAYOUT},
        0,
        clients,
        dict.fromkeys(clients, SENT),
        bound=NormBound(GuardSettings()),
        bounded=clients,
    )
    first = next(guard(replies()))
    gc.collect()
    assert len(alive) == 20
    assert not any(ref() for ref in alive)
    assert first.upload is None
    assert guard.reports[0].memory_advanced


def test_with_one_client_per_round_the_reference_is_over_five_rounds() -> None:
    """Four updates of 1, then one that grows ninefold each time: the median of the last five stays
    1, and 81 > 10.
    """
    history, lost = History(GuardSettings()), []
    for turn in range(4):
        for client in "abcd":
            lost += dropped(received(history, {client: 1}, round=5 * turn))
        lost += dropped(received(history, {"e": 9.0 ** (turn + 1)}, round=5 * turn + 4))
    assert lost == ["e"] * 3


@pytest.mark.rows("U11")
def test_image_counts_reported_by_clients_do_not_raise_the_bound() -> None:
    """The median is 1. A client that reports 1,000 times the images of the others may move by 10
    like them, unless its count is verified.
    """
    for verified, expected in ((False, ["big"]), (True, [])):
        ways = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "big": 50.0}
        assert (
            dropped(received(History(GuardSettings()), ways, {"big": 10_000}, verified=verified))
            == expected
        )


@pytest.mark.rows("U14")
def test_of_five_thousand_small_honest_clients_none_is_dropped() -> None:
    """Norms with a long tail, exp(1.1·z) for normal z: 107 of them are above 10 × their median,
    about 1.

    Each has 1/5,000 of the mean, so that even the largest moves it by about a hundredth of a
    typical update.
    """
    z = torch.randn(5000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ways = {f"c{i}": norm for i, norm in enumerate((1.1 * z).exp().tolist())}
    assert sum(norm > 10 * statistics.median(ways.values()) for norm in ways.values()) == 107
    images = dict.fromkeys(ways, 2)
    for verified in (False, True):
        assert dropped(received(History(GuardSettings()), ways, images, verified=verified)) == []
    ways["c4999"] = 1e4
    assert dropped(received(History(GuardSettings()), ways, images)) == ["c4999"]


def test_the_reference_grows_within_the_first_round() -> None:
    """The first five move by 1, the next ten by 9: from then on the median is 9, and 89 is below 10
    × 9.
    """
    ways = (
        {f"c{i}": 1.0 for i in range(5)}
        | {f"d{i}": 9.0 for i in range(10)}
        | {"e": 89.0, "f": 91.0}
    )
    assert dropped(received(History(GuardSettings()), ways)) == ["f"]


NORM = Layout.of(
    [
        Entry("backbone.w", (1,), "weight"),
        Entry("backbone.bn.running_mean", (2,), "statistic"),
        Entry("backbone.bn.running_var", (2,), "statistic"),
        Entry("backbone.bn.num_batches_tracked", (1,), "counter"),
    ]
)


def normed(weight: float, mean: float, batches: int = 9) -> State:
    return State(NORM, torch.tensor([weight, mean, mean, 1.0, 1.0]), torch.tensor([batches]))


def shifted(
    history: History, shifts: dict[str, float], round: int = 0, batches: int = 9
) -> list[str]:
    """Return the clients dropped in a round whose running means move by so many deviations."""
    sent = {"model": normed(0.0, 0.0, batches)}
    guard = Guard(
        {"model": NORM},
        round,
        shifts,
        dict.fromkeys(shifts, sent),
        bound=history.bound(round),
        bounded=shifts,
    )
    list(
        guard(
            Reply(client, 10, {"model": normed(1.0, shift)}, METRICS)
            for client, shift in shifts.items()
        )
    )
    history.end(guard)
    reasons = {report.client: report.dropped for report in guard.reports if report.dropped}
    assert all(reason.endswith("(guard.statistics_bound)") for reason in reasons.values())
    return list(reasons)


@pytest.mark.rows("U10")
@pytest.mark.parametrize("who", range(5))
def test_running_statistics_far_from_the_median_are_dropped(who: int) -> None:
    """The median shift is 2 or 3, so at most 15 passes, in any order; 1e30 must not reach the
    mean.
    """
    shifts = {f"c{i}": 1e30 if i == who else i + 1.0 for i in range(5)}
    history = History(GuardSettings())
    assert shifted(history, shifts) == [f"c{who}"]
    assert shifted(history, {"a": 1.0, "b": 15.5}, round=1) == ["b"]


def test_small_shifts_of_statistics_are_never_dropped() -> None:
    """Clients of two images barely move their statistics; one with many may move them by 1.5
    deviations.
    """
    assert shifted(History(GuardSettings()), {"a": 0.01, "b": 0.01, "c": 1.49}) == []
    assert shifted(History(GuardSettings()), {"a": 0.01, "b": 0.01, "c": 1.51}) == ["c"]
    assert (
        shifted(History(GuardSettings(statistics_bound=0)), {"a": 0.01, "b": 0.01, "c": 1e30}) == []
    )


def test_the_limit_of_shifts_follows_the_current_median() -> None:
    """The median of the first round is 1, that of the second 9: only 46 is above 5 × 9, at any
    position.
    """
    for position in range(6):
        history = History(GuardSettings())
        shifted(history, dict.fromkeys("abcde", 1.0))
        ways = [7.0, 8.0, 9.0, 9.0, 9.0]
        ways.insert(position, 46.0)
        assert shifted(history, dict(zip("abcdef", ways, strict=True)), round=1) == [
            "abcdef"[position]
        ]


def test_from_initial_statistics_shifts_may_be_larger() -> None:
    """Mean 0 and variance 1 are initial values: clients with many images move them far, those with
    few do not.
    """
    assert shifted(History(GuardSettings()), {"a": 0.1, "b": 0.1, "c": 9.9}, batches=0) == []
    assert shifted(History(GuardSettings()), {"a": 0.1, "b": 0.1, "c": 10.1}, batches=0) == ["c"]


def test_a_checkpoint_of_an_earlier_version_has_no_typical_shift() -> None:
    """The first round after it is compared with itself, in any order of clients."""
    for ways in ({"a": 2.0, "b": 2.0, "c": 20.0}, {"c": 20.0, "a": 2.0, "b": 2.0}):
        history = History(GuardSettings(), typical=TypicalUpdate(1.0, 0, 1.0, [(1.0, 0)] * 5))
        assert shifted(history, ways) == ["c"]


def test_statistics_have_a_bound_where_no_parameter_moves() -> None:
    """Norms of 0 give no reference for norms; shifts still have one."""
    history = History(GuardSettings())
    sent = {"model": normed(1.0, 0.0)}
    guard = Guard(
        {"model": NORM}, 0, "abc", dict.fromkeys("abc", sent), bound=history.bound(), bounded="abc"
    )
    list(
        guard(
            Reply(c, 10, {"model": normed(1.0, x)}, METRICS)
            for c, x in zip("abc", (1e30, 0.1, 0.1), strict=True)
        )
    )
    assert dropped(guard) == ["a"]


@pytest.mark.rows("U10")
def test_a_negative_variance_is_dropped_and_never_clipped() -> None:
    """Clipping would make the variance positive, and the upload would be merged."""
    history = History(GuardSettings(clip=True), typical=TypicalUpdate(1.0, 10, 1.0))
    bad = State(NORM, torch.tensor([1e3, 0.0, 0.0, 1.0, -1.0]), torch.tensor([9]))
    guard = Guard(
        {"model": NORM},
        0,
        "a",
        {"a": {"model": normed(0.0, 0.0)}},
        bound=history.bound(),
        bounded="a",
    )
    list(guard([Reply("a", 10, {"model": bad}, METRICS)]))
    assert [report.dropped for report in guard.reports] == ["backbone.bn.running_var is negative"]


@pytest.mark.parametrize("value", [-1, 0.5, math.inf, "ten"])
def test_invalid_bounds_are_refused(value: Any) -> None:
    with raises(ConfigError):
        validate(GuardSettings, {"norm_bound": value})


def as_first_version(values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of an experiment with the names and defaults of the first version."""
    del values["probe"]["frozen"]
    values["probe"] |= {"k": 200, "beside": []}
    values["train"]["memory"] = values["train"].pop("client_memory")
    del values["train"]["schedule_rounds"], values["train"]["step_factor"]
    del values["method"]["batch_norm"], values["method"]["norm"]
    del values["mean"]
    return values


def hash_of(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def test_settings_added_later_do_not_change_an_experiments_hash() -> None:
    """Experiments have the hash of versions without the bound and frozen backbones, unless these
    have other values than the defaults.
    """
    values: dict[str, Any] = {
        "clients": 2,
        "data": {"name": "fashion-mini"},
        "method": {"name": "simclr"},
    }
    plain = Experiment.from_dict(values)
    before = as_first_version(plain.to_dict())
    del before["guard"]
    assert plain.hash() == hash_of(before)
    other = plain.with_changes({"guard.clip": True})
    before = as_first_version(other.to_dict())
    assert before["guard"] == {
        "norm_bound": 10.0,
        "typical": "largest",
        "clip": True,
        "statistics_bound": 5.0,
        "statistics_floor": 1.5,
        "min_uploads": 2,
    }
    for key in ("statistics_bound", "statistics_floor", "min_uploads"):
        del before["guard"][key]
    before["guard"]["usual"] = before["guard"].pop("typical")
    assert other.hash() == hash_of(before)
    assert plain.with_changes({"guard.min_uploads": 1}).hash() == plain.hash()
    assert len({plain.hash(), other.hash(), plain.with_changes({"probe.frozen": True}).hash()}) == 3
    assert Experiment.from_toml(other.to_toml()) == other
