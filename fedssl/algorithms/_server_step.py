"""Steps of a server that treats the mean of the uploads as a gradient (FedAvgM, FedAdam).

The gradient, up to its sign, is Δ = mean of the clients' parameters − w. Running statistics, and a
target that is averaged in addition to the model, take the mean.
"""

from __future__ import annotations

from torch import Tensor

from fedssl.core.state.layout import PARAMETERS
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, model

MODEL_KEYS = ("model", "target")


def site_models(site: Tree) -> dict[str, State]:
    """Return the models of a site, without the state of its optimizer."""
    return {key: model(site, key) for key in MODEL_KEYS if key in site}


def parameters(state: State) -> Tensor:
    """Return a model's parameters (n,): a view, not a copy.

    A layout stores parameters first, so they are contiguous.
    """
    (row,) = state.float_slices(PARAMETERS)
    return row


def difference(averaged: Tree, site: Tree) -> Tensor:
    """Return Δ (n,), the averaged parameters minus those of the site."""
    return parameters(model(averaged, "model")) - parameters(model(site, "model"))


def apply_step(step: Tensor, averaged: Tree, delta: Tensor) -> Tree:
    """Return the averaged models with the parameters w + `step` (n,) in place of w + Δ."""
    moved = model(averaged, "model").clone()  # the mean may be an alias of a client's upload
    row = parameters(moved)
    row += step - delta  # via the mean: the result is exactly the mean if the step is Δ
    return {**averaged, "model": moved}
