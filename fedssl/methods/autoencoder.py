"""Autoencoder: reconstruct the image from its features. FedAE is this under FedAvg. Images are not
augmented, so that `augment` and `view_size` have no effect.

Hinton and Salakhutdinov, "Reducing the Dimensionality of Data with Neural Networks", Science 2006.
Departures: convolutions, BatchNorm and plain gradient descent instead of layers of restricted
Boltzmann machines trained one by one; the code is the backbone's features, of any dimension.
"""

from __future__ import annotations

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedssl.method import METHODS, Batch, Constants, Method, MethodSettings, Output
from fedssl.nets import BatchNorm2d
from fedssl.views import ViewGroup


class Decoder(nn.Module):
    """Decode features (n, d) to pixels (n, C·size·size).

    A linear layer produces a map of at most four pixels a side; transposed convolutions double it
    until it is at least as large as the image, and pixels beyond the image are cut off.
    """

    def __init__(self, features: int, width: int, channels: int, size: int) -> None:
        super().__init__()
        self.size = size
        doublings = max(1, ((size - 1) // 4).bit_length())
        side = -(-size // 2**doublings)
        self.layers = nn.Sequential(
            nn.Linear(features, width * side * side),
            nn.Unflatten(1, (width, side, side)),
            BatchNorm2d(width, relu=True),
        )
        for _ in range(doublings - 1):
            self.layers.append(
                nn.ConvTranspose2d(width, width, kernel_size=4, stride=2, padding=1, bias=False)
            )
            self.layers.append(BatchNorm2d(width, relu=True))
        self.layers.append(nn.ConvTranspose2d(width, channels, kernel_size=4, stride=2, padding=1))

    def forward(self, h: Tensor) -> Tensor:
        """Return the pixels of images with these features."""
        image: Tensor = self.layers(h)
        return image[:, :, : self.size, : self.size].flatten(1)


class AutoencoderSettings(MethodSettings):
    """Settings of the autoencoder."""

    width: int = Field(64, gt=0)  # channels of the decoder's layers


@METHODS.register("autoencoder")
class Autoencoder(Method):
    """Reconstruct the image from its features. FedAE is this under FedAvg. Images are not
    augmented, so that `augment` and `view_size` have no effect."""

    Settings = AutoencoderSettings
    settings: AutoencoderSettings

    def __init__(self, settings: AutoencoderSettings, backbone: nn.Module, size: int) -> None:
        super().__init__(settings, backbone, size)
        channels: int = backbone.channels  # type: ignore[assignment]
        # Projections are pixels in 0…1.
        self.projector = Decoder(self.features, settings.width, channels, size=size)

    @property
    def views(self) -> tuple[ViewGroup, ...]:
        """No views: the images are encoded without augmentation."""
        return ()

    def forward(self, batch: Batch) -> Output:
        """Return the reconstructed pixels as z, and those of the images as `expected`."""
        out = self.encode_views(self.clean(batch.images)[None])
        pixels = batch.images.flatten(1)[None].float() / 255
        return out._replace(expected=pixels)

    def loss(self, out: Output, constants: Constants) -> Tensor:
        """Return the mean squared error over images and pixels."""
        assert out.expected is not None
        return F.mse_loss(out.z, out.expected)
