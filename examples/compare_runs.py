"""Compare two partitions over several seeds; docs/notebooks/compare_runs.ipynb."""

# %% [markdown]
# # Compare settings over several seeds
#
# Does it matter how different the clients are? We train the same experiment twice: once every
# client has all kinds of clothing (`iid`), once only two kinds each (`classes`). Each is trained
# with three seeds, because single runs differ by chance.
#
# The notebook takes less than a minute on two CPU cores.

# %%
import statistics

import matplotlib.pyplot as plt

import fedssl

# 1,000 training images and six rounds of the demo, measured by kNN in every second round.
SHORT = {
    "rounds": 6,
    "data.holdout": 4000,
    "probe.every": 2,
    "probe.linear": False,
    "probe.baselines": [],
    "probe.picture": False,
}
PARTITIONS = {"iid": {"partition": "iid"}, "classes": {}}
SEEDS = (0, 1, 2)

# %% [markdown]
# ## Train
#
# A run is a directory. If you execute this cell again, finished runs are read, not trained.

# %%
runs: dict[str, list[fedssl.Run]] = {}
for partition, changes in PARTITIONS.items():
    runs[partition] = []
    for seed in SEEDS:
        settings = SHORT | changes | {"seed": seed}
        directory = f"runs/{partition}-seed{seed}"
        runs[partition].append(fedssl.run("demo", directory, quiet=True, set=settings))

# %% [markdown]
# ## Compare the final accuracies
#
# Runs with the same seed share the initial weights, so we compare them in pairs. With three pairs,
# a difference is believable if it is large compared with its spread.

# %%
final = {}
for partition, group in runs.items():
    final[partition] = [run.results["table"]["this run"]["knn"]["mean"] for run in group]
    mean = statistics.mean(final[partition])
    spread = statistics.stdev(final[partition])
    print(f"{partition:8} kNN {mean:.1f} ± {spread:.1f}%, seeds {final[partition]}")

differences = [a - b for a, b in zip(final["iid"], final["classes"], strict=True)]
difference = statistics.mean(differences)
spread = statistics.stdev(differences)
print(f"iid − classes: {difference:+.1f} ± {spread:.1f} points")

# %% [markdown]
# ## Compare them over rounds
#
# The line is the mean over seeds, the band reaches from the lowest to the highest seed.

# %%
COLOURS = {"iid": "#0072b2", "classes": "#d55e00"}


def draw(groups: dict[str, list[fedssl.Run]]) -> plt.Figure:
    """Draw kNN accuracy by round, one line and band per group."""
    figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
    for name, group in groups.items():
        measured = []  # one list of (round, accuracy) per seed
        for run in group:
            measured.append([(line["round"], line["knn"]) for line in run.rounds if line["knn"]])
        rounds = [number for number, _ in measured[0]]
        by_round = []
        for points in zip(*measured, strict=True):
            by_round.append([accuracy for _, accuracy in points])
        means = [statistics.mean(values) for values in by_round]
        axes.plot(rounds, means, color=COLOURS[name], marker="o", label=name)
        lowest = [min(values) for values in by_round]
        highest = [max(values) for values in by_round]
        axes.fill_between(rounds, lowest, highest, color=COLOURS[name], alpha=0.2, linewidth=0)
    axes.set(xlabel="round", ylabel="kNN accuracy in %")
    axes.legend(title="partition", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


draw(runs)
