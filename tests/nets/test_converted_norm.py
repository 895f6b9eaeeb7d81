"""BatchNorm layers of torch and timm become layers with statistics per group of images."""

from __future__ import annotations

import copy

import pytest
import torch
from error_messages import raises
from torch import Tensor, nn

from fedssl.core.errors import ConfigError
from fedssl.nets import BatchNorm2d
from fedssl.nets.converted_norm import convert_norms
from fedssl.nets.group_norm import use_norm


def _layer(norm: nn.Module) -> nn.Module:
    """Return a network of one norm layer, with statistics and weights that are not the defaults."""
    stream = torch.Generator().manual_seed(0)
    for tensor in norm.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape, generator=stream) + 0.5)
    return nn.Sequential(norm)


def _images(n: int = 6) -> Tensor:
    return torch.randn(n, 4, 3, 3, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, nn.SyncBatchNorm])
def test_evaluation_and_keys_are_those_of_the_layer(kind: type[nn.Module]) -> None:
    before = _layer(kind(4, eps=0.1, momentum=0.3)).eval()  # type: ignore[call-arg]
    after = copy.deepcopy(before)
    convert_norms(after)
    assert type(after[0]) is not kind  # type: ignore[index]
    assert list(after.state_dict()) == list(before.state_dict())
    assert torch.equal(after(_images()), before(_images()))


def test_a_training_step_of_one_group_is_that_of_the_layer() -> None:
    """The output, and the running statistics with momentum 0.3."""
    before = _layer(nn.BatchNorm2d(4, momentum=0.3))
    after = copy.deepcopy(before)
    convert_norms(after)
    assert torch.equal(after(_images()), before(_images()))
    for name in ("running_mean", "running_var"):
        assert torch.equal(after.state_dict()[f"0.{name}"], before.state_dict()[f"0.{name}"])


def test_two_groups_are_two_batches() -> None:
    before = _layer(nn.BatchNorm1d(4))
    after = copy.deepcopy(before)
    convert_norms(after)
    rows = torch.randn(6, 4, generator=torch.Generator().manual_seed(2))
    after[0].groups = 2  # type: ignore[index]
    together = after(rows)
    assert torch.equal(together, torch.cat([before(rows[:3]), before(rows[3:])]))


def test_a_layer_without_weights_stays_without() -> None:
    net = nn.Sequential(nn.BatchNorm2d(4, affine=False))
    expected = net.eval()(_images())
    convert_norms(net)
    assert list(net.state_dict()) == ["0.running_mean", "0.running_var", "0.num_batches_tracked"]
    assert torch.equal(net(_images()), expected)


def test_parameters_are_kept_not_copied() -> None:
    norm = nn.BatchNorm2d(4)
    weight = norm.weight
    net = nn.Sequential(norm)
    convert_norms(net)
    assert net[0].weight is weight


def test_layers_of_this_package_are_left_alone() -> None:
    own = BatchNorm2d(4)
    net = nn.Sequential(own)
    convert_norms(net)
    assert net[0] is own


class _OtherNorm(nn.BatchNorm2d):
    """A user's layer."""


def test_other_batch_norms_are_rejected() -> None:
    for layer in (
        _OtherNorm(4),
        nn.BatchNorm3d(4),
        nn.BatchNorm2d(4, momentum=None),
        nn.BatchNorm2d(4, track_running_stats=False),
        nn.InstanceNorm2d(4, track_running_stats=True),
    ):
        with raises(ConfigError):
            convert_norms(nn.Sequential(nn.Sequential(layer)))


def test_instance_and_layer_norms_are_left_alone() -> None:
    net = nn.Sequential(nn.InstanceNorm2d(4), nn.GroupNorm(2, 4), nn.LayerNorm(4))
    layers = list(net)
    convert_norms(net)
    assert list(net) == layers


@pytest.mark.oracle
@pytest.mark.parametrize("act", [nn.ReLU, nn.SiLU, None])
def test_the_activation_of_timms_layer_follows(act: type[nn.Module] | None) -> None:
    layers = pytest.importorskip("timm.layers")
    norm = layers.BatchNormAct2d(4, act_layer=act or nn.ReLU, apply_act=act is not None)
    before = _layer(norm)
    after = copy.deepcopy(before)
    convert_norms(after)
    assert list(after.state_dict()) == list(before.state_dict())
    assert torch.equal(after(_images()), before(_images()))
    assert torch.equal(after.eval()(_images()), before.eval()(_images()))
    use_norm(after, "group")  # one group of four channels
    normalised = nn.functional.group_norm(_images(), 1)
    expected = normalised if act is None else act()(normalised)
    torch.testing.assert_close(after(_images()), expected, rtol=1e-4, atol=1e-5)
