"""Reconstruct images from what one step of training reveals: gradient matching.

Zhu et al., "Deep leakage from gradients", NeurIPS 2019; Geiping et al., "Inverting gradients: how
easy is it to break privacy in federated learning?", NeurIPS 2020: pixels are optimised until their
gradient has the direction of the observed one (cosine distance), plus total variation. Where
uploads have running statistics of BatchNorm, those of the batch are matched too, as in Yin et al.,
"See through gradients: image batch recovery via GradInversion", CVPR 2021.
Departures: pixels are in 0…1 and clamped to it; one start, from the mean of other images, instead
of several; plain Adam; weights, learning rate and the number of iterations are chosen for a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedssl import views
from fedssl.analysis.audit.batch_statistics import Statistics, StatisticsRecorder, distance
from fedssl.analysis.audit.differentiable_views import make_float_views
from fedssl.analysis.audit.victim import LocalTraining
from fedssl.method import Batch

LR = 0.02
SMOOTHNESS = 0.02  # weight of the total variation
# With statistics of batches, which give the loss another scale:
MOMENTS = 200.0  # their weight
SMOOTHNESS_WITH_MOMENTS = 2.0


class StepNumbers(NamedTuple):
    """The random numbers of one step, which the attacker is assumed to know."""

    rows: Tensor  # (n,) of the client's images
    uniforms: tuple[Tensor, ...]  # of the views
    draws: Mapping[str, Tensor]


class Observation(NamedTuple):
    """What a server sees of one step."""

    gradients: list[Tensor]  # of the parameters that are uploaded
    statistics: Statistics  # of the layers whose running statistics are uploaded

    def detached(self) -> Observation:
        """Return the observation without its graph."""
        gradients = [gradient.detach() for gradient in self.gradients]
        statistics = {name: m.detached() for name, m in self.statistics.items()}
        return Observation(gradients, statistics)


Observe = Callable[[Tensor], Observation]  # images (n, C, H, W) in 0…1 -> what their step reveals


class AttackedStep:
    """The step of a client's training as a differentiable function of the images."""

    def __init__(
        self, training: LocalTraining, names: Sequence[str], layers: Sequence[str]
    ) -> None:
        """`names` are parameters that are uploaded, `layers` those with uploaded statistics."""
        self.training = training
        self._parameters = dict(training.method.named_parameters())
        self._names = names
        self._recorder = StatisticsRecorder(training.method, layers)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.training.method.state.floats.device

    def draw(self, rows: Tensor, stream: torch.Generator) -> StepNumbers:
        """Draw the random numbers of a step on the images at `rows` (n,)."""
        count = len(rows)
        groups = self.training.method.views
        uniforms = tuple(views.draw(g.count * count, stream, self.device) for g in groups)
        drawn = {
            **self.training.method.draw(count, stream),
            **self.training.task.draw(count, stream),
        }
        draws = {name: numbers.to(self.device) for name, numbers in drawn.items()}
        return StepNumbers(rows.to(self.device), uniforms, draws)

    def observe(self, numbers: StepNumbers, images: Tensor) -> Observation:
        """Return what a step on images (n, C, H, W) in 0…1 reveals."""
        training = self.training
        batch = self._batch(numbers, images)
        self._recorder.take()
        out = training.method(batch)
        statistics = self._recorder.take()
        loss = training.objective(training.method, batch, out, training.constants)
        parameters = [self._parameters[name] for name in self._names]
        gradients = torch.autograd.grad(
            loss,
            parameters,
            create_graph=images.requires_grad,
            allow_unused=True,
            materialize_grads=True,
        )
        return Observation(list(gradients), statistics)

    def _batch(self, numbers: StepNumbers, images: Tensor) -> Batch:
        method = self.training.method
        groups = []
        for group, uniforms in zip(method.views, numbers.uniforms, strict=True):
            groups.append(make_float_views(group, images, uniforms, method.mean, method.std))
        labels = self.training.task.labels
        if labels is not None:
            labels = labels[numbers.rows]
        progress = images.new_tensor(self.training.task.progress)
        return Batch(
            numbers.rows,
            images * 255,
            tuple(groups),
            labels=labels,
            draws=numbers.draws,
            progress=progress,
        )


def reconstruct(
    observe: Observe,
    observed: Observation,
    start: Tensor,
    *,
    iterations: int,
    advance: Callable[[int], object] = lambda amount: None,
) -> Tensor:
    """Return images (n, C, H, W) in 0…1 that would give the observed update.

    `start` (n, C, H, W) are the first pixels.
    """
    images = start.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([images], lr=LR)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, iterations)
    norm = _norm(observed.gradients)
    smoothness = SMOOTHNESS_WITH_MOMENTS if observed.statistics else SMOOTHNESS
    # Only this implementation of attention has second derivatives.
    with sdpa_kernel(SDPBackend.MATH):
        for _ in range(iterations):
            guess = observe(images)
            pairs = zip(guess.gradients, observed.gradients, strict=True)
            product = torch.stack([(a * b).sum() for a, b in pairs]).sum()
            cosine = product / (_norm(guess.gradients) * norm).clamp_min(1e-20)
            loss = 1 - cosine + smoothness * total_variation(images)
            if observed.statistics:
                loss = loss + MOMENTS * distance(guess.statistics, observed.statistics)
            (images.grad,) = torch.autograd.grad(loss, images)
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                images.clamp_(0, 1)
            advance(1)
    return images.detach()


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([tensor.square().sum() for tensor in tensors]).sum().sqrt()


def total_variation(images: Tensor) -> Tensor:
    """Return the mean absolute difference of neighbouring pixels, 0-d."""
    down = (images[:, :, 1:] - images[:, :, :-1]).abs().mean()
    across = (images[:, :, :, 1:] - images[:, :, :, :-1]).abs().mean()
    return down + across
