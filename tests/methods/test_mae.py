"""MAE: the masked patches, the reconstruction, and its error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from error_messages import raises
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fedssl.core.errors import ConfigError
from fedssl.method import Batch
from fedssl.methods import MAE
from fedssl.methods.mae import masked_mse, patchify
from fedssl.nets import ViTMini


class SmallViT(ViTMini):
    width = 8
    depth = 2
    heads = 2


def _method(size: int = 16, **settings: Any) -> MAE:
    torch.manual_seed(5)
    method = MAE.Settings(**{"depth": 1, **settings}).build(SmallViT(), size)
    assert isinstance(method, MAE)
    return method.train()


def _batch(method: MAE, n: int = 6, seed: int = 0) -> Batch:
    stream = torch.Generator().manual_seed(seed)
    images = torch.randint(
        256, (n, 3, method.size, method.size), dtype=torch.uint8, generator=stream
    )
    return Batch(torch.arange(n), images, (), None, method.draw(n, stream), torch.zeros(()))


def _slow(method: MAE, batch: Batch, drawn: Tensor, norm_pix: bool) -> float:
    """Return the error of reconstructions (n, t, k), by loops over images, masked patches and
    pixels.
    """
    total = 0.0
    count = 0
    for i, image in enumerate(batch.images.float() / 255):
        chances = batch.draws["mask"][i].tolist()
        seen = sorted(range(len(chances)), key=chances.__getitem__)[: method.seen]
        for place in set(range(len(chances))) - set(seen):
            row = 4 * (place // 4)
            column = 4 * (place % 4)
            pixels = image[:, row : row + 4, column : column + 4].flatten().tolist()
            if norm_pix:
                mean = sum(pixels) / 48
                spread = (sum((p - mean) ** 2 for p in pixels) / 47 + 1e-6) ** 0.5
                pixels = [(p - mean) / spread for p in pixels]
            total += sum(
                (a - b) ** 2 for a, b in zip(drawn[i, place].tolist(), pixels, strict=True)
            )
            count += 48
    return total / count


@pytest.mark.parametrize("norm_pix", [False, True])
def test_equals_the_loop_over_masked_pixels(norm_pix: bool) -> None:
    method = _method(norm_pix=norm_pix)
    batch = _batch(method)
    keep = batch.draws["mask"].argsort(1)[:, : method.seen]
    drawn = method.decoder(method.backbone.tokens(method.clean(batch.images), keep), keep)
    loss = method.loss(method(batch), {}).item()
    assert loss == pytest.approx(_slow(method, batch, drawn, norm_pix), rel=1e-4)


def test_by_hand() -> None:
    """Two patches of two pixels: errors 1, 0, 2, 1, so (1 + 0 + 4 + 1) / 4."""
    drawn = torch.tensor([[1.0, 2], [3, 4]])
    patches = torch.tensor([[0.0, 2], [5, 3]])
    assert masked_mse(drawn, patches, norm_pix=False).item() == 1.5


def test_a_flat_patch_has_a_normalised_error() -> None:
    flat = torch.full((2, 48), 0.7)
    assert masked_mse(torch.zeros(2, 48), flat, norm_pix=True).item() == pytest.approx(0, abs=1e-6)


def test_patches_are_cut_line_by_line() -> None:
    images = torch.arange(2 * 3 * 4 * 6).view(2, 3, 4, 6)
    patches = patchify(images, 2)
    assert patches.shape == (2, 6, 12)
    assert torch.equal(
        patches[1, 4], images[1, :, 2:4, 2:4].flatten()
    )  # second line, second column


@pytest.mark.parametrize(("mask", "seen"), [(0.75, 4), (0.5, 8), (0.99, 1), (0.01, 15)])
def test_the_share_of_visible_patches(mask: float, seen: int) -> None:
    method = _method(mask=mask)
    out = method(_batch(method))
    assert method.seen == seen
    assert out.p.shape == out.expected.shape == (1, 6, 16 - seen, 48)
    assert out.h.shape == out.z.shape == (1, 6, 8)


def test_masked_patches_are_not_encoded_but_are_reconstructed() -> None:
    method = _method()
    batch = _batch(method, n=1)
    masked = batch.draws["mask"].argsort(1)[0, -1].item()
    row = 4 * (masked // 4)
    column = 4 * (masked % 4)
    other = batch._replace(images=batch.images.clone())
    other.images[..., row : row + 4, column : column + 4] = (
        255 - other.images[..., row : row + 4, column : column + 4]
    )
    one = method(batch)
    two = method(other)
    assert torch.equal(one.p, two.p)
    assert torch.equal(one.h, two.h)
    assert torch.equal(one.expected[0, 0, :-1], two.expected[0, 0, :-1])
    assert not torch.equal(one.expected[0, 0, -1], two.expected[0, 0, -1])


def test_every_patch_is_masked_equally_often() -> None:
    method = _method()
    draws = method.draw(4000, torch.Generator().manual_seed(0))["mask"]
    counts = draws.argsort(1)[:, method.seen :].flatten().bincount(minlength=16) / 4000
    assert (counts - 0.75).abs().max() < 0.03  # four standard deviations
    assert torch.equal(draws, method.draw(4000, torch.Generator().manual_seed(0))["mask"])


def test_steps_lower_the_loss_and_every_parameter_takes_a_gradient() -> None:
    method = _method()
    batch = _batch(method)
    losses = []
    for _ in range(10):
        loss = method.loss(method(batch), {})
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for name, parameter in method.named_parameters():
                assert parameter.grad is not None, name
                assert parameter.grad.abs().max() > 0, name
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
    assert losses[-1] < losses[0] - 1e-3


def test_precision_parts_and_views() -> None:
    method = _method()
    method.precision = "bf16"
    out = method(_batch(method))
    assert {tensor.dtype for tensor in out if tensor is not None} == {torch.float32}
    assert method.provides == set(method.online) == {"backbone", "decoder"}
    assert (method.views, method.persistent_parts) == ((), ())


def test_features_are_the_backbones_own() -> None:
    """There is no projector: h, z and p of a clean, whole image are its class token."""
    method = _method()
    images = method.clean(_batch(method).images)
    for tensor in method.encode(images):
        assert torch.equal(tensor, method.backbone(images))


def test_other_backbones_are_refused(make: Any) -> None:
    with raises(ConfigError):
        make(MAE)
    with raises(ConfigError):
        _method(size=4)
    with raises(ConfigError):
        _method(size=10)


def test_no_operation_waits_for_the_device() -> None:
    with FakeTensorMode():  # has shapes and no values: reading one raises
        assert masked_mse(torch.empty(6, 3, 8), torch.empty(6, 3, 8), norm_pix=True).shape == ()
