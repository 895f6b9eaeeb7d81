"""A step with a bfloat16 copy of its weights, against the plain one that casts layer by layer."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from error_messages import raises
from factories import make_trainer, random_pixels
from torch import Tensor

from fedssl.core.errors import ConfigError
from fedssl.core.state.flatten import Bf16Copy
from fedssl.method import METHODS, Batch, Constants, Method, Output
from fedssl.methods import BYOL
from fedssl.training.optimizers import FusedSGD
from fedssl.training.trainer import Trainer, TrainingTask, TrainSettings, resolve_mode

MakeTrainer = Callable[..., Trainer]


def plain(method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
    return method.loss(out, constants)


def pulled(method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
    """An objective with a term in the weights, like FedProx."""
    pull = sum(
        (p - 0.5).square().sum() for n, p in method.named_parameters() if n.startswith("backbone")
    )
    return method.loss(out, constants) + 0.01 * pull


def aligned(method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
    """An objective with an extra pass over clean images, like FeatARC."""
    return (
        method.loss(out, constants)
        + method.encode(method.clean(batch.images), tracked=False).h.square().mean()
    )


def train(trainer: Trainer, pixels: Tensor, objective: Any = plain, lr: float = 0.05) -> Tensor:
    labels = torch.arange(len(pixels)) % 5
    task = TrainingTask(
        pixels, labels, torch.Generator().manual_seed(1), lr, 0.0, threading.Event()
    )
    trainer.fit(task, objective, {})
    return trainer.method.state.floats


@pytest.fixture
def bf16_trainer(monkeypatch: pytest.MonkeyPatch) -> MakeTrainer:
    """Return a factory of trainers in mode compiled, without compilation."""

    def make(name: str = "byol", **settings: Any) -> Trainer:
        monkeypatch.setattr(torch, "compile", lambda function, **how: function)
        monkeypatch.setattr("fedssl.core.kernels.shutil.which", lambda program: program)
        return make_trainer(
            name, {"mode": "compiled", "precision": "bf16", "epochs": 2}, **settings
        )

    return make


@pytest.mark.parametrize("objective", [plain, pulled])
@pytest.mark.parametrize("name", METHODS.names())
def test_casting_a_row_equals_casting_each_layer(
    name: str, objective: Any, bf16_trainer: MakeTrainer
) -> None:
    ours = train(bf16_trainer(name), random_pixels(32), objective)
    theirs = train(
        make_trainer(name, {"mode": "eager", "precision": "bf16", "epochs": 2}),
        random_pixels(32),
        objective,
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.fixture
def fused(
    bf16_trainer: MakeTrainer, plain_kernel: list[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Trainer]:
    """fused(large, name): return a trainer of `bf16_trainer` with CUDA's optimizer; gradients with
    more than `large` numbers are separate tensors.
    """

    def make(large: int, name: str = "byol", **settings: Any) -> Trainer:
        with monkeypatch.context() as only_now:
            only_now.setattr("fedssl.training.optimizer_choice.SGD", FusedSGD)
            trainer = bf16_trainer(name, **settings)
        monkeypatch.setattr(FusedSGD, "min_separate_size", large)
        monkeypatch.setattr(
            trainer.method, "move_target", lambda momentum: pytest.fail("it was moved already")
        )
        return trainer

    return make


def low(trainer: Trainer) -> Tensor:
    """Return the bfloat16 copy of the target's weights."""
    copy = trainer.step._bf16_copy
    assert copy is not None
    return copy.slice_of(trainer.method.parameter_row(("target",)))


@pytest.mark.parametrize("name", METHODS.names())
def test_an_extra_pass_of_the_objective(name: str, bf16_trainer: MakeTrainer) -> None:
    """In two steps, gradients of both passes are added in bfloat16 with the copy, else in float32.

    On a CPU without bfloat16 instructions the updates differ by 0.01 to 1.4% (VICReg). Without the
    extra pass they differ by 2.4% (VICReg) to 77%, so that the bound of 2% detects its absence.
    """
    settings = {"mode": "eager", "precision": "bf16", "epochs": 2}
    ours = bf16_trainer(name)
    theirs = make_trainer(name, settings)
    start = ours.method.state.floats.clone()
    ours, theirs = (train(trainer, random_pixels(8), aligned) - start for trainer in (ours, theirs))
    assert (ours - theirs).norm() < 0.02 * theirs.norm()


def test_an_extra_pass_of_the_objective_uses_the_copy(bf16_trainer: MakeTrainer) -> None:
    trainer = bf16_trainer()
    seen = set()
    trainer.method.projector.register_forward_pre_hook(
        lambda module, _: seen.add(module[0].weight.dtype)
    )
    train(trainer, random_pixels(32), aligned)
    assert seen == {torch.bfloat16}
    trainer.embed(random_pixels(4), "z")
    assert seen == {torch.bfloat16, torch.float32}


@pytest.mark.parametrize("objective", [plain, pulled])
@pytest.mark.parametrize("large", [1, 100, 10**9])
@pytest.mark.parametrize("name", ["byol", "mocov2"])
def test_one_fused_pass_updates_all(
    name: str,
    large: int,
    objective: Any,
    fused: MakeTrainer,
    bf16_trainer: MakeTrainer,
    plain_kernel: list[torch.dtype],
) -> None:
    """For any set of separate gradients, weights, target and copy equal those of separate updates,
    also with a client smaller than a batch, which trains in plain torch, in between.
    """
    ours = fused(large, name, momentum=0.7)
    theirs = bf16_trainer(name, momentum=0.7)
    for n in (16, 5, 24):
        before = theirs.method.parameter_row(("target",)).clone()
        expected = train(theirs, random_pixels(n), objective)
        assert torch.equal(train(ours, random_pixels(n), objective), expected)
        target = ours.method.parameter_row(("target",))
        assert (target - before).abs().mean() > 1e-4
        assert torch.equal(low(ours), target.bfloat16())
        assert torch.equal(low(ours), low(theirs))
    assert (torch.bfloat16 in plain_kernel) == (large < 10**9)


def test_a_method_may_move_its_target_itself(
    bf16_trainer: MakeTrainer, plain_kernel: list[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As BYOL would, but in `after_step`: the same bits with either optimizer."""
    expected = train(bf16_trainer(), random_pixels(32)).clone()
    monkeypatch.setattr(BYOL, "target_momentum", None)
    monkeypatch.setattr(
        BYOL, "after_step", lambda self, out: self.move_target(self.settings.momentum)
    )
    for moves in (True, False):
        monkeypatch.setattr(BYOL, "after_step_moves_weights", moves)
        assert torch.equal(train(bf16_trainer(), random_pixels(32)), expected)
        with monkeypatch.context() as only_now:
            only_now.setattr("fedssl.training.optimizer_choice.SGD", FusedSGD)
            assert torch.equal(train(bf16_trainer(), random_pixels(32)), expected)


class Headed(BYOL):
    """BYOL whose target is a copy of the projector only, which is not at the start of the row."""

    Settings = type("HeadedSettings", (BYOL.Settings,), {})
    mirrored = ("projector",)

    @torch.no_grad()
    def encode_target(self, images: Tensor, groups: int = 1) -> Tensor:
        self._set_groups(groups)
        with self._autocast(images):
            z: Tensor = self.target["projector"](self.backbone(images))
        return z.float()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_target_that_follows_a_part_in_the_middle(
    precision: str, plain_kernel: list[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each step the target moves by 0.3 of its distance to the projector."""
    monkeypatch.setattr(torch, "compile", lambda function, **how: function)
    monkeypatch.setattr("fedssl.core.kernels.shutil.which", lambda program: program)
    monkeypatch.setattr("fedssl.training.optimizer_choice.SGD", FusedSGD)
    method = Headed.Settings(hidden=6, dim=5, momentum=0.7).build(make_trainer().method.backbone, 8)
    trainer = Trainer(method, TrainSettings(batch=8, mode="compiled", precision=precision))
    target, online = (method.parameter_row((part,)) for part in ("target", "projector"))
    for seed in range(3):
        before = target.clone()
        train(trainer, random_pixels(8, seed))
        assert (target - before).abs().mean() > 1e-4
        torch.testing.assert_close(target, 0.7 * before + 0.3 * online)


def by_name(method: Method) -> None:
    weight = method.projector[0].weight  # type: ignore[index]
    weight.div_(weight.norm(dim=1, keepdim=True))


def by_data(method: Method) -> None:
    weight = method.projector[0].weight.data  # type: ignore[index]
    weight.div_(weight.norm(dim=1, keepdim=True))


def by_row(method: Method) -> None:
    method.parameter_row(("projector",)).mul_(0.7)


@pytest.mark.parametrize("rule", [by_name, by_data, by_row])
def test_changes_by_after_step_reach_the_copy(
    rule: Callable[[Method], None], bf16_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next step computes with the weights that `after_step` has set."""
    monkeypatch.setattr(BYOL, "after_step", lambda self, out: rule(self))
    ours = train(bf16_trainer(), random_pixels(32))
    theirs = train(
        make_trainer("byol", {"mode": "eager", "precision": "bf16", "epochs": 2}), random_pixels(32)
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "times"),
    [("byol", 0), ("mocov2", 0), ("dino", 0), ("simclr", 0), ("deepcluster", 0), ("swav", 1)],
)
def test_the_copy_is_refreshed_only_if_weights_may_have_changed(
    name: str, times: int, bf16_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once an epoch for every method, and after each step for a method with `after_step`."""
    trainer = bf16_trainer(name)
    made = []
    monkeypatch.setattr(Bf16Copy, "refresh", lambda self: made.append(self))
    train(trainer, random_pixels(32))
    assert len(made) == 2 + 8 * times


def test_a_loaded_client_replaces_the_one_before(bf16_trainer: MakeTrainer) -> None:
    """The second of two clients trains as if it were the first."""
    alone = bf16_trainer()
    second = bf16_trainer()
    start = alone.method.state.clone()
    train(second, random_pixels(32, seed=3))
    second.method.state.load(start)
    assert torch.equal(train(alone, random_pixels(32)), train(second, random_pixels(32)))


def test_nothing_is_compiled_for_a_small_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with fewer images than a batch trains in mode eager, also between others."""
    compiled: list[Any] = []

    def spy(function: Any, **how: Any) -> Any:
        return lambda *constants: compiled.append(function) or function(*constants)

    monkeypatch.setattr(torch, "compile", spy)
    monkeypatch.setattr("fedssl.core.kernels.shutil.which", lambda program: program)
    ours, theirs = (
        make_trainer("byol", {"mode": mode, "precision": "bf16"}) for mode in ("compiled", "eager")
    )
    for n, expected in ((5, 0), (16, 4), (3, 0), (8, 2)):
        compiled.clear()
        torch.testing.assert_close(
            train(ours, random_pixels(n)), train(theirs, random_pixels(n)), rtol=0, atol=1e-6
        )
        assert len(compiled) == expected  # views and loss of each step


def test_a_parameter_without_a_gradient_only_decays() -> None:
    def blind(method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
        return out.h.square().mean()

    trainer = make_trainer("byol", {"weight_decay": 0.0})
    before = trainer.method.state.clone()
    train(trainer, random_pixels(16), blind)
    after = trainer.method.state
    assert torch.equal(
        after.pick(("projector",), ("weight",)).floats,
        before.pick(("projector",), ("weight",)).floats,
    )
    assert not torch.equal(
        after.pick(("backbone",), ("weight",)).floats,
        before.pick(("backbone",), ("weight",)).floats,
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of what torch itself does
@pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch compiles for a CPU with a C++ compiler"
)
@pytest.mark.parametrize("name", METHODS.names())
def test_compiled_equals_eager_on_a_cpu(name: str) -> None:
    """The learning rate is low: a higher one magnifies rounding errors a hundredfold with VICReg,
    whose loss is large.
    """
    ours, theirs = (
        train(make_trainer(name, {"mode": mode}), random_pixels(32), lr=0.01)
        for mode in ("compiled", "eager")
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_impossible_modes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    cuda = torch.device("cuda")
    assert resolve_mode("auto", cpu) == "eager"
    assert resolve_mode("auto", cuda) == "captured"
    with raises(ConfigError):
        resolve_mode("captured", cpu)
    monkeypatch.setattr("fedssl.core.kernels.shutil.which", lambda program: None)
    with raises(ConfigError):
        resolve_mode("compiled", cpu)
