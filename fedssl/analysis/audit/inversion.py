"""Update inversion: reconstruct a client's images from its update, as a server could try."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedssl.analysis.audit.gradient_inversion import (
    AttackedStep,
    Observation,
    StepNumbers,
    reconstruct,
)
from fedssl.analysis.audit.image_similarity import best_match, psnr, ssim
from fedssl.analysis.audit.material import Material
from fedssl.analysis.audit.protection import clip_and_noise
from fedssl.analysis.audit.result import (
    AttackResult,
    Strip,
    closer_than_guesses,
    not_measured,
)
from fedssl.core.console import meter

ATTACK = "update inversion"
ROUND_IMAGES = 16  # images that are reconstructed from the update of a whole round
WHOLE_ROUND = "a whole round"
SHOWN = 8  # images in a strip
START_NOISE = 0.05  # of the first pixels, around the mean of other images


class Compared(NamedTuple):
    """Originals with their best reconstruction and their best guess; pixels in 0…1."""

    originals: Tensor  # (n, C, H, W)
    reconstructions: Tensor
    guesses: Tensor
    reconstructed: Tensor  # (n,) PSNR of the reconstruction
    guessed: Tensor  # (n,) PSNR of the best of as many random other images
    mean: Tensor  # (n,) PSNR of the mean of other images
    guess_count: int  # random other images that each original is compared with

    @property
    def wins(self) -> int:
        """Images whose reconstruction is closer than both ways of guessing."""
        return int((self.reconstructed > torch.maximum(self.guessed, self.mean)).sum())

    def details(self) -> dict[str, float | int]:
        """Return the figures as plain values."""
        count = len(self.originals)
        return {
            "images": count,
            "psnr": round(float(self.reconstructed.mean()), 2),
            "psnr_of_random_images": round(float(self.guessed.mean()), 2),
            "psnr_of_mean_image": round(float(self.mean.mean()), 2),
            "closer_than_guessing": self.wins,
            "random_images": self.guess_count,
        }


class Attacked(NamedTuple):
    """One attacked step."""

    rows: Tensor  # (n,) numbers of the client's images
    originals: Tensor  # (n, C, H, W) in 0…1
    found: Tensor  # reconstructions


def invert_updates(material: Material) -> Iterator[AttackResult]:
    """Yield the results for one step on a few images, and for a whole round."""
    if material.unseen is None:
        yield not_measured(ATTACK, "", "there are no test images to compare guesses with")
        return
    victim = material.victim
    step = AttackedStep(victim.training(), victim.parameters, _visible_layers(material))
    settings = material.settings
    sizes = [size for size in settings.batches if size <= victim.count]
    attacked = sum(map(settings.steps_of, sizes)) + int(settings.whole_round)
    total = settings.iterations * attacked
    with meter("reconstructing images from updates", total, material.notify) as advance:
        for size in settings.batches:
            if size in sizes:
                yield _invert_steps(material, step, size, advance)
            else:
                reason = f"client {victim.client} has only {victim.count} images"
                yield not_measured(ATTACK, _step_case(size), reason)
        if settings.whole_round:
            yield _invert_round(material, step, advance)


def _visible_layers(material: Material) -> list[str]:
    """Return the layers whose running statistics are seen: with clipping or noise none are sent."""
    if material.settings.noise or material.settings.clip:
        return []
    return material.victim.statistics


def _step_case(size: int) -> str:
    return f"one step on {size} images"


def _invert_steps(
    material: Material, step: AttackedStep, size: int, advance: Callable[[int], object]
) -> AttackResult:
    """Attack a few steps on `size` images each."""
    parts = []
    steps = []
    for number in range(material.settings.steps_of(size)):
        stream = material.stream("step", size, number)
        rows = torch.randperm(material.victim.count, generator=stream)[:size]
        images = _unit(material.victim.pixels(rows)).to(step.device)
        numbers = step.draw(rows, stream)
        seen = step.observe(numbers, images).detached()
        seen = seen._replace(gradients=_protect(material, seen.gradients, stream))
        found = _attack(material, step, numbers, seen, stream=stream, advance=advance)
        steps.append(Attacked(rows, images.cpu(), found))
        parts.append(_compare(material, images.cpu(), found, f"step {size} {number}"))
    compared = _joined(parts)
    similarities = {
        "ssim": _mean_ssim(compared.originals, compared.reconstructions),
        "ssim_of_random_images": _mean_ssim(compared.originals, compared.guesses),
    }
    settings = {"batch": size, **similarities}
    return _result(_step_case(size), compared, settings, control_psnr(steps))


def _joined(parts: Sequence[Compared]) -> Compared:
    """Return the images of all steps, with the smallest number of guesses."""
    return Compared(
        torch.cat([part.originals for part in parts]),
        torch.cat([part.reconstructions for part in parts]),
        torch.cat([part.guesses for part in parts]),
        reconstructed=torch.cat([part.reconstructed for part in parts]),
        guessed=torch.cat([part.guessed for part in parts]),
        mean=torch.cat([part.mean for part in parts]),
        guess_count=min(part.guess_count for part in parts),
    )


def control_psnr(steps: Sequence[Attacked]) -> float | None:
    """Return the mean PSNR of originals with the reconstructions of a step on other images.

    These know the client and its classes, but not the originals. None if a step has no other step
    without common images.
    """
    matched = []
    for step in steps:
        others = [other for other in steps if not torch.isin(other.rows, step.rows).any()]
        if not others:
            return None
        matched.append(best_match(step.originals, others[0].found).psnr)
    return round(float(torch.cat(matched).mean()), 2)


def _invert_round(
    material: Material, step: AttackedStep, advance: Callable[[int], object]
) -> AttackResult:
    """Attack the update of a whole round, as the run would make it.

    Batches and views are unknown, so the attacker assumes one batch and draws views. Its images are
    compared with the client's nearest ones.
    """
    victim = material.victim
    stream = material.stream("round")
    count = min(ROUND_IMAGES, victim.count)
    numbers = step.draw(torch.randperm(victim.count, generator=stream)[:count], stream)
    update = victim.full_round()
    statistics = {name: update.statistics[name] for name in _visible_layers(material)
                  if name in update.statistics}  # fmt: skip
    seen = Observation(_protect(material, update.differences, stream), statistics)
    found = _attack(material, step, numbers, seen, stream=stream, advance=advance)
    own = _unit(material.client_images(victim.client).pixels)
    guesses = _unit(material.others(count, "round", victim.client))
    nearest = best_match(found, own)
    mean = _mean_image(material)
    compared = Compared(
        own[nearest.candidate][: len(guesses)],
        found[: len(guesses)],
        guesses,
        reconstructed=nearest.psnr[: len(guesses)],
        guessed=best_match(guesses, own).psnr,
        mean=best_match(mean[None], own).psnr.expand(len(guesses)),
        guess_count=len(guesses),
    )
    train = material.run.experiment.train
    steps = train.epochs * (victim.count // min(train.batch, victim.count))
    return _result(WHOLE_ROUND, compared, {"steps": steps, "candidates": victim.count}, None)


def _attack(
    material: Material,
    step: AttackedStep,
    numbers: StepNumbers,
    seen: Observation,
    *,
    stream: torch.Generator,
    advance: Callable[[int], object],
) -> Tensor:
    """Return reconstructions on the CPU."""
    mean = _mean_image(material)
    start = mean + START_NOISE * torch.randn(len(numbers.rows), *mean.shape, generator=stream)
    found = reconstruct(
        lambda images: step.observe(numbers, images),
        seen,
        start.clamp(0, 1).to(step.device),
        iterations=material.settings.iterations,
        advance=advance,
    )
    return found.cpu()


def _protect(material: Material, tensors: list[Tensor], stream: torch.Generator) -> list[Tensor]:
    settings = material.settings
    if not settings.noise and settings.clip is None:
        return tensors
    return clip_and_noise(tensors, settings.clip, settings.noise, stream)


def _mean_image(material: Material) -> Tensor:
    """Return the mean (C, H, W) of images that no client trained on: the attacker may have some."""
    return _unit(material.others(1000, "mean", material.client)).mean(0)


def _compare(material: Material, images: Tensor, found: Tensor, purpose: str) -> Compared:
    """Match each original with its best reconstruction and the best of as many other images."""
    guesses = _unit(material.others(len(found), purpose, material.client))
    matched = best_match(images, found)
    guessed = best_match(images, guesses)
    mean = _mean_image(material)
    return Compared(
        images,
        found[matched.candidate],
        guesses[guessed.candidate],
        reconstructed=matched.psnr,
        guessed=guessed.psnr,
        mean=psnr(images, mean.expand_as(images)),
        guess_count=len(guesses),
    )


def _mean_ssim(images: Tensor, others: Tensor) -> float:
    return round(float(ssim(images, others).mean()), 3)


def _unit(pixels: Tensor) -> Tensor:
    return pixels.float() / 255


def update_meaning(compared: Compared, control: float | None) -> str:
    """Return one sentence that describes the reconstructions; a control in dB is added."""
    text = closer_than_guesses("reconstructions", compared.wins, len(compared.originals), "images")
    if control is None:
        return text
    return f"{text}; reconstructions from steps on other images of the client give {control:.1f} dB"


def _result(
    case: str, compared: Compared, settings: Mapping[str, float], control: float | None
) -> AttackResult:
    details: dict[str, float | int | None] = {**settings, **compared.details()}
    details["psnr_of_control"] = control
    psnrs = compared.details()
    guess = max(psnrs["psnr_of_random_images"], psnrs["psnr_of_mean_image"])
    return AttackResult(
        ATTACK,
        case,
        f"{psnrs['psnr']:.1f} dB",
        f"{guess:.1f} dB",
        update_meaning(compared, control),
        details,
        _strip(case, compared),
    )


def _strip(case: str, compared: Compared) -> Strip:
    original = "original"
    guess = "best guess"
    if case == WHOLE_ROUND:
        original = "nearest original"
        guess = "random image"
    return Strip(
        {
            original: compared.originals[:SHOWN],
            "reconstruction": compared.reconstructions[:SHOWN],
            guess: compared.guesses[:SHOWN],
        }
    )
