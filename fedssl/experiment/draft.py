"""Write an experiment for a folder of images: complete, commented, and ready to run."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import NamedTuple

import tomli_w

from fedssl.data.folder import Folder
from fedssl.data.folder_listing import printable
from fedssl.data.inspect_folder import FolderSummary
from fedssl.experiment.draft_fit import fit_lines, side_text
from fedssl.views.presets import PRESETS

# Words in the names of folders that suggest a view preset.
PRESET_WORDS = {
    "microscopy": ("cell", "micro", "histo", "blood", "pathology", "stain", "tissue"),
    "xray": ("xray", "x-ray", "x_ray", "chest", "cxr", "radio", "mammo"),
    "texture": ("texture", "surface", "steel", "fabric", "weld", "defect", "material"),
}
CPU_SIZES = (28, 32, 48, 64)
GPU_SIZES = (*CPU_SIZES, 96, 128, 160, 224)
GPU_ROUNDS = 100
CPU_STEPS = 4_000  # of all clients together: some minutes of the small network
MIN_ROUNDS = 10
MAX_ROUNDS = 40
MAX_HOLDOUT = 1_000
MIN_HELD_OUT_FROM = 20  # images; fewer are not split
MAX_CLIENTS = 5  # for folders that do not define the owner of an image


class Choices(NamedTuple):
    """Decisions that do not follow from the images; `views` None: follow them."""

    views: str | None = None
    gpu: bool = False
    pictures: bool = True  # matplotlib is installed
    test: Path | None = None  # labelled images elsewhere


def guess_preset(folder: Path, summary: FolderSummary) -> tuple[str, str]:
    """Return a view preset for a folder, and the reason for it."""
    name = folder.resolve().name.lower()
    for preset, words in PRESET_WORDS.items():
        for word in words:
            if word in name:
                return preset, f'"{word}" is in the name of the folder'
    if summary.grey:
        return (
            "grey",
            "the images are grey; use xray, which mirrors nothing, for X-rays, text and digits",
        )
    if summary.mostly_transparent:
        return "photo", "if these are drawings or icons, compare with --views texture"
    return "photo", "nothing suggests another kind of images"


def choose_size(side: int, gpu: bool) -> int:
    """Return the side in pixels to train at: at most that of the images, and fast enough."""
    fitting = [size for size in (GPU_SIZES if gpu else CPU_SIZES) if size <= side]
    return max(fitting, default=min(CPU_SIZES[0], side))


def choose_rounds(images: int, batch: int) -> int:
    """Return the rounds that train for a bounded number of steps on a CPU."""
    steps = max(1, images // batch)
    return max(MIN_ROUNDS, min(MAX_ROUNDS, CPU_STEPS // steps))


def choose_preset(folder: Path, summary: FolderSummary, choices: Choices) -> tuple[str, str]:
    """Return the view preset, and the reason for it."""
    if choices.views is not None:
        return choices.views, "--views was set"
    return guess_preset(folder, summary)


def choose_holdout(summary: FolderSummary) -> int:
    """Return the number of labelled images to keep out of training; 0 if none can be."""
    labelled = summary.layout.endswith("classes")
    if summary.test is not None or not labelled or summary.images < MIN_HELD_OUT_FROM:
        return 0
    return min(MAX_HOLDOUT, summary.images // 5)


def choose_clients(summary: FolderSummary) -> int:
    """Return the number of clients: the folders, or as many as have two images each."""
    if summary.by_client:
        return len(summary.groups)
    pairs = (summary.images - choose_holdout(summary)) // 2
    return max(1, min(MAX_CLIENTS, pairs))


def trained_clients(summary: FolderSummary) -> int:
    """Return the number of clients with the two images that training needs."""
    if not summary.by_client:
        return choose_clients(summary)
    return len(summary.owned) - summary.owned.count(1)


def draft(folder: Path, summary: FolderSummary, choices: Choices) -> str:
    """Return an experiment for a folder, as TOML with comments."""
    gpu = choices.gpu
    preset, why = choose_preset(folder, summary, choices)
    sections = [
        _head(folder, summary, gpu),
        _data(folder, summary, choices),
        _partition(summary),
        _method(preset, why, gpu),
        ALGORITHM,
        GPU_TRAINING if gpu else _cpu_training(summary),
        _probe(choices.pictures),
    ]
    if trained_clients(summary) == 1:
        sections.append(ONE_CLIENT)
    return "\n".join(sections)


def _head(folder: Path, summary: FolderSummary, gpu: bool) -> str:
    clients = choose_clients(summary)
    owners = f"{clients} client" + "s" * (clients > 1)
    machine = "a CPU"
    rounds = choose_rounds(summary.images, _batch(summary))
    if gpu:
        machine = "a GPU"
        rounds = GPU_ROUNDS
    lines = [
        f"# {summary.images:,} images in {printable(str(folder))}",
        f"# {owners}; the network and the rounds are for {machine}.",
        "# fedssl partition FILE and fedssl views FILE show what is trained on.",
        "seed = 0",
        "# In each round every client trains and all models are averaged. The learning rate falls",
        "# over all rounds, so a run with more rounds differs from the second round on.",
        f"rounds = {rounds}",
    ]
    if not summary.by_client:
        lines.append(f"clients = {clients}  # simulated: the images are split over them")
    return "\n".join(lines) + "\n"


def _data(folder: Path, summary: FolderSummary, choices: Choices) -> str:
    size = choose_size(summary.side, choices.gpu)
    lines = ["[data]", 'name = "folder"']
    if not folder.is_absolute():
        lines.append("# Relative to the directory in which fedssl is started, or to --data-dir.")
    lines += [
        f"path = {_quoted(folder)}",
        *_layout_lines(summary),
        f"size = {size}  # pixels a side; {side_text(summary)}",
    ]
    if summary.grey:
        lines.append("channels = 1  # the images are grey")
    lines += fit_lines(summary)
    if summary.bad_share > Folder.model_fields["bad_share"].default:
        lines.append(f"# {summary.unreadable} of {summary.sampled} sampled files are no images.")
        lines.append(f"bad_share = {_allowed(summary.bad_share)}  # of a client's files")
    if choices.test is not None:
        lines.append(f"test = {_quoted(choices.test)}  # labelled images, one folder per class")
    else:
        lines += _test_lines(summary)
    return "\n".join(lines) + "\n"


def _layout_lines(summary: FolderSummary) -> list[str]:
    """Return the layout, the reason for it, and how to choose another."""
    lines = [f"# Chosen because {printable(summary.reason)}."]
    if summary.layout == "flat":
        lines.append("# To train with real clients, put the images of each into its own folder.")
    else:
        lines.append(f"# Write this file again with {OTHER_LAYOUTS[summary.layout]}.")
    return [*lines, f'layout = "{summary.layout}"']


def _allowed(bad_share: float) -> float:
    """Return a limit for a share that was estimated from a sample: half as much again."""
    return min(1.0, math.ceil(150 * bad_share) / 100)


def _test_lines(summary: FolderSummary) -> list[str]:
    """Return the lines on the images to measure on."""
    holdout = choose_holdout(summary)
    if summary.test is not None:
        return [f'# Measured on the images in "{summary.test.name}", one folder per class.']
    if holdout:
        return [f"holdout = {holdout}  # labelled images kept out of training, to measure on"]
    return [
        "# Labelled images to measure on, one folder per class; they can be added after training.",
        '# test = "FOLDER"',
    ]


OTHER_LAYOUTS = {
    "clients": "--layout classes if each folder is a class",
    "classes": "--layout clients if the folders are owners of images",
    "clients-classes": "--layout clients if the inner folders are no classes",
    "flat": "real clients each have a folder",
}


def _partition(summary: FolderSummary) -> str:
    if summary.by_client:
        return '[partition]\nname = "natural"  # each client has the images of its folder\n'
    if summary.layout == "classes":
        lines = [
            "[partition]",
            'name = "dirichlet"  # clients have different mixtures of classes; "iid": the same',
            "alpha = 0.5  # smaller: fewer classes per client",
            "balanced = true  # clients have equally many images",
        ]
        return "\n".join(lines) + "\n"
    return '[partition]\nname = "iid"  # the images are shuffled and divided equally\n'


def _method(preset: str, why: str, gpu: bool) -> str:
    others = ", ".join(name for name in PRESETS if name != preset)
    views = [f"# Views: {why}.", f"# Others: {others}.", f'augment = "{preset}"']
    if gpu:
        lines = ["[method]", 'name = "byol"', 'backbone = "resnet18"', *views]
    else:
        network = ['backbone = "cnn"  # small; resnet18 needs a GPU', "hidden = 256", "dim = 128"]
        lines = ["[method]", 'name = "simclr"', *network, "temperature = 0.5", *views]
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
    median = statistics.median_high(summary.owned)
    if not summary.by_client:
        median = summary.images // choose_clients(summary)
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


ONE_CLIENT = """\
[guard]
min_uploads = 1  # only one client has enough images to train, so nothing is averaged
"""


def _probe(pictures: bool) -> str:
    lines = [
        "[probe]",
        "every = 5  # rounds between measurements, if there are labels",
        "# To compare with, an untrained network and, if that is quick, clients that train alone",
        "# are measured too. All baselines, including training on all images in one place:",
        '# baselines = ["random", "isolated", "centralized"]',
    ]
    if pictures:
        lines.append("picture = true  # picture.png: accuracy by round, test images as a map")
    return "\n".join(lines) + "\n"


def _quoted(path: Path) -> str:
    """Return a path as a TOML string."""
    return tomli_w.dumps({"path": str(path)}).removeprefix("path = ").rstrip("\n")
