"""Colour jitter and grayscale on (n, C, pixels) in [0, 1], in place where memory traffic is high.

Brightness, contrast and saturation blend an image with black, with its mean grey and with its grey
version, and clamp; hue rotates the colour wheel. Saturation, hue and grayscale are for RGB: images
of one channel, or of more than three, are returned unchanged, and their mean grey is the mean over
all their channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedssl.views.augment import Augment
from fedssl.views.draws import HUE, Parameters

BRIGHTNESS = 0
CONTRAST = 1
SATURATION = 2


def jitter(x: Tensor, p: Parameters, augment: Augment) -> Tensor:
    """Apply each image's jitter operations in that image's order.

    All images share the same slots; a slot in which an image has no operation does not change it.
    Hue costs as much as four blends, so it has only one slot, with slots for all the blends both
    before and after it.
    """
    if not augment.jitter_p:
        return x
    is_rgb = x.shape[1] == 3
    blends = [BRIGHTNESS, CONTRAST]
    if is_rgb:
        blends.append(SATURATION)
    kinds = [k for k in blends if augment.jitter[k]]
    hue = is_rgb and augment.jitter[HUE] > 0
    slots = []
    if kinds:
        slots = _slots(p, kinds, hue)
    for share, chosen in slots[: len(kinds)]:
        x = _blend(x, share, chosen, kinds)
    if hue:
        x = turn_hue(x, p.factors[:, HUE] * p.jitter)
    for share, chosen in slots[len(kinds) :]:
        x = _blend(x, share, chosen, kinds)
    return x


def _slots(p: Parameters, kinds: list[int], hue: bool) -> list[tuple[Tensor, Tensor]]:
    """Return for each slot the base's share of the blend and which of `kinds` is applied.

    The slot of a blend is the number of blends before it; with hue there are as many slots again
    after that. Shares are (n, 1, 1), 0 in an unused slot; choices are 0 or 1,
    (n, len(kinds), 1, 1).
    """
    turn = torch.stack([p.turn[:, k] for k in kinds], dim=1)
    slot = (turn[:, None, :] < turn[:, :, None]).sum(dim=2)
    if hue:
        slot = slot + len(kinds) * (turn > p.turn[:, HUE:])
    chosen = slot[:, :, None] == torch.arange(len(kinds) * (1 + hue), device=slot.device)
    share = torch.stack([1 - p.factors[:, k] for k in kinds], dim=1) * p.jitter[:, None]
    shares = (share[:, :, None] * chosen).sum(dim=1)[..., None, None]
    choices = chosen[..., None, None].to(share.dtype)
    return list(zip(shares.unbind(dim=1), choices.unbind(dim=2), strict=True))


def _blend(x: Tensor, share: Tensor, chosen: Tensor, kinds: list[int]) -> Tensor:
    """Return (1 - share) x + share base, clamped; base is black, mean grey or grey, as chosen."""
    if kinds == [BRIGHTNESS]:
        return x.mul_(1 - share).clamp_(0, 1)
    light = luminance(x)
    base = light.mean(dim=(1, 2), keepdim=True)
    if CONTRAST in kinds:
        base = base * chosen[:, kinds.index(CONTRAST)]
    else:
        base = torch.zeros_like(base)
    if SATURATION in kinds:
        base = light.mul_(chosen[:, kinds.index(SATURATION)]).add_(base)
    return x.lerp_(base.expand_as(x), share).clamp_(0, 1)


def luminance(x: Tensor) -> Tensor:
    """Return the grey version (n, 1, pixels) of RGB; return other images unchanged."""
    if x.shape[1] != 3:
        return x
    return x[:, :1].mul(0.2989).add_(x[:, 1:2], alpha=0.587).add_(x[:, 2:], alpha=0.114)


def turn_hue(x: Tensor, turns: Tensor) -> Tensor:
    """Rotate the hue of RGB (n, 3, pixels) by `turns` (n,), from -0.5 to 0.5 of the wheel.

    This is HSV without its divisions and branches. With chroma c = max - min, and angles in sixths
    of the wheel times c, the distance of a colour from yellow is 2c + b + min - r - g, towards
    green where g > r. A channel is max + c - (distance from its peak), clamped to min..max; and two
    points that differ by |y| <= 12 on a wheel of six are 3 - | ||y| - 6| - 3 | apart.
    """
    r = x[:, :1]
    g = x[:, 1:2]
    b = x[:, 2:]
    high = x.amax(dim=1, keepdim=True)
    low = x.amin(dim=1, keepdim=True)
    c = high - low
    angle = torch.copysign((high + c).add_(b).sub_(r).sub_(g), g - r)
    # Positions of red, green and blue relative to yellow.
    peaks = 2 * torch.arange(3, device=x.device)[:, None] - 1
    away = torch.addcmul(angle, c, 6 * turns[:, None, None] - peaks)
    fold = away.abs_().sub_(6 * c).abs_().sub_(3 * c).abs_()
    return fold.add_(low - c).clamp_(low, high)


def grayscale(x: Tensor, gray: Tensor) -> Tensor:
    """Make the RGB images selected by `gray` (n,) grey in all three channels."""
    return x.lerp_(luminance(x).expand_as(x), gray[:, None, None].to(x.dtype))
