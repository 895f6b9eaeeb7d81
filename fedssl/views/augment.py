"""Settings of the random operations that turn an image into a view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from fedssl.core.errors import ConfigError
from fedssl.core.settings import Settings
from fedssl.views.presets import preset_settings

Probability = Annotated[float, Field(ge=0, le=1)]
Strength = Annotated[float, Field(ge=0)]
Range = tuple[float, float]


class Augment(Settings):
    """One family of views; the defaults are SimCLR's for small images, without blur.

    Operations come in torchvision's order: crop and resize, flip, colour jitter, grayscale, blur.
    A preset's name, alone or as `preset` with other settings, stands for the settings of that
    preset. It is replaced by them, so an experiment always shows the values themselves.
    """

    crop: Range = (0.08, 1.0)  # share of the image's area
    ratio: Range = (3 / 4, 4 / 3)  # width : height of the crop
    flip: Probability = 0.5
    jitter: tuple[Strength, Strength, Strength, Annotated[float, Field(ge=0, le=0.5)]] = (
        0.8,
        0.8,
        0.8,
        0.2,
    )
    jitter_p: Probability = 0.8
    gray: Probability = 0.2
    blur: Probability = 0.0
    blur_kernel: Annotated[int, Field(ge=1)] | None = None  # None: about a tenth of the side
    blur_sigma: Range = (0.1, 2.0)

    @model_validator(mode="before")
    @classmethod
    def _expand_preset(cls, values: Any) -> Any:
        if isinstance(values, str):
            return dict(preset_settings(values))
        if not isinstance(values, Mapping) or "preset" not in values:
            return values
        own = {key: value for key, value in values.items() if key != "preset"}
        return {**preset_settings(values["preset"]), **own}

    @field_validator("crop", "ratio", "blur_sigma")
    @classmethod
    def _check_ascending(cls, value: Range) -> Range:
        if not 0 < value[0] <= value[1]:
            raise ValueError("must be two positive numbers, the smaller first")
        return value

    @field_validator("crop")
    @classmethod
    def _check_at_most_one(cls, value: Range) -> Range:
        if value[1] > 1:
            raise ValueError("must be at most 1.0, the whole image")
        return value

    @field_validator("blur_kernel")
    @classmethod
    def _check_odd(cls, value: int | None) -> int | None:
        if value is not None and value % 2 == 0:
            raise ValueError("must be an odd number of pixels")
        return value

    def kernel(self, size: int) -> int:
        """Return the width of the blur kernel in pixels, for views of this side.

        It is odd, and 23 for a side of 224 as in SimCLR.
        """
        return self.blur_kernel or max(3, size // 10 | 1)


@dataclass(frozen=True, slots=True)
class ViewGroup:
    """`count` views of each image, `size` pixels a side, all of one family."""

    count: int  # views of each image
    size: int  # pixels a side
    augment: Augment  # settings of the random augmentation

    def __post_init__(self) -> None:
        if self.count < 1 or self.size < 1:
            raise ConfigError(
                "a view group needs at least one view of at least one pixel "
                f"(got {self.count} views of {self.size} pixels a side)"
            )
        if self.augment.blur and self.augment.kernel(self.size) // 2 >= self.size:
            raise ConfigError(
                f"a blur kernel of {self.augment.kernel(self.size)} pixels is too wide for views "
                f"of {self.size} pixels a side: lower augment.blur_kernel, or use larger images"
            )
