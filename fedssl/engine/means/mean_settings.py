"""The contract of a mean, `[mean]`, and the weighted mean, which is the default."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from fedssl.algorithm import Averaging
from fedssl.core.settings import Registry, Settings
from fedssl.core.state.mean import Mean

MAX_UPLOADS = 10_000  # up to which the fewest uploads of a mean are searched


class MeanSettings(Settings, ABC):
    """Settings of a mean. Fields of a subclass are keys under [mean].

    An algorithm starts a mean for each model that it averages, by `start`.
    """

    # True: uploads must be known one by one; their sum is not enough. True is always safe.
    needs_all_uploads: ClassVar[bool] = True

    def shortage(self, uploads: int) -> str | None:
        """Return why this many uploads are too few for a mean; None if they are enough."""
        return None

    @property
    def fewest_uploads(self) -> int:
        """The smallest number of uploads that is enough; a server waits for that many clients."""
        uploads = 1
        while uploads < MAX_UPLOADS and self.shortage(uploads) is not None:
            uploads += 1
        return uploads

    @abstractmethod
    def start(self) -> Averaging:
        """Return a new mean without models.

        Its `result` raises TooFewUploadsError if too few models were added.
        """


MEANS: Registry[MeanSettings] = Registry(
    "mean",
    "fedssl.means",
    modules=[
        "fedssl.engine.means.median",
        "fedssl.engine.means.trimmed_mean",
        "fedssl.engine.means.krum",
    ],
)
"""The means by name, for `[mean]`: `@MEANS.register("mine")` adds one."""


@MEANS.register("weighted")
class WeightedMean(MeanSettings):
    """The mean of all uploads with the weights of the algorithm and the topology."""

    needs_all_uploads: ClassVar[bool] = False

    def start(self) -> Averaging:
        """Return a running sum."""
        return Mean()
