"""How the papers train what they measure with: numbers, by paper.

`fedema`: Zhuang et al., ICLR 2022, Appendix B.3. `fedu`: Zhuang et al., ICCV 2021, and Zhang et al. (FedCA), 2020, who
train for 100 epochs. FedCA has Adam, and for fine-tuning a head with a hidden layer and the rate 1e-3; FedU states none
of these, and neither a batch size nor the linear probe's rate. What is open is FedEMA's. `ccl`: Wu et al., IJCAI 2022,
who take over the settings of others: MoCo's for the linear probe (He et al., CVPR 2020), SwAV's for fine-tuning (Caron
et al., NeurIPS 2020).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, Self

Name = Literal["fedema", "fedu", "ccl"]


class Protocol(NamedTuple):
    """A training: Adam, or SGD with momentum 0.9. `head_lr`: of the new layers; None: that of all."""

    optimizer: Literal["adam", "sgd"]
    lr: float
    epochs: int
    batch: int
    drops: tuple[float, ...] = ()  # shares of the epochs after which the learning rates drop
    factor: float = 1.0  # to this part of what they were
    head: Literal["linear", "mlp"] = "linear"
    head_lr: float | None = None

    def changed(self, epochs: int | None, lr: float | None, batch: int | None) -> Self:
        """With what a user sets in place of the paper's; None leaves the paper's. One rate given is that of all."""
        return self._replace(
            epochs=self.epochs if epochs is None else epochs,
            batch=self.batch if batch is None else batch,
            lr=self.lr if lr is None else lr,
            head_lr=self.head_lr if lr is None else None,
        )

    def drop(self, epoch: int) -> float:
        """What the learning rates of an epoch, counted from 0, are multiplied by."""
        return float(self.factor ** sum(epoch >= share * self.epochs for share in self.drops))


LINEAR: Mapping[Name, Protocol] = {
    "fedema": Protocol("adam", 3e-3, 200, 512),
    "fedu": Protocol("adam", 3e-3, 100, 512),
    "ccl": Protocol("sgd", 30.0, 100, 256, (0.6, 0.8), 0.1),
}

_TWO_LAYERS = Protocol("adam", 1e-3, 100, 128, head="mlp")
_SWAV = Protocol("sgd", 0.01, 20, 256, (0.6, 0.8), 0.2, head_lr=0.2)
FINE_TUNING: Mapping[Name, tuple[Protocol, Protocol]] = {  # with 1% and with 10% of the labels
    "fedema": (_TWO_LAYERS, _TWO_LAYERS),
    "fedu": (_TWO_LAYERS, _TWO_LAYERS),
    "ccl": (_SWAV._replace(lr=0.02, head_lr=5.0), _SWAV),
}
FEW = 0.03  # a share of the labels below this is more like 1% than like 10%


def fine_tuning(name: Name, share: float) -> Protocol:
    """How a paper fine-tunes with a share of the labels."""
    few, more = FINE_TUNING[name]
    return few if share < FEW else more
