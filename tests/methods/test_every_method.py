"""Properties of every method: parameters in a flat row, one pass over all views, capabilities."""

from __future__ import annotations

import copy

import pytest
import torch
from pydantic import ValidationError

from fedssl.method import METHODS, Batch, Constants, Method
from fedssl.methods import (
    BYOL,
    DINO,
    MAE,
    Autoencoder,
    Barlow,
    DeepCluster,
    MoCoV1,
    MoCoV2,
    Rotation,
    SimCLR,
    SimSiam,
    Supervised,
    SwAV,
    VICReg,
)

EVERY = [
    cls for cls in map(METHODS.__getitem__, METHODS.names()) if cls is not MAE
]  # it needs patches: test_mae.py
AT_ONCE = [Autoencoder, Rotation, SimCLR]  # BatchNorm sees all that they encode as one batch
PER_VIEW = [
    cls for cls in EVERY if cls not in (*AT_ONCE, SwAV)
]  # SwAV's p are scores, which `encode` does not return
SHAPES = {Autoencoder: (1, 6, 192), Rotation: (4, 6, 4)}  # of projections, where not (2, 6, 5)


def _given(method: Method) -> Constants:
    """Return the constants of an epoch of six images."""
    return method.before_epoch(
        lambda: torch.randn(6, 24, generator=torch.Generator().manual_seed(8))
    )


def _descend(method: Method, batch: Batch, rate: float = 0.01, after: bool = True) -> float:
    constants = _given(method)
    out = method(batch)
    loss = method.loss(out, constants)
    loss.backward()
    with torch.no_grad():
        for parameter in method.parameters():
            if parameter.grad is not None:
                parameter -= rate * parameter.grad
                parameter.grad = None
        if after:
            if method.target_momentum is not None:
                method.move_target(method.target_momentum)
            method.after_step(out)
    return loss.item()


@pytest.mark.parametrize("cls", EVERY)
def test_registered_under_its_name(cls: type[Method]) -> None:
    assert METHODS[cls.__name__.lower()] is cls
    assert cls.Settings.method is cls


@pytest.mark.parametrize("cls", EVERY)
def test_a_step_through_views_moves_the_row(cls: type[Method], make, batch: Batch) -> None:
    method = make(cls)
    before = method.state.clone()
    online = method.parameter_row(method.online).clone()
    _descend(method, batch)
    assert (method.parameter_row(method.online) != online).float().mean() > 0.9
    assert torch.equal(
        method.state.view(method.state.layout.entries[0]), method.backbone.layers[0][0].weight
    )
    assert not torch.equal(method.state.floats, before.floats)


@pytest.mark.parametrize("cls", EVERY)
def test_steps_lower_the_loss_with_a_fixed_target_and_queue(cls, make, batch: Batch) -> None:
    method = make(cls)
    losses = [_descend(method, batch, after=False) for _ in range(10)]
    assert losses[-1] < losses[0] - 1e-3


@pytest.mark.parametrize("cls", EVERY)
def test_only_online_parts_take_gradients(cls: type[Method], make, batch: Batch) -> None:
    method = make(cls)
    constants = _given(method)
    method.loss(method(batch), constants).backward()
    for name, parameter in method.named_parameters():
        assert (parameter.grad is not None) == (name.partition(".")[0] in method.online), name


@pytest.mark.parametrize("cls", EVERY)
def test_shapes_and_precision_of_an_output(cls: type[Method], make, batch: Batch) -> None:
    method = make(cls)
    method.precision = "bf16"
    out = method(batch)
    shape = SHAPES.get(cls, (2, 6, 5))
    assert out.h.shape == (*shape[:2], 24)
    assert out.z.shape == out.p.shape == shape
    assert {tensor.dtype for tensor in out[:4] if tensor is not None} == {torch.float32}
    loss = method.loss(out, _given(method))
    assert (loss.shape, loss.dtype) == ((), torch.float32)


@pytest.mark.parametrize("cls", PER_VIEW)
def test_one_pass_equals_a_pass_for_each_view(cls: type[Method], make, batch: Batch) -> None:
    together = make(cls)
    apart = make(cls)
    out = together(batch)
    for i, view in enumerate(batch.views[0]):
        alone = apart.encode(view)
        torch.testing.assert_close(out.z[i], alone.z, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(out.p[i], alone.p, rtol=1e-5, atol=1e-6)
        if "target" in apart.provides:
            apart.encode_target(view)
    torch.testing.assert_close(together.state.floats, apart.state.floats, rtol=1e-5, atol=1e-6)
    assert not torch.equal(together.state.floats, make(cls).state.floats)  # statistics did move


@pytest.mark.parametrize("cls", PER_VIEW)
def test_one_pass_has_the_gradient_of_two(cls: type[Method], make, batch: Batch) -> None:
    together = make(cls)
    apart = make(cls)
    weights = torch.linspace(-1, 1, 60).view(2, 6, 5)
    (together.encode_views(batch.views[0]).p * weights).sum().backward()
    sum((apart.encode(batch.views[0][i]).p * weights[i]).sum() for i in range(2)).backward()
    for p, q in zip(together.parameters(), apart.parameters(), strict=True):
        if q.requires_grad:
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)


def test_simclr_shares_statistics_between_views(make, batch: Batch) -> None:
    method = make(SimCLR)
    twin = make(SimCLR)
    both = twin.encode(batch.views[0].flatten(0, 1))
    torch.testing.assert_close(method(batch).z.flatten(0, 1), both.z)
    assert (method.encode(batch.views[0][0]).z - both.z[:6]).abs().max() > 0.01


@pytest.mark.parametrize("cls", [BYOL, DINO, MoCoV1, MoCoV2])
def test_fresh_copies_the_online_network(cls: type[Method], make, batch: Batch) -> None:
    method = make(cls)
    for _ in range(2):  # in the first step target and online network are still the same
        _descend(method, batch)
        method.count_batch()
    tensors = method.state.tensors()
    statistic = "backbone.layers.0.1.running_mean"
    assert not torch.equal(tensors["target." + statistic], tensors[statistic])
    method.init_local_parts(torch.Generator().manual_seed(0))
    for name, tensor in tensors.items():
        if name.startswith("target."):
            assert torch.equal(tensor, tensors[name.removeprefix("target.")]), name


@pytest.mark.parametrize("cls", [BYOL, DINO, MoCoV1, MoCoV2])
def test_target_moves_by_hand_numbers(cls: type[Method], make) -> None:
    """Online 1, target 0, m = 0.9: 0·0.9 + 1·0.1 = 0.1, then 0.1·0.9 + 0.1 = 0.19."""
    method = make(cls)
    method.parameter_row(method.online).fill_(1)
    method.parameter_row(("target",)).fill_(0)
    statistics = method.state.pick(("target",), ("statistic",)).floats
    for expected in (0.1, 0.19):
        method.move_target(0.9)
        for name, parameter in method.target.named_parameters():
            torch.testing.assert_close(parameter, torch.full_like(parameter, expected), msg=name)
    assert torch.equal(method.state.pick(("target",), ("statistic",)).floats, statistics)


@pytest.mark.parametrize(
    ("cls", "settings", "parts", "kept"),
    [
        (SimCLR, {}, {"backbone", "projector"}, ()),
        (Barlow, {}, {"backbone", "projector"}, ()),
        (VICReg, {}, {"backbone", "projector"}, ()),
        (Supervised, {}, {"backbone", "projector"}, ()),
        (Rotation, {}, {"backbone", "projector"}, ()),
        (Autoencoder, {}, {"backbone", "projector"}, ()),
        (SimSiam, {}, {"backbone", "projector", "predictor"}, ()),
        (SimSiam, {"predictor": False}, {"backbone", "projector"}, ()),
        (BYOL, {}, {"backbone", "projector", "predictor", "target"}, ("target",)),
        (BYOL, {"ema": False}, {"backbone", "projector", "predictor", "target"}, ("target",)),
        (
            BYOL,
            {"stop_gradient": False},
            {"backbone", "projector", "predictor", "target"},
            ("target",),
        ),
        (DeepCluster, {}, {"backbone", "projector"}, ()),
        (SwAV, {}, {"backbone", "projector", "prototypes"}, ()),
        (DINO, {}, {"backbone", "projector", "target", "centre"}, ("target", "centre")),
        (MoCoV1, {}, {"backbone", "projector", "target", "queue"}, ("target", "queue")),
        (MoCoV2, {"key": "reset"}, {"backbone", "projector", "target", "queue"}, ("queue",)),
        (
            MoCoV2,
            {"queue_start": "random"},
            {"backbone", "projector", "target", "queue"},
            ("target",),
        ),
    ],
)
def test_the_parts_and_capabilities_of_an_instance(cls, settings, parts, kept, make) -> None:
    method = make(cls, **settings)
    assert method.provides == parts
    assert method.persistent_parts == kept
    assert set(method.online) == parts - {"target", "queue", "centre"}


@pytest.mark.parametrize("cls", EVERY)
def test_counters_of_norm_layers_advance_and_nothing_else(
    cls: type[Method], make, batch: Batch
) -> None:
    method = make(cls)
    method(batch)
    method.count_batch()
    views = 1 if cls in AT_ONCE else 2  # passes each layer has seen
    for name, tensor in method.state.tensors().items():
        if name.endswith("num_batches_tracked"):
            assert tensor == views, name
    if "queue" in method.private:
        assert method.queue.pointer == 0


@pytest.mark.parametrize(
    ("cls", "wrong"),
    [
        (BYOL, {"momentum": 1.5}),
        (SimCLR, {"temperature": 0.0}),
        (SimSiam, {"dim": 0}),
        (Barlow, {"lam": -1.0}),
        (Barlow, {"scale": 0.0}),
        (VICReg, {"mu": -1.0}),
        (Supervised, {}),
        (Supervised, {"classes": 1}),
        (Autoencoder, {"width": 0}),
        (SwAV, {"epsilon": 0.0}),
        (SwAV, {"prototypes": 1}),
        (DINO, {"tau_t": 0.0}),
        (DeepCluster, {"clusters": 1}),
        (MoCoV1, {"queue": 0}),
        (MoCoV1, {"hidden": 5}),
        (MoCoV2, {"key": "global"}),
        (MoCoV2, {"hidden": -1}),
    ],
)
def test_impossible_settings_are_refused(cls: type[Method], wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        cls.Settings(**wrong)


def test_published_defaults() -> None:
    assert (SimCLR.Settings().temperature, SimCLR.Settings().hidden, SimCLR.Settings().dim) == (
        0.07,
        4096,
        2048,
    )
    v1 = MoCoV1.Settings()
    v2 = MoCoV2.Settings()
    assert (v1.queue, v1.momentum, v1.dim, v1.temperature, v2.temperature) == (
        4096,
        0.99,
        128,
        0.07,
        0.2,
    )
    assert v1.augment.jitter == (0.4, 0.4, 0.4, 0.1)
    assert v2.augment == BYOL.Settings().augment
    assert BYOL.Settings().momentum == 0.99
    assert Barlow.Settings().lam == 0.005
    vicreg = VICReg.Settings()
    assert (vicreg.lam, vicreg.mu, vicreg.nu) == (25, 25, 1)


def test_a_copy_of_settings_builds_the_same_method(make) -> None:
    a = make(MoCoV2)
    b = make(MoCoV2, **copy.deepcopy(dict(make(MoCoV2).settings)))
    assert a.state.layout == b.state.layout
    assert torch.equal(a.state.floats, b.state.floats)
