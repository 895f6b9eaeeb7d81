"""95% intervals of accuracies and of their differences on the same test images.

An interval answers: how far could the figure be off because the test images are a sample? The
models are taken as fixed: the spread over seeds is another source of error.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

Z = 1.959963984540054  # the 97.5% quantile of the normal distribution


class Interval(NamedTuple):
    """An estimate in percentage points, with the ends of its 95% interval."""

    estimate: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """True if the whole interval is on one side of zero."""
        return self.low > 0 or self.high < 0


def accuracy_interval(correct: Tensor) -> Interval:
    """Return the accuracy with Wilson's score interval.

    `correct` (n,) is 1 for an image classified correctly, or the share of models that do so.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", Journal of
    the American Statistical Association 22, 1927. Unlike the textbook interval it covers also for
    few images and for accuracies near 0 or 100%.
    """
    n = len(correct)
    share = float(correct.double().mean())
    centre = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    spread = math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    margin = Z * spread / (1 + Z**2 / n)
    low = max(0.0, centre - margin)
    high = min(1.0, centre + margin)
    return Interval(100 * share, 100 * low, 100 * high)


def difference_interval(first: Tensor, second: Tensor) -> Interval:
    """Return the accuracy of the first minus that of the second, on the same test images.

    Both are (n,): 1 for an image classified correctly, or the share of models that do so. Pairing
    matters: two models that fail on the same images differ by less than two independent samples.

    This is Bonett and Price's interval, "Adjusted Wald confidence interval for a difference of
    binomial proportions based on paired data", Journal of Educational and Behavioral Statistics 37,
    2012: the normal interval after adding two images, on one of which only the first is right and
    on the other only the second.
    """
    differences = first.double() - second.double()
    n = len(differences)
    centre = float(differences.sum()) / (n + 2)
    square = (float(differences.square().sum()) + 2) / (n + 2)
    margin = Z * math.sqrt(max(0.0, square - centre**2) / (n + 2))
    low = max(-1.0, centre - margin)
    high = min(1.0, centre + margin)
    return Interval(100 * float(differences.mean()), 100 * low, 100 * high)
