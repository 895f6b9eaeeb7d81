"""Random views of images, computed in batches: uniforms -> `parameters` -> `apply`.

Except for `draw`, no function here draws random numbers, synchronizes with the device or has a
shape that depends on data, so views can be compiled and captured together with the training step.
Each operation equals torchvision's on float images.
"""

from fedssl.views.augment import Augment, ViewGroup
from fedssl.views.draws import COLUMNS, Parameters, draw, parameters
from fedssl.views.pipeline import apply, make_views

__all__ = [
    "COLUMNS",
    "Augment",
    "Parameters",
    "ViewGroup",
    "apply",
    "draw",
    "make_views",
    "parameters",
]
