"""Settings of client-level differential privacy."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from fedssl.core.settings import Settings

NOT_PER_IMAGE = (
    'only "client" is offered. Privacy per image (DP-SGD in a client) is not: the losses here '
    "compare the images of a batch with each other, so that there is no gradient of a single "
    "image to clip, and epsilon would be wrong"
)

LEAST_NOISE = 1e-6  # with less, epsilon exceeds the range of floats


class PrivacySettings(Settings):
    """Client-level differential privacy, off unless `clip` is set: see engine/privacy/merge.py.

    Either `noise`, or `epsilon` from which the noise is computed, or both: then training ends
    before the round that would exceed `epsilon`.
    """

    # What is protected: all of a client's images together.
    kind: Literal["client"] = "client"
    # The largest L2 norm of a client's update, over all that it uploads; none: no privacy.
    clip: float | None = Field(None, ge=1e-12, le=1e12)
    # The standard deviation of the noise on the sum of updates, in multiples of `clip`; 0: none,
    # and no guarantee; none: the least for which all rounds keep within `epsilon`.
    noise: float | None = Field(None, ge=0, le=1e4)
    # The budget, at `delta`: training ends before the round that would exceed it.
    epsilon: float | None = Field(None, gt=0)
    # The probability that ε does not cover; far below 1 / number of clients.
    delta: float = Field(1e-5, gt=0, lt=1)

    @field_validator("kind", mode="before")
    @classmethod
    def _only_clients(cls, kind: Any) -> Any:
        if kind != "client":
            raise ValueError(NOT_PER_IMAGE)
        return kind

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.clip is None:
            if self != type(self).model_construct():
                raise ValueError(
                    "set clip, the L2 norm to which larger updates of clients are clipped"
                )
        elif self.noise is None and self.epsilon is None:
            raise ValueError(
                "set noise (in multiples of clip), or epsilon, from which it is computed"
            )
        elif self.noise is not None and 0 < self.noise < LEAST_NOISE:
            raise ValueError(f"noise must be 0 or at least {LEAST_NOISE:g}")
        elif self.noise == 0 and self.epsilon is not None:
            raise ValueError("noise = 0 gives no finite epsilon: raise noise, or remove epsilon")
        return self

    @property
    def enabled(self) -> bool:
        """True if updates are clipped."""
        return self.clip is not None


NO_PRIVACY = PrivacySettings()
