"""The contract of a self-supervised method: its parts, forward pass, loss and hook after a step.

A method is independent of federation. How it is stored and computed fast is in
core/state/resident_module.py.
"""

from __future__ import annotations

import contextlib
import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import new_class
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fedssl.core.batch import Batch, Constants, Encoded, Normalisation, Output
from fedssl.core.settings import LARGEST_VIEW, Registry, Settings
from fedssl.core.state.resident_module import ResidentModule
from fedssl.nets.adapters import AdapterSettings, add_adapters, share_frozen
from fedssl.nets.group_norm import Norm, use_norm
from fedssl.views import Augment, ViewGroup

__all__ = [
    "METHODS",
    "Batch",
    "Constants",
    "Encoded",
    "Method",
    "MethodSettings",
    "Normalisation",
    "Output",
]


class MethodSettings(Settings):
    """Settings of every method."""

    method: ClassVar[type[Method]]  # the class that these are settings of

    backbone: str = "resnet18"
    stem: str = "cifar"
    # normalisation layers of backbone and heads; group: no running statistics
    norm: Norm = "batch"
    augment: Augment = Augment()
    view_size: int | None = Field(None, gt=0, le=LARGEST_VIEW)  # None: the images' own size
    init: Path | None = None  # a safetensors file to start the backbone from
    # train low-rank adapters of the backbone of `init` instead of its weights; none: all weights
    adapters: AdapterSettings | None = None

    def make(self, backbone: nn.Module, size: int) -> Method:
        """Return the method for images of `size` pixels a side, with the chosen kind of norm.

        With adapters, the backbone is frozen as it is now, and receives them.
        """
        if self.adapters is not None:
            add_adapters(backbone, self.adapters)
        method = self.method(self, backbone, size)
        use_norm(method, self.norm)
        return method

    def build(
        self,
        backbone: nn.Module,
        size: int,
        device: torch.device | str = "cpu",
        normalisation: Normalisation | None = None,
    ) -> Method:
        """Return the method for images of `size` pixels a side, resident on a device."""
        method = self.make(backbone, size)
        if normalisation is not None:
            method.mean = torch.tensor(normalisation.mean, device=device)
            method.std = torch.tensor(normalisation.std, device=device)
        method.reside(device)
        if self.adapters is not None:
            method.share_frozen(method.backbone)
        return method


class Method(ResidentModule, ABC):
    """A model with its loss; a subclass defines its parts, `forward` and `loss`.

    Parts are child modules, named by role: backbone, projector, and optionally predictor, target,
    queue and others. `settings` are the values under [method], an instance of the class attribute
    `Settings`, `size` is the side of the images in pixels, and `features` the width of the
    backbone's output. Trainable parts come first and momentum copies after them, so that the
    parameters that an optimizer moves are one slice of the flat row. `target` mirrors the parts
    named in `mirrored`, in the same order.
    """

    Settings: ClassVar[type[MethodSettings]] = MethodSettings
    private: ClassVar[tuple[str, ...]] = ()  # parts that are never uploaded
    mirrored: ClassVar[tuple[str, ...]] = ("backbone", "projector")
    learns_from_labels: ClassVar[bool] = False
    classifies: ClassVar[bool] = False  # True: projections are logits of the labels' classes
    # False: `after_step` changes no weights, or only by `move_target`.
    after_step_moves_weights: ClassVar[bool] = True

    backbone: nn.Module
    projector: nn.Module
    predictor: nn.Module
    target: nn.ModuleDict
    mean: Tensor | None = None  # (C,), as `Normalisation`; None: pixels stay in 0…1
    std: Tensor | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "Settings" not in vars(cls) or "method" in vars(cls.Settings):
            # Settings identify their method, so a subclass must not share those of its parent.
            cls.Settings = new_class(f"{cls.__name__}Settings", (cls.Settings,))
        cls.Settings.method = cls

    def __init__(self, settings: MethodSettings, backbone: nn.Module, size: int) -> None:
        super().__init__()
        self.settings = settings
        self.backbone = backbone
        self.size = size  # of the images, in pixels
        self.features: int = backbone.dim  # type: ignore[assignment]

    # -- parts --

    @property
    def provides(self) -> frozenset[str]:
        """Parts of this instance: an ablation without predictor does not provide one."""
        return frozenset(name for name, _ in self.named_children())

    @property
    def online(self) -> tuple[str, ...]:
        """Parts that are trained and uploaded."""
        local = (*self.private, "target")
        return tuple(name for name, _ in self.named_children() if name not in local)

    @property
    def trained(self) -> tuple[str, ...]:
        """Parts that an optimizer moves: those online and, in an ablation, a trained target."""
        return self.online

    @property
    def persistent_parts(self) -> tuple[str, ...]:
        """Parts that stay at a client between rounds.

        `init_local_parts` initialises those that a client does not have yet.
        """
        return tuple(part for part in ("target", *self.private) if part in self._modules)

    @property
    def target_momentum(self) -> float | None:
        """The share of the target that stays after each step, the same in all steps.

        None: there is no target, or the method moves it in `after_step`.
        """
        return None

    def mirror(self) -> nn.ModuleDict:
        """Return a momentum copy of the mirrored parts.

        Call it after these are built, and make it the last child.
        """
        copies = {part: copy.deepcopy(getattr(self, part)) for part in self.mirrored}
        return nn.ModuleDict(copies).requires_grad_("target" in self.trained)

    def share_frozen(self, source: nn.Module) -> None:
        """Use the frozen weights of `source`, an equal backbone on the same device, if it has any.

        The momentum copy uses them too.
        """
        share_frozen(source, self.backbone)
        if "target" in self._modules and "backbone" in self.mirrored:
            share_frozen(source, self.target["backbone"])

    @torch.no_grad()
    def init_local_parts(self, generator: torch.Generator) -> None:
        """Start the local parts: the target as a copy of the online network, a queue at random."""
        if "target" in self._modules:
            self.state.load(self.state.pick(self.mirrored).with_prefix("target"))

    # -- inputs --

    @property
    def views(self) -> tuple[ViewGroup, ...]:
        """Groups of augmented views that a batch contains."""
        return (ViewGroup(2, self.settings.view_size or self.size, self.settings.augment),)

    def clean(self, images: Tensor) -> Tensor:
        """Return uint8 images (n, C, H, W) as input without augmentation: float, normalised."""
        x = images.float() / 255
        if self.mean is None or self.std is None:
            return x
        return (x - self.mean[:, None, None]) / self.std[:, None, None]

    def draw(self, n: int, generator: torch.Generator) -> Mapping[str, Tensor]:
        """Return random numbers for one step of n images; they arrive in `batch.draws`."""
        return {}

    def client_warning(self, images: int) -> str | None:
        """Return a clause about a client for which this method is unsuitable, or None.

        `images` is the number of images that the client passes in a round, each counted once per
        epoch. Called once, for a typical client, before training.
        """
        return None

    def check_labels(self, labels: Tensor) -> None:
        """Raise an error for labels (n,) that this method cannot learn from.

        Called once before a client trains, if the method learns from labels; a step does not check
        them.
        """

    # -- networks --

    def encode(self, images: Tensor, groups: int = 1, tracked: bool = True) -> Encoded:
        """Return h, z and p of images (n, C, h, w), in float32.

        BatchNorm statistics are computed per group of n/groups images, as if each group passed
        alone: two views in one pass must not share their statistics. If not `tracked`, running
        statistics do not change.
        """
        self._set_groups(groups)
        if self.training and tracked:
            self.uncounted_batches += groups
        statistics = contextlib.nullcontext() if tracked else self._untracked()
        with self._autocast(images), self._compute_weights(), statistics:
            h = self.backbone(images)
            z = self.projector(h) if "projector" in self._modules else h
            p = self.predictor(z) if "predictor" in self._modules else z
        return Encoded(h.float(), z.float(), p.float())

    def encode_target(self, images: Tensor, groups: int = 1) -> Tensor:
        """Return projections (n, k) of the momentum copy, without gradients unless it trains."""
        self._set_groups(groups)
        gradients = "target" in self.trained and torch.is_grad_enabled()
        with torch.set_grad_enabled(gradients), self._autocast(images):
            z: Tensor = self.target["projector"](self.target["backbone"](images))
        return z.float()

    def encode_views(self, views: Tensor, shared: bool = False) -> Output:
        """Return h, z and p of views (V, B, C, h, w), by view, in one pass.

        With `shared`, BatchNorm computes its statistics over all views as one batch.
        """
        count, n = views.shape[:2]
        groups = 1 if shared else count
        encoded = self.encode(views.flatten(0, 1), groups=groups)
        return Output(*(tensor.view(count, n, -1) for tensor in encoded))

    def encode_views_target(self, views: Tensor) -> Tensor:
        """Return the momentum copy's projections (V, B, k) of views (V, B, C, h, w)."""
        z = self.encode_target(views.flatten(0, 1), groups=len(views))
        return z.view(*views.shape[:2], -1)

    # -- training --

    @abstractmethod
    def forward(self, batch: Batch) -> Output:
        """Return the output for a batch."""

    @abstractmethod
    def loss(self, out: Output, constants: Constants) -> Tensor:
        """Return the loss of an output, 0-d."""

    def chance_loss(self, batch: int) -> float | None:
        """Return the loss of random guessing for a batch of this many images.

        A run warns if its loss stays near it. None if there is no such level.
        """
        return None

    def after_step(self, out: Output) -> None:
        """Update a queue, or weights of unit length, after the optimizer and the target.

        Called under no_grad.
        """

    def before_epoch(self, embed: Callable[[], Tensor]) -> Mapping[str, Tensor]:
        """Return tensors for `constants` from this epoch on, such as cluster assignments.

        `embed()` returns the features (n, d) of all the client's clean images under the current
        model.
        """
        return {}


METHODS: Registry[Method] = Registry("method", "fedssl.methods", modules=["fedssl.methods"])
"""The methods by name, for `[method]`: `@METHODS.register("mine")` adds one."""
