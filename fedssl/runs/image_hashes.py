"""Hashes that identify the images and labels that a run is measured on."""

from __future__ import annotations

import hashlib

import torch

from fedssl.data import Dataset, Images


def hash_images(images: Images | None) -> str | None:
    """Return a hash of the pixels; None if there are no images."""
    if images is None:
        return None
    digest = hashlib.sha256()
    for chunk in images.pixel_rows.chunks(1024):
        digest.update(chunk.numpy().data)
    return digest.hexdigest()


def hash_labels(data: Dataset, training: bool = True) -> str | None:
    """Return a hash of the labels that probes use; None if the test images have no labels.

    In that case no labels are loaded. Without `training`, those of the test images only.
    """
    if data.test is None or not data.test.labelled:
        return None
    digest = hashlib.sha256()
    for images in (data.train if training else None, data.test):
        if images is not None and images.labelled:
            digest.update(images.labels.to(torch.int64).numpy().data)
        digest.update(b"|")
    return digest.hexdigest()


def hash_other(other: Dataset | None) -> dict[str, str | None]:
    """Return hashes of the images of `probe.on` and of their labels; none without the setting."""
    if other is None:
        return {}
    parts = f"{hash_images(other.train)} {hash_images(other.test)}"
    return {
        "on_images": hashlib.sha256(parts.encode()).hexdigest(),
        "on_labels": hash_labels(other),
    }


def hash_learned_images(data: Dataset) -> str | None:
    """Return a hash of the labelled training images; None if probes learn from test images."""
    return hash_images(data.train) if data.train.labelled else None
