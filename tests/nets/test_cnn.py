"""Plain convolutional networks and heads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from error_messages import raises

from fedssl.core.errors import ConfigError
from fedssl.nets import CNN5, BatchNorm1d, build, expander, linear, mlp


@pytest.mark.parametrize("size", [16, 28, 32, 45, 84])
def test_cnn5_makes_2048_features_of_any_size(size: int) -> None:
    with torch.device("meta"):
        net = build("cnn5", channels=1)
        assert net(torch.empty(2, 1, size, size)).shape == (2, 2048)
    assert net.dim == 2048


def test_cnn5_has_five_convolutions() -> None:
    with torch.device("meta"):
        net = build("cnn5")
    kernels = [p for p in net.parameters() if p.dim() == 4]
    assert len(kernels) == 5
    assert sum(p.numel() for p in net.parameters()) == 4_208_352


@pytest.mark.parametrize("size", [(15, 15), (16, 8), (7, 7), (1, 1)])
def test_cnn5_refuses_smaller_images(size: tuple[int, int]) -> None:
    """Under 8 pixels a side, torch's pooling would fail first."""
    with torch.device("meta"):
        net = build("cnn5")
        with raises(ConfigError):
            net(torch.empty(2, 3, *size))


@pytest.mark.parametrize("size", [16, 24, 48])
def test_cnn5_averages_four_fields(size: int) -> None:
    class Tiny(CNN5):
        widths = (3, 4, 4, 4, 5)

    net = Tiny().eval()
    seen = []
    net.layers[-1].register_forward_hook(lambda _m, _i, out: seen.append(out))
    features = net(torch.randn(2, 3, size, size))
    pooled = F.max_pool2d(seen[0], 2)
    if pooled.shape[-1] % 2 == 0:
        torch.testing.assert_close(features, F.adaptive_avg_pool2d(pooled, 2).flatten(1))
    else:  # 3x3: fields of two and one, all inside the image
        parts = [pooled[:, :, r, c].mean((2, 3)) for r in _halves for c in _halves]
        torch.testing.assert_close(features, torch.stack(parts, -1).flatten(1))


_halves = (slice(0, 2), slice(2, 3))


def test_cnn_is_small() -> None:
    net = build("cnn", channels=1)
    assert net(torch.randn(2, 1, 28, 28)).shape == (2, 512)
    assert net.dim == 512
    assert sum(p.numel() for p in net.parameters()) < 100_000
    assert net.layers[0][0].stride == (2, 2)


@pytest.mark.parametrize("size", [(28, 28), (32, 16), (9, 9)])
def test_cnn_averages_four_fields(size: tuple[int, int]) -> None:
    net = build("cnn").eval()
    seen = []
    net.layers[-1].register_forward_hook(lambda _m, _i, out: seen.append(out))
    features = net(torch.randn(2, 3, *size))
    torch.testing.assert_close(features, F.adaptive_avg_pool2d(seen[0], 2).flatten(1))


@pytest.mark.parametrize("size", [(1, 1), (5, 8), (8, 8), (4, 24), (24, 4)])
def test_cnn_takes_images_of_any_size(size: tuple[int, int]) -> None:
    """If a map has one row or column, all fields contain it: the halves across it are equal."""
    net = build("cnn").eval()
    seen = []
    net.layers[-1].register_forward_hook(lambda _m, _i, out: seen.append(out))
    features = net(torch.randn(3, 3, *size)).view(3, 128, 2, 2)
    rows, columns = seen[0].shape[2:]
    if rows == 1:
        assert torch.equal(features[:, :, 0], features[:, :, 1])
    if columns == 1:
        assert torch.equal(features[..., 0], features[..., 1])
    assert 1 in (rows, columns)
    torch.testing.assert_close(
        features[:, :, 0, 0], seen[0][:, :, : (rows + 1) // 2, : (columns + 1) // 2].mean((2, 3))
    )


def test_heads() -> None:
    head = mlp(5, 7, 3)
    x = torch.randn(6, 5)
    hidden = F.linear(x, head[0].weight, head[0].bias)
    normal = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(head(x), F.linear(normal.relu(), head[3].weight, head[3].bias))
    assert isinstance(head[1], BatchNorm1d)
    assert (
        sum(p.numel() for p in mlp(512, 4096, 2048).parameters())
        == 512 * 4096 + 3 * 4096 + 4096 * 2048 + 2048
    )
    assert list(linear(5, 3).state_dict()) == ["0.weight", "0.bias"]
    assert linear(5, 3)(x).shape == (6, 3)


def test_the_expanders_missing_biases_would_do_nothing() -> None:
    head = expander(5, 7, 3)
    x = torch.randn(6, 5)
    for i, norm in ((0, 1), (2, 3)):
        hidden = F.linear(x, head[i].weight, torch.full((7,), 2.0))
        normal = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + 1e-5).sqrt()
        torch.testing.assert_close(normal.relu(), head[norm](head[i](x)))
        x = normal.relu()
    assert [name for name, _ in head.named_parameters()] == [
        "0.weight", "1.weight", "1.bias", "2.weight", "3.weight", "3.bias", "4.weight",
    ]  # fmt: skip
