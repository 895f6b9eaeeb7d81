"""Autoencoder: make the image again from its features. FedAE is this under FedAvg. Images go in as they are, so that
`augment` and `view_size` change nothing.

Hinton and Salakhutdinov, "Reducing the Dimensionality of Data with Neural Networks", Science 2006.
Departures: convolutions, BatchNorm and plain gradient descent instead of layers of restricted Boltzmann machines
trained one by one; the code is the backbone's features, whatever their number.
"""

from __future__ import annotations

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedssl.method import METHODS, Batch, Given, Method, MethodSettings, Output
from fedssl.nets import BatchNorm2d
from fedssl.views import ViewGroup


class Decoder(nn.Module):
    """Features (n, d) to pixels (n, C·size·size).

    A linear layer makes a map of at most four pixels a side; transposed convolutions double it until it is as large as
    the image, and what is beyond the image is cut off.
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
            self.layers.append(nn.ConvTranspose2d(width, width, 4, stride=2, padding=1, bias=False))
            self.layers.append(BatchNorm2d(width, relu=True))
        self.layers.append(nn.ConvTranspose2d(width, channels, 4, stride=2, padding=1))

    def forward(self, h: Tensor) -> Tensor:
        image: Tensor = self.layers(h)
        return image[:, :, : self.size, : self.size].flatten(1)


class AutoencoderSettings(MethodSettings):
    width: int = Field(64, gt=0)  # channels of the decoder's layers


@METHODS.register("autoencoder")
class Autoencoder(Method):
    Settings = AutoencoderSettings
    settings: AutoencoderSettings

    def __init__(self, settings: AutoencoderSettings, backbone: nn.Module, size: int) -> None:
        super().__init__(settings, backbone, size)
        channels: int = backbone.channels  # type: ignore[assignment]
        self.projector = Decoder(self.features, settings.width, channels, size)  # projections are pixels in 0…1

    @property
    def views(self) -> tuple[ViewGroup, ...]:
        return ()

    def forward(self, batch: Batch) -> Output:
        out = self.encode_views(self.clean(batch.images)[None])
        return out._replace(wanted=batch.images.flatten(1)[None].float() / 255)

    def loss(self, out: Output, given: Given) -> Tensor:
        """Mean squared error over images and pixels."""
        assert out.wanted is not None
        return F.mse_loss(out.z, out.wanted)
