"""How the papers train their probes: numbers, by paper.

`fedema`: Zhuang et al., ICLR 2022, Appendix B.3. `fedu`: Zhuang et al., ICCV 2021, and Zhang et al.
(FedCA), 2020, who train for 100 epochs. FedCA has Adam, and for fine-tuning a head with a hidden
layer and the rate 1e-3; FedU states none of these, and neither a batch size nor the linear probe's
rate. Numbers that a paper does not state are FedEMA's. `ccl`: Wu et al., IJCAI 2022, who adopt the
settings of others: MoCo's for the linear probe (He et al., CVPR 2020), SwAV's for fine-tuning
(Caron et al., NeurIPS 2020).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, Self

Name = Literal["fedema", "fedu", "ccl"]


class Protocol(NamedTuple):
    """How a probe is trained: by Adam, or by SGD with momentum 0.9."""

    optimizer: Literal["adam", "sgd"]
    lr: float
    epochs: int
    batch: int
    drops: tuple[float, ...] = ()  # shares of the epochs after which the learning rates drop
    factor: float = 1.0  # by which they are multiplied at each drop
    head: Literal["linear", "mlp"] = "linear"
    head_lr: float | None = None  # learning rate of the new layers; None: `lr`

    def changed(self, epochs: int | None, lr: float | None, batch: int | None) -> Self:
        """Return the protocol with the user's values; None keeps the paper's.

        A learning rate that is given applies to all layers.
        """
        protocol = self
        if epochs is not None:
            protocol = protocol._replace(epochs=epochs)
        if batch is not None:
            protocol = protocol._replace(batch=batch)
        if lr is not None:
            protocol = protocol._replace(lr=lr, head_lr=None)
        return protocol

    def drop(self, epoch: int) -> float:
        """Return the factor of the learning rates in an epoch, counted from 0."""
        return float(self.factor ** sum(epoch >= share * self.epochs for share in self.drops))


LINEAR: Mapping[Name, Protocol] = {
    "fedema": Protocol("adam", lr=3e-3, epochs=200, batch=512),
    "fedu": Protocol("adam", lr=3e-3, epochs=100, batch=512),
    "ccl": Protocol("sgd", lr=30.0, epochs=100, batch=256, drops=(0.6, 0.8), factor=0.1),
}

_TWO_LAYERS = Protocol("adam", lr=1e-3, epochs=100, batch=128, head="mlp")
_SWAV = Protocol("sgd", lr=0.01, epochs=20, batch=256, drops=(0.6, 0.8), factor=0.2, head_lr=0.2)
FINE_TUNING: Mapping[Name, tuple[Protocol, Protocol]] = {  # with 1% and with 10% of the labels
    "fedema": (_TWO_LAYERS, _TWO_LAYERS),
    "fedu": (_TWO_LAYERS, _TWO_LAYERS),
    "ccl": (_SWAV._replace(lr=0.02, head_lr=5.0), _SWAV),
}
FEW = 0.03  # below this share of the labels the protocol for 1% applies


def fine_tuning(name: Name, share: float) -> Protocol:
    """Return a paper's protocol for fine-tuning with a share of the labels."""
    with_one_percent, with_ten_percent = FINE_TUNING[name]
    if share < FEW:
        return with_one_percent
    return with_ten_percent
