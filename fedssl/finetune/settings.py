"""What a fine-tuning for detection is, and its learning rate.

The defaults are Dec-SSL's (Wang, Zhang, Pang, Isola, "Does Decentralized Learning with Non-IID Unlabeled Data Benefit
from Self Supervision?", ICLR 2023): Mask R-CNN with an FPN, 90,000 iterations, batches of 16, rate 0.02. What it leaves
to Detectron's "1x" schedule is that one's: two drops by ten after 2/3 and 8/9, SGD with momentum 0.9, a weight decay of
0.0001 but for norm layers, shorter side 800 pixels, longer side 1,333 at most, half of the images mirrored.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedssl.settings import Settings

BATCH, RATE = 16, 0.02  # that belong together
DROPS = (2 / 3, 8 / 9)
WARMUP, WARMUP_SHARE, FIRST = 1000, 0.1, 0.001  # iterations, their most of a short run, the factor they begin with


class DetectionSettings(Settings):
    """Hyper-parameters of one fine-tuning; all of them are part of what its directory is about."""

    iterations: int = Field(90_000, ge=0)
    batch: int = Field(BATCH, gt=0)
    lr: float | None = Field(None, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    decay: float = Field(1e-4, ge=0)
    start: Literal["pretrained", "random"] = "pretrained"
    norm: Literal["train", "frozen"] = "train"
    freeze: int = Field(0, ge=0, le=5)
    size: int | None = Field(None, ge=32)
    longest: int | None = Field(None, ge=32)
    width: int = Field(256, gt=0)
    regions: int = Field(512, gt=0)
    flip: bool = True
    keep_empty: bool = False
    seed: int = 0

    @property
    def peak(self) -> float:
        """The rate after warm-up. That of batches of 16 is scaled with the batch, unless one is given."""
        return self.lr if self.lr is not None else RATE * self.batch / BATCH

    def rate(self, iteration: int) -> float:
        """A straight line up from a thousandth, then `peak`, a tenth and a hundredth of it."""
        warmup = min(WARMUP, int(WARMUP_SHARE * self.iterations))
        up = FIRST + (1 - FIRST) * iteration / warmup if iteration < warmup else 1.0
        drops = sum(iteration >= round(share * self.iterations) for share in DROPS)
        return float(self.peak * up * 0.1**drops)
