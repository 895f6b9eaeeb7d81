"""How the papers, and their authors' code, train their probes: numbers, by name.

`fedema`: Zhuang et al., ICLR 2022, Appendix B.3. `fedu`: Zhuang et al., ICCV 2021, and Zhang et al.
(FedCA), 2020, who train for 100 epochs. FedCA has Adam, and for fine-tuning a head with a hidden
layer and the rate 1e-3; FedU states none of these, and neither a batch size nor the linear probe's
rate. Numbers that a paper does not state are FedEMA's. `fedca`: the same, but if clients fine-tune
together, E = 5 local epochs a round, as FedCA trains. `ccl`: Wu et al., IJCAI 2022, who adopt the
settings of others: MoCo's for the linear probe (He et al., CVPR 2020), SwAV's for fine-tuning
(Caron et al., NeurIPS 2020).

`TOGETHER`, for clients that fine-tune together. `ccl` (its Table 3): the whole model is trained by
FedAvg; head, optimizer, rates and rounds are in an appendix that is not available. Those of its
other fine-tuning (20 epochs, the classifier at another rate) would be 20 steps of a client with 100
labelled images. So the head is that of its other fine-tuning, and the rest is ours: optimizer,
rate, batch and length of `fedu`, one local epoch a round, random crops and flips. `fedca` (its
Table 2): a head with a hidden layer and ReLU, Adam at 1e-3 for 100 epochs. Batches of 128 clean
images, as in `semi`, are ours.

`easyfl`: the evaluation scripts of EasyFL, the public code of FedU's and FedEMA's authors. Linear:
512 is the batch size of its feature extraction only; the classifier trains on batches of 2048 in
the order of the images. Fine-tuning: the optimizer holds the head only, and the backbone runs in
training mode, so that features use batch statistics and running statistics are updated.

`easyfl-literal`: the same scripts, followed to the letter. They select training mode once, before
the first epoch, and the test after every epoch selects evaluation mode; so only the first epoch is
in training mode. `easyfl` is in training mode in all epochs.

Departures of both `easyfl` protocols: the scripts draw the first images of the data set as
labelled, here they are balanced over classes; the scripts average the accuracies of test batches,
whose last one is smaller, and print the best test epoch, here all test images count equally, after
the last epoch.

`dec-ssl`: the public code of Wang et al., ICLR 2023, whose text has only "until convergence".
Linear: the classifier learns from augmented images, with the views of pre-training. The first epoch
is in training mode, which estimates BatchNorm statistics anew on the labelled images of all
clients; the test after it selects evaluation mode for the rest. Departures: the code reports the
best test epoch, here the last one counts. For ImageNet its classifier has crops and flips only, and
for MAE AdamW at 3e-4 with weight decay 0.05. The paper fine-tunes nothing with few labels: `semi`
has FedEMA's numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, Self

Name = Literal["fedema", "fedu", "fedca", "ccl", "easyfl", "easyfl-literal", "dec-ssl"]


class Protocol(NamedTuple):
    """How a probe is trained: by Adam, or by SGD with momentum 0.9."""

    optimizer: Literal["adam", "sgd"]
    lr: float
    epochs: int
    batch: int
    drops: tuple[float, ...] = ()  # shares of the epochs after which the learning rates drop
    factor: float = 1.0  # by which they are multiplied at each drop
    # "mlp" has a hidden layer as wide as the features; "wide-mlp" 4096 with BatchNorm
    head: Literal["linear", "mlp", "wide-mlp"] = "linear"
    head_lr: float | None = None  # learning rate of the new layers; None: `lr`
    shuffled: bool = True  # draw a new order of the images for each epoch
    head_only: bool = False  # the weights of the backbone do not change
    training_mode: int | None = None  # first epochs that are in training mode; None: all
    augmented: bool = False  # learn from views of the images, not from features of clean ones
    weight_decay: float = 0.0  # of all weights that are trained, biases too
    local_epochs: int = 1  # of a round, if clients fine-tune together
    random_crops: bool = False  # and flips, if clients fine-tune together

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

    @property
    def head_normalises(self) -> bool:
        """True if the head has BatchNorm, which needs batches of two images or more."""
        return self.head == "wide-mlp"

    def in_training_mode(self, epoch: int) -> bool:
        """Return whether BatchNorm uses and updates batch statistics in an epoch, from 0."""
        return self.training_mode is None or epoch < self.training_mode

    def drop(self, epoch: int) -> float:
        """Return the factor of the learning rates in an epoch, counted from 0."""
        return float(self.factor ** sum(epoch >= share * self.epochs for share in self.drops))


_UNSHUFFLED = Protocol("adam", lr=3e-3, epochs=200, batch=2048, shuffled=False)
_HUNDRED = Protocol("adam", lr=3e-3, epochs=100, batch=512)
LINEAR: Mapping[Name, Protocol] = {
    "fedema": Protocol("adam", lr=3e-3, epochs=200, batch=512),
    "fedu": _HUNDRED,
    "fedca": _HUNDRED,
    "ccl": Protocol("sgd", lr=30.0, epochs=100, batch=256, drops=(0.6, 0.8), factor=0.1),
    "easyfl": _UNSHUFFLED,
    "easyfl-literal": _UNSHUFFLED,
    "dec-ssl": Protocol(
        "adam",
        lr=1e-3,
        epochs=50,
        batch=256,
        head_only=True,
        training_mode=1,
        augmented=True,
        weight_decay=1e-6,
    ),
}

_TWO_LAYERS = Protocol("adam", lr=1e-3, epochs=100, batch=128, head="mlp")
_SWAV = Protocol("sgd", lr=0.01, epochs=20, batch=256, drops=(0.6, 0.8), factor=0.2, head_lr=0.2)
_EASYFL = _TWO_LAYERS._replace(head="wide-mlp", head_only=True)
_LITERAL = _EASYFL._replace(training_mode=1)
FINE_TUNING: Mapping[Name, tuple[Protocol, Protocol]] = {  # with 1% and with 10% of the labels
    "fedema": (_TWO_LAYERS, _TWO_LAYERS),
    "fedu": (_TWO_LAYERS, _TWO_LAYERS),
    "fedca": (_TWO_LAYERS, _TWO_LAYERS),
    "ccl": (_SWAV._replace(lr=0.02, head_lr=5.0), _SWAV),
    "easyfl": (_EASYFL, _EASYFL),
    "easyfl-literal": (_LITERAL, _LITERAL),
    "dec-ssl": (_TWO_LAYERS, _TWO_LAYERS),
}
TOGETHER: Mapping[Name, Protocol] = {  # the first is the default
    "ccl": _TWO_LAYERS._replace(head="linear", random_crops=True),
    "fedca": _TWO_LAYERS._replace(local_epochs=5),
}
FEW = 0.03  # below this share of the labels the protocol for 1% applies


def fine_tuning(name: Name, share: float) -> Protocol:
    """Return the protocol of a name for fine-tuning with a share of the labels."""
    with_one_percent, with_ten_percent = FINE_TUNING[name]
    if share < FEW:
        return with_one_percent
    return with_ten_percent
