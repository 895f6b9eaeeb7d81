"""What a self-supervised method is: how one batch teaches one model. It knows nothing of federation."""

from __future__ import annotations

import contextlib
import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import new_class
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedssl.batch import Batch, Encoded, Given, Normalisation, Output
from fedssl.layout import PARAMETERS
from fedssl.resident import Shadow, settle
from fedssl.settings import LARGEST_VIEW, Registry, Settings
from fedssl.tree import State
from fedssl.views import Augment, ViewGroup

__all__ = ["METHODS", "Batch", "Encoded", "Given", "Method", "MethodSettings", "Normalisation", "Output"]


class MethodSettings(Settings):
    """What every method lets a user choose."""

    method: ClassVar[type[Method]]  # whose settings these are

    backbone: str = "resnet18"
    stem: str = "cifar"
    augment: Augment = Augment()
    view_size: int | None = Field(None, gt=0, le=LARGEST_VIEW)  # None: the images' own size
    init: Path | None = None  # a safetensors file to start the backbone from

    def build(
        self,
        backbone: nn.Module,
        size: int,
        device: torch.device | str = "cpu",
        normalisation: Normalisation | None = None,
    ) -> Method:
        """The method itself for images of `size` pixels a side, resident on a device."""
        method = self.method(self, backbone, size)
        if normalisation is not None:
            method.mean, method.std = (torch.tensor(v, device=device) for v in normalisation)
        return method.reside(device)


class Method(nn.Module, ABC):
    """Children by role: backbone, projector, [predictor, target, queue …]; a child's name is its part.

    Trainable parts come first and momentum copies after them, so that parameters an optimizer moves are one slice
    of the flat row. `target` mirrors the parts named in `mirrored`, in the same order.
    """

    Settings: ClassVar[type[MethodSettings]] = MethodSettings
    private: ClassVar[tuple[str, ...]] = ()  # parts that never travel
    mirrored: ClassVar[tuple[str, ...]] = ("backbone", "projector")
    learns_from_labels: ClassVar[bool] = False
    classifies: ClassVar[bool] = False  # projections are logits of the labels' classes
    after_step_moves_weights: ClassVar[bool] = True  # False: one's own changes none, or only by `move_target`

    backbone: nn.Module
    projector: nn.Module
    predictor: nn.Module
    target: nn.ModuleDict
    state: State
    mean: Tensor | None = None  # (C,), as `Normalisation`; None: pixels stay in 0…1
    std: Tensor | None = None
    precision: str = "fp32"
    compiled: bool = False  # see `compile_with`
    fused: bool = False
    _target_low: Tensor | None = None
    _shadow: Shadow | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "Settings" not in vars(cls) or "method" in vars(cls.Settings):
            # Another method's: it gets some of its own, for it is by their settings that methods are told apart.
            cls.Settings = new_class(f"{cls.__name__}Settings", (cls.Settings,))
        cls.Settings.method = cls

    def __init__(self, settings: MethodSettings, backbone: nn.Module, size: int) -> None:
        super().__init__()
        self.settings = settings
        self.backbone = backbone
        self.size = size  # of the images, in pixels
        self.features: int = backbone.dim  # type: ignore[assignment]
        self.passed = 0  # batches since the last step, for the norm layers' counters

    @property
    def views(self) -> tuple[ViewGroup, ...]:
        return (ViewGroup(2, self.settings.view_size or self.size, self.settings.augment),)

    @property
    def provides(self) -> frozenset[str]:
        """What an algorithm may ask of this very instance: an ablation without predictor does not provide one."""
        return frozenset(name for name, _ in self.named_children())

    @property
    def target_momentum(self) -> float | None:
        """The share by which the target stays as it is after each step, the same in all steps; None: there is no
        target, or the method moves it itself."""
        return None

    def clean(self, images: Tensor) -> Tensor:
        """uint8 images (n, C, H, W) as an input without augmentation: float, normalised."""
        x = images.float() / 255
        return x if self.mean is None or self.std is None else (x - self.mean[:, None, None]) / self.std[:, None, None]

    def draw(self, n: int, generator: torch.Generator) -> Mapping[str, Tensor]:
        return {}

    def caution(self, images: int) -> str | None:
        """What a user should know before a client trains that passes so many images in a round, each counted once an
        epoch: a clause about that client, or None. Asked once, about a usual client."""
        return None

    def check_labels(self, labels: Tensor) -> None:
        """Refuse labels (n,) of a client's images that this method cannot learn from: a step has no time to look.
        Called before a client trains, where the method learns from labels."""

    def encode(self, images: Tensor, groups: int = 1, tracked: bool = True) -> Encoded:
        """(n, C, h, w) → h, z, p in float32. BatchNorm statistics are taken per group of n/groups images, as if each
        group had passed alone: two views in one pass must not share their statistics. Not `tracked`, running
        statistics stay as they are."""
        self._set_groups(groups)
        self.passed += groups if self.training and tracked else 0
        with self._autocast(images), self._worn(), contextlib.nullcontext() if tracked else self._untracked():
            h = self.backbone(images)
            z = self.projector(h) if "projector" in self._modules else h
            p = self.predictor(z) if "predictor" in self._modules else z
        return Encoded(h.float(), z.float(), p.float())

    def encode_target(self, images: Tensor, groups: int = 1) -> Tensor:
        """Projections (n, k) of the momentum copy, without gradients unless it trains."""
        self._set_groups(groups)
        with torch.set_grad_enabled("target" in self.trained and torch.is_grad_enabled()), self._autocast(images):
            z: Tensor = self.target["projector"](self.target["backbone"](images))
        return z.float()

    def encode_views(self, views: Tensor, shared: bool = False) -> Output:
        """(V, B, C, h, w) → h, z, p by view, in one pass; `shared`: BatchNorm sees all views as one batch."""
        count, n = views.shape[:2]
        encoded = self.encode(views.flatten(0, 1), groups=1 if shared else count)
        return Output(*(tensor.view(count, n, -1) for tensor in encoded))

    def encode_views_target(self, views: Tensor) -> Tensor:
        """(V, B, C, h, w) → the momentum copy's projections (V, B, k)."""
        return self.encode_target(views.flatten(0, 1), groups=len(views)).view(*views.shape[:2], -1)

    @abstractmethod
    def forward(self, batch: Batch) -> Output: ...

    @abstractmethod
    def loss(self, out: Output, given: Given) -> Tensor: ...

    def after_step(self, out: Output) -> None:
        """What follows the optimizer and the target's move: a queue, weights kept at unit length. Under no_grad."""

    def before_epoch(self, embed: Callable[[], Tensor]) -> Mapping[str, Tensor]:
        """Tensors that enter `given` from this epoch on, such as cluster assignments; `embed()` gives the features
        (n, d) of all the client's clean images under the model as it is now."""
        return {}

    @torch.no_grad()
    def fresh(self, generator: torch.Generator) -> None:
        """Start the parts a client keeps to itself: the target as a copy of the online network, a queue at random."""
        if "target" in self._modules:
            self.state.load(self.state.pick(self.mirrored).with_prefix("target"))

    def mirror(self) -> nn.ModuleDict:
        """A momentum copy of the mirrored parts; call it after they are built, last among the children."""
        target = nn.ModuleDict({part: copy.deepcopy(getattr(self, part)) for part in self.mirrored})
        return target.requires_grad_("target" in self.trained)

    def count_batch(self) -> None:
        """Advance every norm layer's batch counter at once, as each of them would have done alone."""
        self._counters.add_(self.passed)
        self.passed = 0

    @torch.no_grad()
    def move_target(self, momentum: float) -> None:
        """target ← momentum·target + (1 − momentum)·online, over parameters: one operation on the row."""
        if self.fused:
            from fedssl.kernels.update import lerp  # Triton is there only where CUDA is

            lerp(self._target_row, self._target_low, self._online_row, 1 - momentum)
            return
        self._target_row.lerp_(self._online_row, 1 - momentum)
        if self._target_low is not None:
            self._target_low.copy_(self._target_row)

    def reside(self, device: torch.device | str = "cpu") -> Method:
        """Lay all parameters and buffers into one State; modules keep views of its rows."""
        self.state = state = settle(self, device)
        counters = [e.name.endswith(".num_batches_tracked") for e in state.layout.entries if e.role == "counter"]
        if any(counters[sum(counters) :]):
            raise TypeError("a part with integers of its own comes before one with norm layers; it must come after")
        self._counters = state.counts[: sum(counters)]
        self._norms = [m for m in self.modules() if isinstance(m, _BatchNorm)]
        if any(not hasattr(norm, "groups") for norm in self._norms):
            raise TypeError("a backbone or head has torch's BatchNorm: fedssl.nets' is the one that knows views")
        if "target" in self._modules:
            self._online_row = self.parameter_row(self.mirrored)
            self._target_row = self.parameter_row(("target",))
        return self

    def parameter_row(self, parts: tuple[str, ...]) -> Tensor:
        """The parameters of neighbouring parts, as one live slice of the row. It carries no gradient: a term of a loss
        goes through `named_parameters()`."""
        layout = self.state.layout
        entries = [e for e in layout.entries if e.part in parts and e.role in PARAMETERS]
        start = layout.offsets[entries[0].name]
        end = layout.offsets[entries[-1].name] + entries[-1].size
        assert end - start == sum(e.size for e in entries), "the parts are not neighbours in the row"
        return self.state.floats[start:end]

    @property
    def online(self) -> tuple[str, ...]:
        """Parts that are trained and travel."""
        return tuple(name for name, child in self.named_children() if name not in (*self.private, "target"))

    @property
    def trained(self) -> tuple[str, ...]:
        """Parts an optimizer moves: those online and, in an ablation, a target that takes gradients."""
        return self.online

    @property
    def kept(self) -> tuple[str, ...]:
        """Parts a client keeps to itself between rounds; others it has not received start `fresh`."""
        return tuple(part for part in ("target", *self.private) if part in self._modules)

    def compile_with(self, loss: Callable[[Output, Given], Tensor] | None) -> None:
        """Train with this compiled loss and, on CUDA, with the kernels that layers have; None: in plain torch."""
        self.compiled = loss is not None
        self.__dict__.pop("loss", None)
        if loss is not None:
            self.__dict__["loss"] = loss  # before the class's own
        self.fuse(self.compiled and self.state.floats.is_cuda)

    def fuse(self, fused: bool) -> None:
        """Whether layers that have kernels of their own train with them."""
        for module in self.modules():
            if hasattr(module, "fused"):
                module.fused = fused  # type: ignore[assignment]

    def shadow(self) -> Shadow:
        """A bfloat16 copy of the weights; `move_target` keeps the target's part of it up to date."""
        self._shadow = shadow = Shadow(self, self.state)
        if "target" in self._modules:
            self._target_low = shadow.beside(self._target_row)
        return shadow

    def _worn(self) -> contextlib.AbstractContextManager[None]:
        """The copy, in a compiled step: an objective may encode something beside what `forward` has."""
        shadow = self._shadow if self.training and self.compiled else None
        return contextlib.nullcontext() if shadow is None else shadow.worn()

    @contextlib.contextmanager
    def _untracked(self) -> Iterator[None]:
        found = [norm.momentum for norm in self._norms]
        for norm in self._norms:
            norm.momentum = 0.0
        try:
            yield
        finally:
            for norm, momentum in zip(self._norms, found, strict=True):
                norm.momentum = momentum

    def _set_groups(self, groups: int) -> None:
        for norm in self._norms:
            norm.groups = groups  # type: ignore[assignment]

    def _autocast(self, images: Tensor) -> torch.autocast:
        return torch.autocast(images.device.type, torch.bfloat16, enabled=self.precision == "bf16")


METHODS: Registry[Method] = Registry("method", "fedssl.methods")
