"""The groups and examples of the commands, as `fedssl --help` shows them."""

from __future__ import annotations

# Groups of commands, in the order of `fedssl --help`.
START = "Start"
CHECK = "Check an experiment before training"
RUNS = "Look at runs"
PAPERS = "Papers and studies"
EXTEND = "Use the result, and train across machines"

PROGRAM_EXAMPLES = (
    ("fedssl run demo", "train five simulated clients, minutes on a CPU"),
    ("fedssl new photos", "write an experiment for a folder of your images"),
    ("fedssl run photos.toml", "train and measure it"),
)
# Command lines with a short explanation, by command.
EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "new": (
        ("fedssl new photos", "write photos.toml, with comments"),
        ("fedssl new photos --layout classes", "folders are classes, not clients"),
        ("fedssl new scans --views xray -o mine.toml", "views for X-rays"),
    ),
    "recipes": (
        ("fedssl recipes", "an overview"),
        ('fedssl recipes "FedEMA, Table 3"', "the recipes of a table"),
        ("fedssl recipes demo", "all settings of a recipe"),
    ),
    "run": (
        ("fedssl run demo", "write to runs/demo"),
        ("fedssl run photos.toml --set rounds=10", "write to runs/photos-rounds10"),
        ("fedssl run photos.toml --estimate", "print the time it takes"),
        ("fedssl run photos.toml --set data.test=test", "with labelled test images"),
        ("fedssl run demo --seeds 3", "mean of three seeds"),
        ("fedssl run demo --track tensorboard", "curves for TensorBoard"),
    ),
    "doctor": (
        ("fedssl doctor", "after installing, and before you report a problem"),
        ("fedssl doctor runs/demo", "can others on this machine read a run?"),
    ),
    "partition": (
        ("fedssl partition photos.toml", "print the images of each client"),
        ("fedssl partition demo --picture parts.png", "draw them"),
    ),
    "views": (
        ("fedssl views photos.toml", "draw views.png"),
        ("fedssl views photos.toml --views microscopy", "with another preset"),
    ),
    "combinations": (("fedssl combinations", "which methods work with which algorithms"),),
    "runs": (
        ("fedssl runs", "list the runs in runs/"),
        ("fedssl runs runs/reproduce", "list those of another folder"),
    ),
    "compare": (("fedssl compare runs/demo runs/demo-byol", "the gain of the second"),),
    "evaluate": (
        ("fedssl evaluate runs/demo --probe knn", "nearest neighbours"),
        ("fedssl evaluate runs/demo --set labels=100", "from 100 labelled images"),
        ("fedssl evaluate runs/demo --on cifar10", "on other images"),
    ),
    "analyse": (
        ("fedssl analyse divergence runs/demo", "how far clients move apart"),
        ("fedssl analyse map runs/demo", "a map of the test images"),
    ),
    "audit": (
        ("fedssl audit runs/demo", "all attacks, next to guessing"),
        ("fedssl audit runs/demo --attacks membership", "one of them"),
    ),
    "purge": (
        ("fedssl purge runs/demo --dry-run", "list what clients have left there"),
        ("fedssl purge ~/.cache/fedssl", "decoded images"),
        ("fedssl purge ~/.local/state/fedssl/nodes", "the memory of a Flower node"),
    ),
    "reproduce": (
        ("fedssl reproduce --list", "all published tables"),
        ("fedssl reproduce fedema-3 --scale mini", "a small version for a CPU"),
    ),
    "sweep": (("fedssl sweep demo --set train.lr=0.001,0.01", "two learning rates"),),
}


def as_epilog(examples: tuple[tuple[str, str], ...]) -> str:
    """Return examples for the end of a help page; Typer joins lines without an empty one."""
    lines = ["Examples:"]
    width = max(map(len, dict(examples)))
    for command, about in examples:
        lines.append(f"{command:{width}}  # {about}")
    return "\n\n".join(lines)
