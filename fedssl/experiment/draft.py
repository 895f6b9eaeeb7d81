"""Write an experiment for a folder of images: complete, commented, and ready to run."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedssl.data.inspect_folder import FolderSummary
from fedssl.views.presets import PRESETS

# Words in the names of folders that suggest a view preset.
PRESET_WORDS = {
    "microscopy": ("cell", "micro", "histo", "blood", "pathology", "stain", "tissue"),
    "xray": ("xray", "x-ray", "x_ray", "chest", "cxr", "radio", "mammo"),
    "texture": ("texture", "surface", "steel", "fabric", "weld", "defect", "material"),
}
CPU_SIZES = (28, 32, 48, 64)
GPU_SIZES = (*CPU_SIZES, 96, 128, 160, 224)
CPU_STEPS = 4_000  # of all clients together: some minutes of the small network
MIN_ROUNDS = 10
MAX_ROUNDS = 40
MAX_HOLDOUT = 1_000
CLIENTS = 5  # for folders that do not say who owns an image


class Choices(NamedTuple):
    """What a user may decide instead of the heuristics; None: detect it."""

    views: str | None = None
    gpu: bool = False
    pictures: bool = True  # matplotlib is installed


def guess_preset(folder: Path, summary: FolderSummary) -> tuple[str, str]:
    """Return a view preset for a folder, and the reason for it."""
    name = folder.resolve().name.lower()
    for preset, words in PRESET_WORDS.items():
        for word in words:
            if word in name:
                return preset, f'"{word}" is in the name of the folder'
    if summary.grey:
        return "xray", "the images are grey"
    return "photo", "nothing suggests another kind of images"


def choose_size(side: int, gpu: bool) -> int:
    """Return the side in pixels to train at: at most that of the images, and fast enough."""
    fitting = [size for size in (GPU_SIZES if gpu else CPU_SIZES) if size <= side]
    return max(fitting, default=min(CPU_SIZES[0], side))


def choose_rounds(images: int, batch: int) -> int:
    """Return the rounds that train for a bounded number of steps on a CPU."""
    steps = max(1, images // batch)
    return max(MIN_ROUNDS, min(MAX_ROUNDS, CPU_STEPS // steps))


def draft(folder: Path, summary: FolderSummary, choices: Choices) -> str:
    """Return an experiment for a folder, as TOML with comments."""
    gpu = choices.gpu
    preset, why = guess_preset(folder, summary)
    if choices.views is not None:
        preset, why = choices.views, "as asked for"
    sections = [
        _head(folder, summary, gpu),
        _data(folder, summary, gpu),
        _partition(summary),
        _method(preset, why, gpu),
        ALGORITHM,
        GPU_TRAINING if gpu else _cpu_training(summary),
        _probe(summary, choices.pictures),
    ]
    return "\n".join(sections)


def _head(folder: Path, summary: FolderSummary, gpu: bool) -> str:
    owners = f"{len(summary.groups)} clients" if summary.by_client else f"{CLIENTS} clients"
    machine = "a GPU" if gpu else "a CPU"
    rounds = 100 if gpu else choose_rounds(summary.images, _batch(summary))
    lines = [
        f"# {summary.images:,} images in {folder}, {owners}; sized for {machine}.",
        "# Check it, then train:  fedssl partition FILE,  fedssl views FILE,  fedssl run FILE",
        "seed = 0",
        f"rounds = {rounds}  # every client trains and all models are averaged, this many times",
    ]
    if not summary.by_client:
        lines.append(
            f"clients = {CLIENTS}  # the images are split over this many simulated clients"
        )
    return "\n".join(lines) + "\n"


def _data(folder: Path, summary: FolderSummary, gpu: bool) -> str:
    size = choose_size(summary.side, gpu)
    lines = [
        "[data]",
        'name = "folder"',
        f"path = {_quoted(folder)}",
        f'layout = "{summary.layout}"  # {summary.reason}; {OTHER_LAYOUTS[summary.layout]}',
        f"size = {size}  # pixels; half of the images have a side of at least {summary.side}",
    ]
    if summary.grey:
        lines.append("channels = 1  # the images are grey")
    if summary.test is not None:
        lines.append(f"# Test images: {summary.test}, one folder per class.")
    elif summary.layout.endswith("classes"):
        holdout = min(MAX_HOLDOUT, summary.images // 5)
        lines.append(f"holdout = {holdout}  # labelled images kept out of training, to measure on")
    else:
        lines.append('# test = "FOLDER"  # labelled images to measure on, one folder per class')
    return "\n".join(lines) + "\n"


OTHER_LAYOUTS = {
    "clients": 'if they are kinds of things, "classes"',
    "classes": 'if they are owners, "clients"',
    "clients-classes": 'if only the outer ones matter, "clients"',
    "flat": "owners can be given as folders",
}


def _partition(summary: FolderSummary) -> str:
    if summary.by_client:
        return '[partition]\nname = "natural"  # each client has the images of its folder\n'
    if summary.layout == "classes":
        lines = [
            "[partition]",
            'name = "dirichlet"  # clients have different mixtures of classes; "iid": the same',
            "alpha = 0.5",
        ]
        return "\n".join(lines) + "\n"
    return '[partition]\nname = "iid"  # the images are shuffled and divided equally\n'


def _method(preset: str, why: str, gpu: bool) -> str:
    others = ", ".join(name for name in PRESETS if name != preset)
    views = f'augment = "{preset}"  # views: {why}; others: {others}'
    if gpu:
        lines = ["[method]", 'name = "byol"', 'backbone = "resnet18"', views]
    else:
        network = ['backbone = "cnn"  # small; resnet18 needs a GPU', "hidden = 256", "dim = 128"]
        lines = ["[method]", 'name = "simclr"', *network, "temperature = 0.5", views]
    return "\n".join(lines) + "\n"


ALGORITHM = """\
[algorithm]
name = "fedavg"  # the weighted mean of the clients' models; fedssl combinations lists others
"""

GPU_TRAINING = """\
[train]
epochs = 5  # over each client's images, in every round
batch = 128
"""


def _batch(summary: FolderSummary) -> int:
    """Return a batch that the median client can fill twice, as a power of two from 16 to 64."""
    sizes = sorted(summary.groups.values()) if summary.by_client else [summary.images // CLIENTS]
    median = sizes[len(sizes) // 2]
    fitting = 1 << (max(2, median // 2).bit_length() - 1)
    return max(16, min(64, fitting))


def _cpu_training(summary: FolderSummary) -> str:
    lines = [
        "[train]",
        "epochs = 1  # over each client's images, in every round",
        f"batch = {_batch(summary)}",
        'optimizer = "adam"',
        "lr = 0.002",
        "weight_decay = 0.0",
    ]
    return "\n".join(lines) + "\n"


def _probe(summary: FolderSummary, pictures: bool) -> str:
    lines = ["[probe]", "every = 5  # rounds between measurements, if there are labels"]
    if pictures:
        lines.append("picture = true  # picture.png: accuracy by round, test images as a map")
    return "\n".join(lines) + "\n"


def _quoted(path: Path) -> str:
    """Return a path as a TOML string."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
