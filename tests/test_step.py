"""A step with a bfloat16 copy of its weights, against the plain one that casts layer by layer."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedssl.errors import ConfigError
from fedssl.method import METHODS, Batch, Given, Method, Output
from fedssl.methods import BYOL
from fedssl.optim import FusedSGD
from fedssl.train import Task, Trainer, resolve_mode

MakeTrainer = Callable[..., Trainer]
Pixels = Callable[..., Tensor]


def plain(method: Method, batch: Batch, out: Output, given: Given) -> Tensor:
    return method.loss(out, given)


def pulled(method: Method, batch: Batch, out: Output, given: Given) -> Tensor:
    """With a term in the weights themselves, as FedProx has it."""
    pull = sum((p - 0.5).square().sum() for n, p in method.named_parameters() if n.startswith("backbone"))
    return method.loss(out, given) + 0.01 * pull


def train(trainer: Trainer, pixels: Tensor, objective: Any = plain, rate: float = 0.05) -> Tensor:
    labels = torch.arange(len(pixels)) % 5
    task = Task(pixels, labels, torch.Generator().manual_seed(1), rate, 0.0, threading.Event())
    trainer.fit(task, objective, {})
    return trainer.method.state.floats


@pytest.fixture
def shadowed(make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> MakeTrainer:
    """A trainer in mode compiled, without the compiling."""

    def make(name: str = "byol", **settings: Any) -> Trainer:
        monkeypatch.setattr(torch, "compile", lambda function, **how: function)
        monkeypatch.setattr("fedssl.kernels.shutil.which", lambda program: program)
        return make_trainer(name, {"mode": "compiled", "precision": "bf16", "epochs": 2}, **settings)

    return make


@pytest.mark.parametrize("objective", [plain, pulled])
@pytest.mark.parametrize("name", METHODS.names())
def test_one_cast_of_a_row_is_as_good_as_one_for_each_layer(
    name: str, objective: Any, shadowed: MakeTrainer, make_trainer: MakeTrainer, pixels: Pixels
) -> None:
    ours = train(shadowed(name), pixels(32), objective)
    theirs = train(make_trainer(name, {"mode": "eager", "precision": "bf16", "epochs": 2}), pixels(32), objective)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("objective", [plain, pulled])
@pytest.mark.parametrize("large", [1, 100, 10**9])
def test_gradients_may_be_read_where_they_lie(
    large: int, objective: Any, shadowed: MakeTrainer, pixels: Pixels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fused optimizer, its kernel replaced by the same in torch: whichever gradients come apart, the same bits."""
    apart = []

    def sgd(
        row: Tensor, low: Tensor, buffer: Tensor, grad: Tensor, rate: Tensor, decay: float, momentum: float
    ) -> None:
        apart.append(grad.dtype == torch.bfloat16)
        buffer.mul_(momentum).add_(grad.float() + decay * row)
        row.sub_(rate * buffer)
        low.copy_(row)

    expected = train(shadowed(), pixels(32), objective)
    monkeypatch.setitem(sys.modules, "fedssl.kernels.update", SimpleNamespace(sgd=sgd))
    monkeypatch.setattr("fedssl.train.SGD", FusedSGD)
    monkeypatch.setattr(FusedSGD, "large", large)
    found = train(shadowed(), pixels(32), objective)
    assert any(apart) == (large < 10**9)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def by_name(method: Method) -> None:
    weight = method.projector[0].weight  # type: ignore[index]
    weight.div_(weight.norm(dim=1, keepdim=True))


def by_data(method: Method) -> None:
    weight = method.projector[0].weight.data  # type: ignore[index]
    weight.div_(weight.norm(dim=1, keepdim=True))


def by_row(method: Method) -> None:
    method.parameter_row(("projector",)).mul_(0.7)


@pytest.mark.parametrize("rule", [by_name, by_data, by_row])
def test_a_rule_of_the_methods_own_reaches_the_copy(
    rule: Callable[[Method], None],
    shadowed: MakeTrainer,
    make_trainer: MakeTrainer,
    pixels: Pixels,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights that `after_step` sets to something else are the ones the next step computes with."""
    after = BYOL.after_step

    def changed(self: BYOL, out: Output) -> None:
        after(self, out)
        rule(self)

    monkeypatch.setattr(BYOL, "after_step", changed)
    monkeypatch.setattr(BYOL, "moves_target_only", False)  # as for any method that says nothing
    ours = train(shadowed(), pixels(32))
    theirs = train(make_trainer("byol", {"mode": "eager", "precision": "bf16", "epochs": 2}), pixels(32))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_a_loaded_client_is_computed_with(shadowed: MakeTrainer, pixels: Pixels) -> None:
    """Nothing of the client before: the second of two trains as if it were the first."""
    alone, second = shadowed(), shadowed()
    start = alone.method.state.clone()
    train(second, pixels(32, seed=3))
    second.method.state.load(start)
    assert torch.equal(train(alone, pixels(32)), train(second, pixels(32)))


def test_nothing_is_compiled_for_a_small_client(
    make_trainer: MakeTrainer, pixels: Pixels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with fewer images than a batch trains as in mode eager, also between others."""
    compiled: list[Any] = []

    def spy(function: Any, **how: Any) -> Any:
        return lambda *given: compiled.append(function) or function(*given)

    monkeypatch.setattr(torch, "compile", spy)
    monkeypatch.setattr("fedssl.kernels.shutil.which", lambda program: program)
    ours, theirs = (make_trainer("byol", {"mode": mode, "precision": "bf16"}) for mode in ("compiled", "eager"))
    for n, expected in ((5, 0), (16, 4), (3, 0), (8, 2)):
        compiled.clear()
        torch.testing.assert_close(train(ours, pixels(n)), train(theirs, pixels(n)), rtol=0, atol=1e-6)
        assert len(compiled) == expected  # views and loss of each step


def test_a_parameter_the_loss_does_not_see_only_decays(make_trainer: MakeTrainer, pixels: Pixels) -> None:
    def blind(method: Method, batch: Batch, out: Output, given: Given) -> Tensor:
        return out.h.square().mean()

    trainer = make_trainer("byol", {"weight_decay": 0.0})
    before = trainer.method.state.clone()
    train(trainer, pixels(16), blind)
    after = trainer.method.state
    assert torch.equal(after.pick(("projector",), ("weight",)).floats, before.pick(("projector",), ("weight",)).floats)
    assert not torch.equal(
        after.pick(("backbone",), ("weight",)).floats, before.pick(("backbone",), ("weight",)).floats
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of what torch itself does
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for a CPU with a C++ compiler")
@pytest.mark.parametrize("name", METHODS.names())
def test_compiled_is_eager_on_a_cpu(name: str, make_trainer: MakeTrainer, pixels: Pixels) -> None:
    """At a low rate: with a higher one VICReg, whose loss is large, magnifies rounding errors a hundredfold."""
    ours, theirs = (train(make_trainer(name, {"mode": mode}), pixels(32), rate=0.01) for mode in ("compiled", "eager"))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_modes_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert resolve_mode("auto", cpu) == "eager"
    assert resolve_mode("auto", cuda) == "captured"
    with pytest.raises(ConfigError, match="needs a CUDA device"):
        resolve_mode("captured", cpu)
    monkeypatch.setattr("fedssl.kernels.shutil.which", lambda program: None)
    with pytest.raises(ConfigError, match=r"there is no C\+\+ compiler"):
        resolve_mode("compiled", cpu)
