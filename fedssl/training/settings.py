"""The settings of local training."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from pydantic import Field, PositiveInt

from fedssl.core.settings import Settings


class TrainSettings(Settings):
    """How a client trains in one round. Defaults are FedEMA's, with one local epoch."""

    earlier_names: ClassVar = {"client_memory": "memory"}
    added_later: ClassVar = ("schedule_rounds", "step_factor")

    epochs: PositiveInt = 1
    batch: int = Field(128, ge=2)
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = Field(0.032, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(5e-4, ge=0)
    decay_norms: bool = True  # off: biases and normalisation layers are not decayed
    # over rounds, constant inside a round
    schedule: Literal["cosine", "constant", "step"] = "cosine"
    # rounds that the schedule is made for; 0: those of the run. With more of them, only the first
    # part of the schedule is used
    schedule_rounds: int = Field(0, ge=0)
    step_factor: float = Field(0.3, gt=0, le=1)  # of `step`: multiplies the rate at each step
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # auto: bf16 on CUDA, fp32 on a CPU
    # auto: captured on CUDA, eager on a CPU
    mode: Literal["auto", "eager", "compiled", "captured"] = "auto"
    # CPU threads per client: one and two threads give different bits
    threads: int = Field(1, gt=0, le=256)
    deterministic: bool = False  # on CUDA: equal bits from run to run
    # clients trained side by side; 0: as many as the machine has room for
    workers: int = Field(0, ge=0, le=1024)
    # where client memory is stored; auto: the first with room
    client_memory: Literal["auto", "device", "host", "disk"] = "auto"
    checkpoint_every: float = Field(60.0, ge=0)  # seconds between checkpoints; 0: every round

    def lr_at(self, round: int, rounds: int) -> float:
        """Return the learning rate of a round (counted from 0) out of `rounds`."""
        total = self.schedule_rounds or rounds
        if self.schedule == "cosine":
            return 0.5 * self.lr * (1 + math.cos(math.pi * min(round, total) / total))
        if self.schedule == "step":
            steps = sum(round >= share * total for share in (0.3, 0.6, 0.9))
            return float(self.lr * self.step_factor**steps)
        return self.lr
