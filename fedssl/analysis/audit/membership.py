"""Membership inference: do the views of training images have more similar features?

Liu et al., "EncoderMI: membership inference against pre-trained encoders in contrastive learning",
CCS 2021, the attack with a threshold (EncoderMI-T): the score of an image is the mean pairwise
cosine similarity of the features of its views. The attacker needs features only.
Departures: no shadow encoder chooses the threshold; the AUC covers all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fedssl import views
from fedssl.data.image_pool import PixelRows
from fedssl.method import Method
from fedssl.views import Augment, ViewGroup

VIEWS = 10  # of each image, as in the paper
CHUNK = 100  # images


def membership_group(method: Method) -> ViewGroup:
    """Return the views of an image: the method's own augmentation, or the default one."""
    for group in method.views:
        return ViewGroup(VIEWS, group.size, group.augment)
    return ViewGroup(VIEWS, method.size, Augment())


@torch.no_grad()
def view_similarity(
    backbone: Callable[[Tensor], Tensor],
    pixels: PixelRows,
    group: ViewGroup,
    *,
    method: Method,
    stream: torch.Generator,
    device: torch.device,
) -> Tensor:
    """Return the score (n,) of each image: the mean cosine similarity of pairs of its views.

    `method` has the normalisation of the pixels.
    """
    scores = []
    for images in pixels.chunks(CHUNK):
        uniforms = views.draw(group.count * len(images), stream, device)
        made = views.make_views(group, images.to(device), uniforms, method.mean, method.std)
        features = backbone(made.flatten(0, 1)).float().flatten(1)
        scores.append(mean_cosine(features.unflatten(0, made.shape[:2])))
    return torch.cat(scores).cpu()


def mean_cosine(features: Tensor) -> Tensor:
    """Return the mean cosine similarity (n,) of all pairs among features (V, n, d).

    The squared length of a sum of V unit vectors is V plus twice the sum over pairs.
    """
    count = len(features)
    unit = F.normalize(features.double(), dim=-1)
    return (unit.sum(0).square().sum(-1) - count) / (count * (count - 1))


def same_classes(labels: Tensor, others: Tensor, stream: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return indices into both label lists with the same number of images of each class.

    The order is random, so that the first entries are a random sample too.
    """
    first = []
    second = []
    for label in labels.unique().tolist():
        of_label = (labels == label).nonzero().flatten()
        of_others = (others == label).nonzero().flatten()
        count = min(len(of_label), len(of_others))
        first.append(of_label[torch.randperm(len(of_label), generator=stream)[:count]])
        second.append(of_others[torch.randperm(len(of_others), generator=stream)[:count]])
    one = torch.cat(first)
    other = torch.cat(second)
    order = torch.randperm(len(one), generator=stream)
    return one[order], other[order]
