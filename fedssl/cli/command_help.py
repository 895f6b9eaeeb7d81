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
    "combinations": (("fedssl combinations", "the compatibility matrix"),),
    "watch": (
        ("fedssl watch runs/demo", "print the URL of a live page"),
        ("fedssl watch runs/demo --port 8800", "a URL that stays the same"),
    ),
    "runs": (
        ("fedssl runs", "list the runs in runs/"),
        ("fedssl runs runs/reproduce", "list those of another folder"),
    ),
    "compare": (("fedssl compare runs/demo runs/demo-byol", "the gain of the second"),),
    "report": (
        ("fedssl report runs/demo", "write runs/demo/report.html"),
        ("fedssl report runs/demo --no-images", "without pictures"),
        ("fedssl report runs/demo runs/demo-byol", "compare them in report.html"),
    ),
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
        ("fedssl audit runs/demo", "all attacks"),
        ("fedssl audit runs/demo --attacks membership", "one of them"),
    ),
    "purge": (
        ("fedssl purge runs/demo --dry-run", "list the files of clients in a run"),
        ("fedssl purge ~/.cache/fedssl", "decoded images"),
        ("fedssl purge ~/.local/state/fedssl/nodes", "the memory of a Flower node"),
    ),
    "reproduce": (
        ("fedssl reproduce --list", "all published tables"),
        ("fedssl reproduce fedema-3 --scale mini", "a small version for a CPU"),
    ),
    "export": (
        ("fedssl export runs/demo --to onnx", "write demo.onnx"),
        ("fedssl export runs/demo --to hub -o my-model", "with a model card"),
    ),
    "embed": (
        ("fedssl embed runs/demo photos -o features.npz", "arrays for numpy"),
        ("fedssl embed runs/demo photos -o features.csv", "a line for each file"),
    ),
    "search": (
        ("fedssl search runs/demo query.jpg photos", "the 12 nearest images"),
        ("fedssl search runs/demo query.jpg photos -o near.png", "as a picture"),
        ("fedssl search runs/demo query.jpg features.npz", "see fedssl embed"),
    ),
    "classify": (
        ("fedssl classify runs/demo labelled", "cross-validate"),
        ("fedssl classify runs/demo labelled photos -o labels.csv", "predict"),
        ("fedssl classify runs/demo labelled --save model.safetensors", "save"),
        ("fedssl classify model.safetensors photos", "predict later"),
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
