"""A decoder from projections to pixels, trained on images that an attacker has."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MAX_SIDE = 32  # of decoded images; larger ones are reduced
HIDDEN = 512
EPOCHS = 40
BATCH = 64
LR = 1e-3
DROPOUT = 0.2


def reduced(pixels: Tensor) -> Tensor:
    """Return uint8 images (n, C, H, W) in 0…1, with at most MAX_SIDE pixels a side."""
    images = pixels.float() / 255
    side = max(images.shape[2:])
    if side <= MAX_SIDE:
        return images
    scale = MAX_SIDE / side
    size = [max(1, round(extent * scale)) for extent in images.shape[2:]]
    return F.interpolate(images, size, mode="bilinear", antialias=True)


class Decoder(nn.Module):
    """Two hidden layers: unit projections (n, d) to images (n, C, H, W) in 0…1."""

    def __init__(self, width: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        outputs = torch.Size(shape).numel()
        self.layers = nn.Sequential(
            nn.Linear(width, HIDDEN),
            nn.ReLU(),
            nn.Dropout(DROPOUT),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Dropout(DROPOUT),
            nn.Linear(HIDDEN, outputs),
        )

    def forward(self, rows: Tensor) -> Tensor:
        """Return the images."""
        # Unit rows have entries of about 1/√d.
        scaled = rows * rows.shape[1] ** 0.5
        flat: Tensor = self.layers(scaled)
        return flat.sigmoid().view(len(rows), *self.shape)


def train_decoder(rows: Tensor, images: Tensor, stream: torch.Generator) -> Decoder:
    """Return a decoder of projections (n, d) into images (n, C, H, W), trained on pairs."""
    seed = int(torch.randint(2**31, (1,), generator=stream))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        decoder = Decoder(rows.shape[1], tuple(images.shape[1:]))
        optimizer = torch.optim.Adam(decoder.parameters(), lr=LR)
        for _ in range(EPOCHS):
            for index in torch.randperm(len(rows)).split(BATCH):
                loss = F.mse_loss(decoder(rows[index]), images[index])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return decoder.eval()
