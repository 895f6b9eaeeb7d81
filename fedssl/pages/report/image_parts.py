"""The sections of a report that need images: the partition, maps of features, and neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedssl.pages.report.document import Part
from fedssl.pages.report.evaluation_images import (
    FeatureMap,
    ImageFacts,
    Partition,
    class_names,
    owner_of_classes,
)
from fedssl.pages.report.markup import Content, Markup, join, paragraph, table, tag
from fedssl.pages.report.pictures import sheet, thumbnail
from fedssl.pages.report.strips import (
    MAX_KINDS,
    Segment,
    hatchings,
    stacked_strip,
    swatch,
)
from fedssl.pages.report.training import Training
from fedssl.plots.style import model_title
from fedssl.runs.summary import RunSummary

MAX_BARS = 40  # clients with a bar of their own


def partition_part(facts: ImageFacts, training: Training) -> Part:
    """Return how many images clients have, by class if labels were read."""
    partition = facts.partition
    content: list[Content]
    if training.privacy is not None:
        content = [paragraph("How many images each client has is private.", "muted")]
        return Part("clients", "Images of each client", "Clients", content)
    if partition is None:
        return Part("clients", "Images of each client", "Clients", _from_log(training))
    sizes = sorted(partition.sizes)
    middle = sizes[len(sizes) // 2]
    text = f"{len(sizes):,} clients have {sizes[0]:,} to {sizes[-1]:,} images, median {middle:,}."
    if sizes[0] == sizes[-1]:
        text = f"Each of {len(sizes):,} clients has {middle:,} images."
    content = [paragraph(text)]
    if partition.distance is not None:
        distance = (
            f"Earth mover's distance of clients from the whole: {partition.distance:.2f} "
            "(0: the same mix of classes, 2: nothing in common)."
        )
        content.append(paragraph(distance))
    content += _bars(partition)
    return Part("clients", "Images of each client", "Clients", content)


def _from_log(training: Training) -> list[Content]:
    """Return what the log has: clients, and the rounds in which each was used."""
    if not any(training.images.values()):
        text = (
            f"{len(training.clients):,} clients took part; how many images each has is not known."
        )
        return [paragraph(text, "muted")]
    text = (
        "Images that each client processed in a round, from the log: an image counts once in each "
        "epoch, and the last incomplete batch is left out."
    )
    sizes = list(training.images.values())
    return [paragraph(text), *_bars(Partition(list(training.images), sizes, None, ()))]


def _bars(partition: Partition) -> list[Content]:
    """Return a bar for each client, or for the clients at evenly spread sizes."""
    order = list(range(len(partition.clients)))
    content: list[Content] = []
    if len(order) > MAX_BARS:
        order.sort(key=partition.sizes.__getitem__)
        places = np.linspace(0, len(order) - 1, MAX_BARS).round().astype(int)
        order = [order[place] for place in places]
        text = f"{MAX_BARS} of {len(partition.clients):,} clients, from the smallest to the largest"
        content.append(paragraph(text, "muted"))
    most = max(1, *partition.sizes)
    kinds = _kinds(partition)
    rows: list[list[Content]] = []
    for client in order:
        name = model_title(partition.clients[client])
        segments = _segments(partition, client, kinds)
        spoken = ", ".join(f"{each.size:,.0f} {each.name}" for each in segments if each.size)
        bar = stacked_strip(segments, most, f"{name}: {spoken}")
        rows.append([name, bar, f"{partition.sizes[client]:,}"])
    content += [hatchings(), _legend(kinds)]
    headings = ["client", "images by class" if kinds else "", "images"]
    content.append(tag("div", table(headings, rows, (2,)), class_="bars"))
    return content


def _kinds(partition: Partition) -> dict[str, list[int]]:
    """Return the classes of each colour by its name; the rarest of many share the last one."""
    if partition.counts is None:
        return {}
    totals = partition.counts.sum(0)
    names = class_names(partition.classes, len(totals))
    if len(totals) <= MAX_KINDS:
        return {name: [label] for label, name in enumerate(names)}
    order = torch.argsort(totals, descending=True).tolist()
    kinds = {names[label]: [label] for label in sorted(order[: MAX_KINDS - 1])}
    rest = order[MAX_KINDS - 1 :]
    kinds[f"{len(rest)} other classes"] = rest
    return kinds


def _segments(partition: Partition, client: int, kinds: dict[str, list[int]]) -> list[Segment]:
    if partition.counts is None:
        return [Segment(partition.sizes[client], 0, "images")]
    segments = []
    for number, (name, labels) in enumerate(kinds.items()):
        count = int(partition.counts[client, labels].sum())
        segments.append(Segment(count, number, name))
    return segments


def _legend(names: dict[str, list[int]]) -> Markup:
    if not names:
        return join()
    items = []
    for number, name in enumerate(names):
        items.append(tag("li", swatch(number), name))
    return tag("ul", *items, class_="legend")


def times(run: RunSummary) -> tuple[str, str]:
    """Return when features were computed; those of an unfinished run are of a checkpoint."""
    if run.results or run.rounds >= run.experiment.rounds:
        return "before training", "after training"
    return "before training", "at the newest checkpoint"


def map_part(
    features: FeatureMap, facts: ImageFacts, names_of_maps: tuple[str, str], images: bool
) -> tuple[Part, dict[str, Any]]:
    """Return the section of maps, and the data that a script draws them from."""
    names = class_names(features.classes, int(features.labels.max()) + 1)
    options = {"class": "class"}
    data: dict[str, Any] = {
        "classes": names,
        "labels": features.labels.tolist(),
        "before": _flat(features, 0),
        "after": _flat(features, 1),
    }
    owners = owner_of_classes(facts.partition)
    if owners is not None and facts.partition is not None:
        options["client"] = "client with most images of the class"
        data["owners"] = owners
        data["clients"] = list(map(model_title, facts.partition.clients))
    if features.correct is not None:
        options["correct"] = "right or wrong"
        data["correct"] = [round(float(share), 2) for share in features.correct]
    if images:
        data["sheet"] = sheet(features.images.pixels)
    content: list[Content] = [paragraph(_map_note(features), "muted"), _choices(options)]
    content += _canvases(features, names_of_maps)
    return Part("map", "Map of the test images", "Map", content), data


def _flat(features: FeatureMap, which: int) -> list[int]:
    """Return positions as x, y, x, y, …"""
    assert features.positions is not None
    return [int(value) for value in features.positions[which].ravel()]


def _choices(options: dict[str, str]) -> Markup:
    """Return the switch of colours."""
    buttons: list[Content] = [tag("span", "Colour by:", class_="muted")]
    for key, text in options.items():
        pressed = str(key == "class").lower()
        buttons.append(tag("button", text, type="button", data_colour=key, aria_pressed=pressed))
    return tag("div", *buttons, class_="chips", role="group", aria_label="colour of points")


def _canvases(features: FeatureMap, names: tuple[str, str]) -> list[Content]:
    figures = []
    for which, time in zip(("before", "after"), names, strict=True):
        label = (
            f"map of {len(features.labels):,} test images {time}; arrow keys go from image to image"
        )
        canvas = tag(
            "canvas", class_="map", data_map=which, tabindex=0, role="img", aria_label=label
        )
        figures.append(tag("figure", tag("figcaption", time), canvas))
    legend = tag("ul", class_="legend", data_map_legend=True)
    status = tag("p", class_="muted map-status", role="status", data_map_status=True)
    return [tag("div", *figures, class_="maps"), status, legend]


def _map_note(features: FeatureMap) -> str:
    text = (
        f"t-SNE of the features of {len(features.labels):,} test images. Neighbours are similar; "
        "distances between groups, and the axes, mean nothing. Point at an image to see it in both "
        "maps; choose a class below to highlight it."
    )
    return text + _model_note(features)


def _model_note(features: FeatureMap) -> str:
    if features.models > 1:
        return f" There are several models; this is {model_title(features.model)}."
    return ""


def neighbour_part(features: FeatureMap, columns: tuple[str, str]) -> Part:
    """Return test images with their nearest neighbours among test images, before and after."""
    names = class_names(features.classes, int(features.labels.max()) + 1)
    before = features.agreement(0)
    after = features.agreement(1)
    count = features.neighbours[0].shape[1]
    text = (
        f"The {count} nearest neighbours of an image have its class in {before:.1f}% of cases "
        f"{columns[0]} and in {after:.1f}% {columns[1]}, over {len(features.labels):,} test images."
    )
    rows: list[list[Content]] = []
    for query in features.queries():
        own = int(features.labels[query])
        name = tag("span", names[own], class_="picture-name")
        cells: list[Content] = [join(_picture(features, query, own, names), name)]
        for which in range(2):
            pictures = []
            for neighbour in features.neighbours[which][query]:
                pictures.append(_picture(features, int(neighbour), own, names))
            cells.append(tag("div", *pictures, class_="neighbours"))
        rows.append(cells)
    shown = table(["image", *columns], rows)
    note = (
        "For the first test image of each class. A dashed frame marks a neighbour of another class."
    )
    content = [paragraph(text), shown, paragraph(note + _model_note(features), "muted")]
    return Part("neighbours", "Nearest neighbours", "Neighbours", content)


def _picture(features: FeatureMap, index: int, own: int, names: Sequence[str]) -> Markup:
    label = int(features.labels[index])
    style = "thumbnail" if label == own else "thumbnail other"
    address = thumbnail(features.images.pixel_rows.select(torch.tensor([index])).tensor()[0])
    return tag("img", src=address, alt=names[label], title=names[label], class_=style)


def pictures_note(facts: ImageFacts, images: bool) -> str:
    """Return which pictures the page contains."""
    features = facts.features
    if features is None or not images:
        return "This page contains no image of the data set."
    return (
        f"This page contains small pictures of {len(features.labels):,} test images. It contains "
        "no training image of a client."
    )
