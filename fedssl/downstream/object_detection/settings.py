"""Settings of a fine-tuning for detection, and its learning rate.

The defaults are Dec-SSL's (Wang, Zhang, Pang, Isola, "Does Decentralized Learning with Non-IID
Unlabeled Data Benefit from Self Supervision?", ICLR 2023): Mask R-CNN with an FPN, 90,000
iterations, batches of 16, learning rate 0.02. Values that the paper does not give are those of
Detectron's "1x" schedule: two drops by ten after 2/3 and 8/9, SGD with momentum 0.9, a weight decay
of 0.0001 except for norm layers, shorter side 800 pixels, longer side at most 1,333, half of the
images mirrored.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedssl.core.settings import Settings

REFERENCE_BATCH = 16
REFERENCE_LR = 0.02  # for batches of REFERENCE_BATCH
LR_DROPS = (2 / 3, 8 / 9)  # shares of the iterations
WARMUP = 1000  # iterations
MAX_WARMUP_SHARE = 0.1  # of the iterations of a short run
WARMUP_START = 0.001  # factor of the first learning rate


class DetectionSettings(Settings):
    """Hyper-parameters of one fine-tuning; its directory is bound to all of them."""

    iterations: int = Field(90_000, ge=0)
    batch: int = Field(REFERENCE_BATCH, gt=0)
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
    def peak_lr(self) -> float:
        """Return the learning rate after warm-up: `lr`, or 0.02 scaled with the batch."""
        if self.lr is not None:
            return self.lr
        return REFERENCE_LR * self.batch / REFERENCE_BATCH

    def lr_at(self, iteration: int) -> float:
        """Return the learning rate: a linear warm-up, then the peak, a tenth, a hundredth of it."""
        warmup = min(WARMUP, int(MAX_WARMUP_SHARE * self.iterations))
        factor = 1.0
        if iteration < warmup:
            factor = WARMUP_START + (1 - WARMUP_START) * iteration / warmup
        drops = sum(iteration >= round(share * self.iterations) for share in LR_DROPS)
        return float(self.peak_lr * factor * 0.1**drops)
