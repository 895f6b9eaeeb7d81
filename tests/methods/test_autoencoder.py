"""The decoder for images of any size, and the reconstruction loss."""

from __future__ import annotations

import pytest
import torch

from fedssl.method import Batch, Normalisation
from fedssl.methods import Autoencoder
from fedssl.methods.autoencoder import Decoder
from fedssl.nets import CNN, CNN5, ResNet18


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [1, 4, 5, 8, 9, 28, 32, 33, 84])
def test_a_decoder_of_any_size(size: int, channels: int) -> None:
    decoder = Decoder(6, 2, channels, size)
    assert decoder(torch.randn(2, 6)).shape == (2, channels * size * size)
    assert decoder.layers[:2](torch.randn(2, 6)).shape[-1] <= 4


def test_a_decoder_does_not_grow_with_the_image() -> None:
    """The first layer has 512 · 64 · 16 weights; each doubling of the image's side adds a layer of
    64 · 64 · 16 weights, and a norm layer.
    """
    sizes = [sum(p.numel() for p in Decoder(512, 64, 3, size).parameters()) for size in (32, 224)]
    assert sizes[1] - sizes[0] == 3 * (64 * 64 * 16 + 2 * 64)


@pytest.mark.parametrize("cls", [CNN, CNN5, ResNet18])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_backbone_has_its_number_of_channels(cls, channels: int) -> None:
    assert cls(channels).channels == channels


def test_the_loss_is_the_mean_over_pixels(make, batch: Batch) -> None:
    method = make(Autoencoder)
    out = method(batch)
    total = 0.0
    for decoded, image in zip(out.z[0].tolist(), batch.images.tolist(), strict=True):
        pixels = [value for plane in image for line in plane for value in line]
        total += sum((m - p / 255) ** 2 for m, p in zip(decoded, pixels, strict=True)) / len(pixels)
    assert method.loss(out, {}).item() == pytest.approx(total / 6, rel=1e-5)


def test_inputs_are_normalised_and_outputs_are_plain_pixels(make, batch: Batch) -> None:
    plain = make(Autoencoder)
    normalised = make(Autoencoder)
    normalised.mean, normalised.std = map(
        torch.tensor, Normalisation((0.5, 0.4, 0.3), (0.2, 0.3, 0.1))
    )
    a = plain(batch)
    b = normalised(batch)
    assert torch.equal(a.expected, b.expected)
    assert a.expected.min() == batch.images.min() / 255
    assert a.expected.max() == batch.images.max() / 255
    assert (a.h - b.h).abs().max() > 1e-3
    assert plain.views == ()
