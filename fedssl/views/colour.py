"""Colour jitter and grayscale on (n, C, pixels) in [0, 1], in place where memory traffic would cost most.

Brightness, contrast and saturation blend an image with black, with its mean grey and with its own grey, and
clamp; hue turns the colour wheel. Saturation, hue and grayscale are for RGB and leave images of one channel,
or of more than three, as they are; the mean grey of those is the mean over all their channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedssl.views.augment import Augment
from fedssl.views.draws import Parameters

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


def jitter(x: Tensor, p: Parameters, augment: Augment) -> Tensor:
    """Every image's operations in its own order.

    Slots are the same for all images, and a slot that is not an image's turn leaves it alone. Hue costs as
    much as four blends, so it has one slot only, with slots for all the blends both before and after it.
    """
    if not augment.jitter_p:
        return x
    colour = x.shape[1] == 3
    able = (BRIGHTNESS, CONTRAST, SATURATION) if colour else (BRIGHTNESS, CONTRAST)
    kinds = [k for k in able if augment.jitter[k]]
    hue = colour and augment.jitter[HUE] > 0
    slots = _slots(p, kinds, hue) if kinds else []
    for share, chosen in slots[: len(kinds)]:
        x = _blend(x, share, chosen, kinds)
    if hue:
        x = turn_hue(x, p.factors[:, HUE] * p.jitter)
    for share, chosen in slots[len(kinds) :]:
        x = _blend(x, share, chosen, kinds)
    return x


def _slots(p: Parameters, kinds: list[int], hue: bool) -> list[tuple[Tensor, Tensor]]:
    """For each slot: the base's share of the blend (n, 1, 1), 0 when idle, and which of `kinds` has its turn.

    The slot of a blend is the number of blends before it; with hue there are as many slots again after that.
    Choices are (n, len(kinds), 1, 1), 0 or 1.
    """
    turn = torch.stack([p.turn[:, k] for k in kinds], dim=1)
    slot = (turn[:, None, :] < turn[:, :, None]).sum(dim=2)
    if hue:
        slot = slot + len(kinds) * (turn > p.turn[:, HUE:])
    chosen = slot[:, :, None] == torch.arange(len(kinds) * (1 + hue), device=slot.device)
    share = torch.stack([1 - p.factors[:, k] for k in kinds], dim=1) * p.jitter[:, None]
    shares = (share[:, :, None] * chosen).sum(dim=1)[..., None, None]
    return list(zip(shares.unbind(dim=1), chosen[..., None, None].to(share.dtype).unbind(dim=2), strict=True))


def _blend(x: Tensor, share: Tensor, chosen: Tensor, kinds: list[int]) -> Tensor:
    """(1 - share) x + share base, clamped, where base is black, mean grey or grey, whichever is chosen."""
    if kinds == [BRIGHTNESS]:
        return x.mul_(1 - share).clamp_(0, 1)
    light = luminance(x)
    base = light.mean(dim=(1, 2), keepdim=True)
    base = base * chosen[:, kinds.index(CONTRAST)] if CONTRAST in kinds else torch.zeros_like(base)
    if SATURATION in kinds:
        base = light.mul_(chosen[:, kinds.index(SATURATION)]).add_(base)
    return x.lerp_(base.expand_as(x), share).clamp_(0, 1)


def luminance(x: Tensor) -> Tensor:
    """Grey (n, 1, pixels) of RGB; images that are not RGB stay as they are."""
    if x.shape[1] != 3:
        return x
    return x[:, :1].mul(0.2989).add_(x[:, 1:2], alpha=0.587).add_(x[:, 2:], alpha=0.114)


def turn_hue(x: Tensor, turns: Tensor) -> Tensor:
    """RGB (n, 3, pixels) with the hue moved by `turns` (n,), from -0.5 to 0.5 of the wheel.

    HSV without its divisions and branches. With chroma c = max - min, and angles in sixths of the wheel times
    c, a colour lies 2c + b + min - r - g from yellow, towards green where g > r. A channel is
    max + c - (distance from its own peak), clamped to min..max; and two points that differ by |y| <= 12 on a
    wheel of six are 3 - | ||y| - 6| - 3 | apart.
    """
    r, g, b = x[:, :1], x[:, 1:2], x[:, 2:]
    high, low = x.amax(dim=1, keepdim=True), x.amin(dim=1, keepdim=True)
    c = high - low
    angle = torch.copysign((high + c).add_(b).sub_(r).sub_(g), g - r)
    peaks = 2 * torch.arange(3, device=x.device)[:, None] - 1  # red, green and blue as seen from yellow
    away = torch.addcmul(angle, c, 6 * turns[:, None, None] - peaks)
    fold = away.abs_().sub_(6 * c).abs_().sub_(3 * c).abs_()
    return fold.add_(low - c).clamp_(low, high)


def grayscale(x: Tensor, gray: Tensor) -> Tensor:
    """Grey in all three channels of the RGB images that `gray` (n,) names."""
    return x.lerp_(luminance(x).expand_as(x), gray[:, None, None].to(x.dtype))
