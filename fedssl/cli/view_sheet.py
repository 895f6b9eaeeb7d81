"""Draw the views of an experiment, or of every preset, on images of its clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedssl import nets
from fedssl.cli.options import with_views
from fedssl.cli.plain_views import IMAGES, plain_views_line
from fedssl.core.console import print_to_stderr
from fedssl.core.errors import FedsslError
from fedssl.core.seeds import generator
from fedssl.data import Dataset
from fedssl.experiment import federation_setup
from fedssl.experiment.client_data import partition_data, read_data
from fedssl.experiment.experiment import Experiment, load
from fedssl.plots.contact_sheet import Strip, draw_sheet
from fedssl.plots.style import model_title
from fedssl.views import Augment, ViewGroup
from fedssl.views.presets import PRESETS

ROWS = 8
COLUMNS = 8  # views of each image
JITTER = "jitter: brightness/contrast/saturation/hue"  # explains the lines above it
ALL = "all"  # in place of a preset: every preset


def write_sheet(
    name: str, assignments: Sequence[str], preset: str | None, data_dir: Path, out: Path
) -> None:
    """Draw images of an experiment's clients with their views."""
    changes = list(assignments)
    if preset != ALL:
        changes = with_views(changes, preset)
    experiment = load(name, changes)
    data = read_data(experiment, data_dir, None, print_to_stderr)
    data, owners = partition_data(experiment, data, print_to_stderr)
    if preset == ALL:
        strips = _preset_strips(name, assignments, data)
        title = [f"{name}: every preset on the same images"]
        for strip in strips:
            title.append(f"{strip.heading}: {describe(strip.group.augment)}")
    else:
        strips = _strips(_view_groups(experiment, data))
        augment = strips[0].group.augment
        title = [f"{name}: {preset_of(augment)} views", describe(augment)]
    title.append(JITTER)
    rows = choose_rows(owners, experiment.seed)
    clients, indices = zip(*rows, strict=True)
    shown = len(set(clients))
    if shown < len(owners):
        title[0] += f", {shown} of {len(owners)} clients"
    images = data.train.pixel_rows[torch.tensor(indices)]
    names = list(map(model_title, clients))
    draw_sheet(images, names, strips, title=title, seed=experiment.seed, path=out)
    _report_plain_views(data, strips, experiment.seed, by_preset=preset == ALL)


def _report_plain_views(
    data: Dataset, strips: Sequence[Strip], seed: int, *, by_preset: bool
) -> None:
    """Print the share of views of one colour for each kind of views that has many."""
    pixels = data.train.pixel_rows
    order = torch.randperm(len(pixels), generator=generator(seed, "plain images"))
    images = pixels[order[:IMAGES]].cpu()
    lines = []
    for strip in strips:
        name = strip.heading if by_preset else ""
        lines.append(plain_views_line(images, strip.group, seed, name))
    for line in dict.fromkeys(filter(None, lines)):
        print_to_stderr(line)


def _view_groups(experiment: Experiment, data: Dataset) -> Sequence[ViewGroup]:
    """Return the kinds of views that the method makes; raise FedsslError if it makes none."""
    channels, _, side = data.train.image_shape
    with nets.uninitialized():
        backbone = federation_setup.build_backbone(experiment, channels)
        method = experiment.method.method(experiment.method, backbone, side)
    if not method.views:
        raise FedsslError("this method trains on unchanged images: there are no views to draw")
    return method.views


def _strips(groups: Sequence[ViewGroup]) -> list[Strip]:
    """Return a strip for each kind of views."""
    count = max(1, COLUMNS // len(groups))
    strips = []
    for group in groups:
        strips.append(Strip(f"views of {group.size} pixels a side", group, count))
    return strips


def _preset_strips(name: str, assignments: Sequence[str], data: Dataset) -> list[Strip]:
    """Return a strip for each preset."""
    strips = []
    for preset in PRESETS:
        experiment = load(name, with_views(list(assignments), preset))
        group = _view_groups(experiment, data)[0]
        strips.append(Strip(preset, group, COLUMNS // len(PRESETS)))
    return strips


def choose_rows(owners: Mapping[str, Tensor], seed: int) -> list[tuple[str, int]]:
    """Return up to ROWS images as (client, index): one of each client, then a second one, …

    Images are drawn by the seed; those of one client are neighbours.
    """
    present = []
    for client, index in owners.items():
        if len(index):
            present.append(client)
    clients = present[:ROWS]
    rows = []
    for number, client in enumerate(clients):
        count = ROWS // len(clients) + (number < ROWS % len(clients))
        order = torch.randperm(len(owners[client]), generator=generator(seed, "sheet", client))
        for image in owners[client][order[:count]].tolist():
            rows.append((client, image))
    return rows


def preset_of(augment: Augment) -> str:
    """Return the name of the preset with these settings, or "custom"."""
    for name in PRESETS:
        if Augment.model_validate(name) == augment:
            return name
    return "custom"


def describe(augment: Augment) -> str:
    """Return the settings of views as one line."""
    jitter = "{:g}/{:g}/{:g}/{:g}".format(*augment.jitter)
    parts = [
        f"crop {augment.crop[0]:g} to {augment.crop[1]:g}",
        f"ratio {augment.ratio[0]:.2g} to {augment.ratio[1]:.2g}",
        f"flip {augment.flip:g}",
        f"jitter {jitter} with p {augment.jitter_p:g}",
        f"gray {augment.gray:g}",
    ]
    if augment.blur:
        parts.append(f"blur {augment.blur:g}")
    return ", ".join(parts)
