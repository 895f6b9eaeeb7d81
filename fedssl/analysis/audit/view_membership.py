"""Membership inference on the models of a run: the shared backbone, and clients' own models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from fedssl.analysis.audit.material import Material
from fedssl.analysis.audit.membership import membership_group, same_classes, view_similarity
from fedssl.analysis.audit.result import AttackResult, not_measured
from fedssl.analysis.audit.roc import MAX_FPR, Separation, separation
from fedssl.core.console import meter
from fedssl.core.devices.precision import float32
from fedssl.core.state.state import State
from fedssl.data import Images
from fedssl.data.image_pool import PixelRows
from fedssl.evaluation.evaluate import Evaluation
from fedssl.experiment import federation_setup
from fedssl.nets import Backbone

ATTACK = "membership by view similarity"
MIN_IMAGES = 20  # members and others each
MAX_MODELS = 11  # of a run: with clients' own models, those of ten clients and another


class Samples(NamedTuple):
    """Images a model was trained on, and as many that no client has."""

    members: PixelRows
    others: PixelRows


def infer_membership(material: Material) -> Iterator[AttackResult]:
    """Yield the results for each model of the run."""
    if material.unseen is None:
        yield not_measured(ATTACK, "", "there are no images that no client trained on")
        return
    models = material.run.models()
    chosen = dict(islice(models.items(), MAX_MODELS))
    if not chosen:
        yield not_measured(ATTACK, "", "there is no model yet")
        return
    with meter("testing membership", len(chosen), material.notify) as advance:
        for name, state in chosen.items():
            yield _attack(material, name, state)
            advance(1)


@float32()
def _attack(material: Material, name: str, state: State) -> AttackResult:
    """Return the result for one model, next to an untrained one on the same images."""
    case = f"client {name}" if name in material.owners else f"model {name}"
    samples = draw_samples(material, name)
    if len(samples.members) < MIN_IMAGES:
        reason = f"there are fewer than {MIN_IMAGES} comparable images of each kind"
        return not_measured(ATTACK, case, reason)
    evaluation = Evaluation(material.run.experiment, material.data, material.run.device)
    trained = _separation(material, evaluation.backbone(state), samples)
    untrained = _separation(material, _untrained(material), samples)
    return _result(material, case, trained, untrained, len(samples.members))


def draw_samples(material: Material, name: str) -> Samples:
    """Return members and others of one model: a client's own images, or those of all clients.

    Where both have labels, both have the same number of each class.
    """
    assert material.unseen is not None
    if name in material.owners:
        index = material.owners[name]
    else:
        index = torch.cat(list(material.owners.values())).unique()
    members = material.seen.train.select(index)
    stream = material.stream("members", name)
    first, second = _matched(members, material.unseen, stream)
    limit = material.settings.members
    return Samples(
        members.pixel_rows.select(first[:limit]), material.unseen.pixel_rows.select(second[:limit])
    )


def _matched(members: Images, others: Images, stream: torch.Generator) -> tuple[Tensor, Tensor]:
    if members.labelled and others.labelled:
        return same_classes(members.labels, others.labels, stream)
    count = min(len(members), len(others))
    first = torch.randperm(len(members), generator=stream)[:count]
    second = torch.randperm(len(others), generator=stream)[:count]
    return first, second


def _untrained(material: Material) -> Backbone:
    """Return the backbone before training, in eval mode."""
    run = material.run
    image = material.data.train.image_shape
    method = federation_setup.build_method(run.experiment, image, run.device)
    backbone: Backbone = method.backbone.eval()  # type: ignore[assignment]
    return backbone


def _separation(material: Material, backbone: Backbone, samples: Samples) -> Separation:
    run = material.run
    image = material.data.train.image_shape
    method = federation_setup.build_method(run.experiment, image, run.device)
    scores = []
    for kind, pixels in samples._asdict().items():
        scores.append(
            view_similarity(
                backbone,
                pixels,
                membership_group(method),
                method=method,
                stream=material.stream("views", kind),
                device=run.device,
            )
        )
    members, others = scores
    return separation(members, others, material.stream("bootstrap"))


def _result(
    material: Material, case: str, trained: Separation, untrained: Separation, count: int
) -> AttackResult:
    details: Mapping[str, object] = {
        "members": count,
        "others": count,
        "others_are": material.unseen_name,
        **_figures(trained),
        "untrained": _figures(untrained),
    }
    result = f"AUC {trained.auc:.3f} ({trained.low:.3f} … {trained.high:.3f})"
    guessing = "AUC 0.5"
    if trained.tpr is not None:
        result += f", TPR {trained.tpr:.1%} at {MAX_FPR:.0%} FPR"
        guessing += f", TPR {MAX_FPR:.0%}"
    meaning = membership_meaning(trained, untrained)
    return AttackResult(ATTACK, case, result, guessing, meaning, details)


def _figures(separated: Separation) -> dict[str, object]:
    return {
        "auc": round(separated.auc, 4),
        "auc_interval": [round(separated.low, 4), round(separated.high, 4)],
        "tpr_at_1_percent_fpr": None if separated.tpr is None else round(separated.tpr, 4),
    }


def membership_meaning(trained: Separation, untrained: Separation) -> str:
    """Return one sentence; an untrained model shows a difference that is not due to training."""
    control = f"an untrained backbone gives {untrained.auc:.3f}"
    if trained.low > max(0.5, untrained.high):
        return f"training images are separated from others better than by guessing; {control}"
    if trained.above_guessing:
        return f"the two sets of images differ, but not clearly because of training; {control}"
    return f"this attack cannot tell training images from others; {control}"
