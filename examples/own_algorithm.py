"""Write an algorithm, server momentum, and test it; docs/notebooks/own_algorithm.ipynb."""

# %% [markdown]
# # Write your own algorithm
#
# FedAvg replaces the global model by the mean of the clients' models. We change the server: it
# keeps a velocity, as SGD with momentum does,
#
# $$v \leftarrow \beta v + (\text{mean} - w), \qquad w \leftarrow w + v.$$
#
# We test the rule by hand on two clients, test that β = 0 is FedAvg, and train with it. The
# notebook takes less than a minute on two CPU cores.

# %%
from collections.abc import Callable, Iterable

import matplotlib.pyplot as plt
import torch
from pydantic import Field

import fedssl
from fedssl.algorithm import ALGORITHMS, Averaging, Upload
from fedssl.algorithms import FedAvg
from fedssl.core.state.layout import PARAMETERS, Entry, Layout
from fedssl.core.state.mean import Mean
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, model, tensor
from fedssl.training.client import Client

# %% [markdown]
# ## The algorithm
#
# An algorithm is a class with hyper-parameters and functions that store nothing. The server's state
# is a dictionary, the *site*. Three functions differ from FedAvg:
#
# - `init` adds a velocity of zeros to the site.
# - `broadcast` sends the model to a client, but not the velocity.
# - `merge` computes the next site from the uploads.
#
# A `State` holds all tensors of a model in flat rows; `float_slices(PARAMETERS)` returns those with
# the parameters, so the rule is one line for the whole model. Running statistics of BatchNorm take
# the mean.


# %%
def parameters(state: State) -> torch.Tensor:
    """Return the parameters of a model (n,), without running statistics."""
    (row,) = state.float_slices(PARAMETERS)
    return row


@ALGORITHMS.register("server-momentum")
class ServerMomentum(FedAvg):
    """FedAvg whose server applies the mean change with momentum."""

    beta: float = Field(0.5, ge=0, lt=1)

    def init(self, client: Client) -> Tree:
        site = super().init(client)
        return {**site, "velocity": torch.zeros_like(parameters(model(site, "model")))}

    def broadcast(self, site: Tree, client_id: str) -> Tree:
        return {"model": model(site, "model")}

    def merge(self, site: Tree, uploads: Iterable[Upload], mean: Callable[[], Averaging]) -> Tree:
        merged = super().merge({"model": model(site, "model")}, uploads, mean)
        moved = model(merged, "model").clone()  # a site is never modified in place
        delta = parameters(moved) - parameters(model(site, "model"))
        velocity = self.beta * tensor(site, "velocity") + delta
        parameters(moved).add_(velocity - delta)  # mean + (v − Δ) = w + v
        return {"model": moved, "velocity": velocity}


# %% [markdown]
# ## Test it by hand
#
# A model with one weight, w = 10. Client A has one image and uploads 14, client B has three images
# and uploads 18, so the mean is (14 + 3 · 18) / 4 = 17 and Δ = 7. With β = ½ and an earlier
# velocity of 4, v = ½ · 4 + 7 = 9, and the next weight is 10 + 9 = 19.


# %%
def one_weight(value: float) -> State:
    """Return a model with a single parameter."""
    layout = Layout.of([Entry("w", (1,), "weight")])
    state = State.empty(layout)
    state.floats.fill_(value)
    return state


site = {"model": one_weight(10.0), "velocity": torch.tensor([4.0])}
uploads = [
    Upload("A", 1, {"model": one_weight(14.0)}),
    Upload("B", 3, {"model": one_weight(18.0)}),
]
after = ServerMomentum(beta=0.5).merge(site, uploads, Mean)
print("weight", model(after, "model").floats.item(), " velocity", tensor(after, "velocity").item())
assert model(after, "model").floats.item() == 19
assert tensor(after, "velocity").item() == 9
assert model(site, "model").floats.item() == 10  # the old site is unchanged

# %% [markdown]
# ## Test it against FedAvg
#
# With β = 0 the rule is w ← mean, which is FedAvg. The trained weights must be equal, bit for bit.
# We train on 1,000 of the demo's images for a few rounds.

# %%
SHORT = {
    "data.holdout": 4000,
    "probe.every": 1,
    "probe.linear": False,
    "probe.baselines": [],
    "probe.picture": False,
}


def train(directory: str, rounds: int, **algorithm: object) -> fedssl.Run:
    """Train the demo with an algorithm."""
    settings = {f"algorithm.{key}": value for key, value in algorithm.items()}
    changes = SHORT | settings | {"rounds": rounds}
    return fedssl.run("demo", f"runs/{directory}", quiet=True, set=changes)


plain = train("plain", 2, name="fedavg")
without = train("without", 2, name="server-momentum", beta=0.0)
equal = torch.equal(plain.models()["global"].floats, without.models()["global"].floats)
print("beta = 0 equals FedAvg, bit for bit:", equal)
assert equal

# %% [markdown]
# ## Train with it

# %%
ROUNDS = 8
curves = {}
for beta in (0.0, 0.5, 0.9):
    run = train(f"beta{beta}", ROUNDS, name="server-momentum", beta=beta)
    curves[beta] = [line["knn"] for line in run.rounds]
    print(f"beta {beta}: kNN {curves[beta][-1]:.1f}% after {ROUNDS} rounds")


# %%
def draw() -> plt.Figure:
    """Draw kNN accuracy by round for each β."""
    figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
    for (beta, curve), style in zip(curves.items(), ("o-", "s--", "^:"), strict=True):
        axes.plot(range(1, ROUNDS + 1), curve, style, label=f"β = {beta}")
    axes.set(xlabel="round", ylabel="kNN accuracy in %")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


draw()

# %% [markdown]
# These are single runs on few images: they show that the algorithm trains, not which β is best. To
# compare settings, [use several seeds](compare_runs.ipynb). The page *Add an algorithm* describes
# the whole contract of an algorithm.
