"""The analytic attack on a run: read what enters the first layer out of its gradients."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fedssl.analysis.audit.analytic_inversion import (
    first_linear_layer,
    invert_linear,
    layer_inputs,
)
from fedssl.analysis.audit.gradient_inversion import AttackedStep
from fedssl.analysis.audit.image_similarity import best_match, to_psnr
from fedssl.analysis.audit.material import Material
from fedssl.analysis.audit.protection import clip_and_noise
from fedssl.analysis.audit.result import AttackResult, closer_than_guesses, not_measured

ATTACK = "inputs of the first layer"
BATCH = 2


def invert_first_layer(material: Material) -> Iterator[AttackResult]:
    """Yield the result for one step on two images."""
    victim = material.victim
    layer = first_linear_layer(victim.federation.trainer.method.backbone)
    if layer is None:
        reason = "the first layer is not linear in pixels or patches, or has no bias"
        yield not_measured(ATTACK, "", reason)
        return
    names = [f"backbone.{layer[0]}.weight", f"backbone.{layer[0]}.bias"]
    if not set(names) <= set(victim.parameters):
        yield not_measured(ATTACK, "", "the first layer is not uploaded")
        return
    if material.unseen is None:
        yield not_measured(ATTACK, "", "there are no test images to compare guesses with")
        return
    step = AttackedStep(victim.training(), names, [])
    found = []
    guessed = []
    for number in range(max(1, material.settings.images // BATCH)):
        mine, theirs = _attack(material, step, layer[0], number)
        found.append(mine)
        guessed.append(theirs)
    yield layer_result(torch.cat(found), torch.cat(guessed))


def _attack(
    material: Material, step: AttackedStep, name: str, number: int
) -> tuple[Tensor, Tensor]:
    """Return the PSNR (n,) of the inputs of n views by the attack, and by guessing."""
    stream = material.stream("first layer", number)
    rows = torch.randperm(material.victim.count, generator=stream)[:BATCH]
    numbers = step.draw(rows, stream)
    layer = step.training.method.backbone.get_submodule(name)
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    seen: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    try:
        pixels = material.victim.pixels(rows)
        gradients = step.observe(numbers, pixels.to(step.device).float() / 255).gradients
        inputs = torch.cat(seen).detach()
        own = layer_inputs(layer, inputs)
        settings = material.settings
        if settings.noise or settings.clip:
            gradients = clip_and_noise(gradients, settings.clip, settings.noise, stream)
        candidates = invert_linear(*gradients)
        # As many guesses as the attack has candidates, of as many steps on other images as needed.
        wanted = max(1, len(candidates))
        steps = -(-wanted // len(own))
        others = material.others(BATCH * steps, f"first layer {number}", material.client)
        seen.clear()
        for images in others.split(BATCH):
            if len(images) == BATCH:
                step.observe(numbers, images.to(step.device).float() / 255)
    finally:
        handle.remove()
    guesses = _sample(layer_inputs(layer, torch.cat(seen).detach()), wanted, stream)
    scale = _scale(step.training.method.std)
    shape = (len(inputs), -1)
    return (
        to_psnr(_errors(scale * own, scale * candidates).view(shape).mean(1)),
        to_psnr(_errors(scale * own, scale * guesses).view(shape).mean(1)),
    )


def _sample(rows: Tensor, count: int, stream: torch.Generator) -> Tensor:
    """Return `count` random rows, or all if there are fewer."""
    chosen = torch.randperm(len(rows), generator=stream)[:count]
    return rows[chosen.to(rows.device)]


def _scale(std: Tensor | None) -> float:
    """Return the factor from inputs of the network to pixels in 0…1."""
    return 1.0 if std is None else float(std.mean())


def _errors(rows: Tensor, candidates: Tensor) -> Tensor:
    """Return the mean squared error (m,) of each row (m, d) by its best candidate; 1 if none."""
    if not len(candidates):
        return torch.ones(len(rows))
    matched = best_match(rows.cpu()[:, None, None], candidates.cpu()[:, None, None])
    return 10 ** (-matched.psnr / 10)


def layer_result(found: Tensor, guessed: Tensor) -> AttackResult:
    """Return the result for the PSNR (n,) of n views by the attack, and by guessing."""
    wins = int((found > guessed).sum())
    count = len(found)
    meaning = closer_than_guesses("inputs read out of gradients", wins, count, "views")
    details = {
        "views": count,
        "psnr": round(float(found.mean()), 2),
        "psnr_of_random_images": round(float(guessed.mean()), 2),
        "closer_than_guessing": wins,
    }
    return AttackResult(
        ATTACK,
        f"one step on {BATCH} images",
        f"{details['psnr']:.1f} dB",
        f"{details['psnr_of_random_images']:.1f} dB",
        meaning,
        details,
    )
