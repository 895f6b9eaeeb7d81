"""Low-rank adapters: closed forms, what is frozen, what is trained, and which layers have them."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from error_messages import raises
from factories import make_client, make_trainer, random_pixels
from torch import Tensor, nn

from fedssl import nets
from fedssl.algorithm import Upload
from fedssl.algorithms import FedAvg
from fedssl.core.errors import ConfigError
from fedssl.core.state.layout import Entry, Layout
from fedssl.core.state.mean import Mean
from fedssl.core.state.state import State
from fedssl.core.state.tree import model
from fedssl.method import METHODS
from fedssl.nets.adapters import (
    AdaptedLinear,
    AdapterSettings,
    adapted_layers,
    add_adapters,
    frozen_names,
    frozen_size,
    merge_adapters,
    share_frozen,
)

FAMILIES = [
    ("vit_mini", "batch"),
    ("cnn", "batch"),
    ("cnn", "group"),
    pytest.param("resnet18", "batch", marks=pytest.mark.slow),
]


def seeded(name: str, norm: Any = "batch") -> nets.Backbone:
    """Return a backbone with fixed weights, in eval mode."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nets.build(name, norm=norm).eval()


def disturb(module: nn.Module) -> None:
    """Move every trained weight by a little noise."""
    stream = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=stream)


def noise() -> Tensor:
    return torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(2))


class TwoByTwo(nn.Module):
    """One linear layer without names of a family."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        with torch.no_grad():
            self.layer.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
            self.layer.bias.copy_(torch.tensor([10.0, 20.0]))


def test_a_rank_one_adapter_by_hand() -> None:
    """x = (1, 3): W0·x + b = (17, 35). With A = (1, -1), A·x = -2; scaled by α/r = 4: -8.

    With B = (2, 3)ᵀ the change is (-16, -24), so the output is (1, 11). The merged weight is
    W0 + 4·B·A = ((9, -6), (15, -8)).
    """
    module = TwoByTwo()
    frozen = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    # Four frozen weights and two biases; the factors have four.
    add_adapters(module, AdapterSettings(rank=1, alpha=4.0))
    x = torch.tensor([[1.0, 3.0]])
    assert torch.equal(module.layer(x), torch.tensor([[17.0, 35.0]]))
    with torch.no_grad():
        module.layer.lora_A.copy_(torch.tensor([[1.0, -1.0]]))
        module.layer.lora_B.copy_(torch.tensor([[2.0], [3.0]]))
    assert torch.equal(module.layer(x), torch.tensor([[1.0, 11.0]]))
    merged = merge_adapters(frozen, module.state_dict(), scale=4.0)
    assert torch.equal(merged["layer.weight"], torch.tensor([[9.0, -6.0], [15.0, -8.0]]))
    assert torch.equal(merged["layer.bias"], frozen["layer.bias"])
    assert merged.keys() == frozen.keys()


def test_a_convolution_by_hand() -> None:
    """A 1x2 kernel (1, 2) of stride 2 on (1, 2, 3, 4): 1 + 4 = 5 and 3 + 8 = 11.

    With A = (1, 0), B = 3 and α/r = 2 the change is 6·(1, 3).
    """
    module = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, (1, 2), stride=(1, 2), bias=False))
    with torch.no_grad():
        module[0].weight.fill_(1)
        module[0].bias.zero_()
        module[1].weight.copy_(torch.tensor([[[[1.0, 2.0]]]]))
    frozen = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    add_adapters(module, AdapterSettings(rank=1, alpha=2.0))
    with torch.no_grad():
        module[1].lora_A.copy_(torch.tensor([[[[1.0, 0.0]]]]))
        module[1].lora_B.fill_(3)
    out = module(torch.tensor([[[[1.0, 2.0, 3.0, 4.0]]]]))
    assert torch.equal(out.flatten(), torch.tensor([5.0 + 6.0, 11.0 + 18.0]))
    merged = merge_adapters(frozen, module.state_dict(), scale=2.0)
    assert torch.equal(merged["1.weight"], torch.tensor([[[[7.0, 2.0]]]]))


@pytest.mark.parametrize(("name", "norm"), FAMILIES)
def test_the_first_model_is_the_pretrained_one(name: str, norm: Any) -> None:
    """B is zero, so nothing is added but zeros."""
    backbone = seeded(name, norm)
    with torch.no_grad():
        expected = backbone(noise())
        add_adapters(backbone, AdapterSettings(rank=8))
        assert torch.equal(backbone(noise()), expected)


@pytest.mark.parametrize(("name", "norm"), FAMILIES)
def test_merged_weights_give_the_same_features(name: str, norm: Any) -> None:
    plain = seeded(name, norm)
    frozen = dict(plain.state_dict())
    adapted = seeded(name, norm)
    settings = AdapterSettings(rank=3, alpha=6.0)
    add_adapters(adapted, settings)
    disturb(adapted)
    with torch.no_grad():
        before = plain(noise())
        features = adapted(noise())
        plain.load_state_dict(merge_adapters(frozen, adapted.state_dict(), settings.scale))
        assert (features - before).abs().max() > 1e-2
        torch.testing.assert_close(plain(noise()), features, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "norm"), FAMILIES)
def test_norm_layers_and_factors_are_trained_and_the_rest_is_frozen(name: str, norm: Any) -> None:
    backbone = seeded(name, norm)
    names = set(dict(backbone.named_parameters()))
    buffers = set(dict(backbone.named_buffers()))
    add_adapters(backbone, AdapterSettings(rank=2))
    frozen = set(frozen_names(backbone))
    trained = set(dict(backbone.named_parameters()))
    factors = {path for path in trained if path.rpartition(".")[2] in ("lora_A", "lora_B")}
    assert trained - factors == names - frozen
    assert all("norm" in path or "bn" in path or ".1." in path for path in trained - factors)
    assert set(backbone.state_dict()) == trained | buffers
    assert frozen_size(backbone) == sum(backbone.get_buffer(path).numel() for path in frozen)


def test_a_vit_has_adapters_in_its_blocks() -> None:
    """Four matrices in each of four blocks; not in the convolution that cuts patches."""
    backbone = seeded("vit_mini")
    add_adapters(backbone, AdapterSettings(rank=8))
    layers = adapted_layers(backbone.state_dict())
    names = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    assert layers == [f"blocks.{block}.{name}" for block in range(4) for name in names]


def test_a_resnet_has_adapters_in_all_convolutions_but_the_first() -> None:
    """ResNet-18: 20 convolutions, three of them in shortcuts."""
    backbone = seeded("resnet18")
    add_adapters(backbone, AdapterSettings(rank=8))
    layers = adapted_layers(backbone.state_dict())
    assert len(layers) == 19
    assert "conv1" not in layers
    assert "layer2.0.downsample.0" in layers


def test_layers_by_name_or_by_path() -> None:
    """`proj` is in each block; the convolution of patches, also called proj, is the first one."""
    backbone = seeded("vit_mini")
    add_adapters(backbone, AdapterSettings(rank=8, layers=("proj", "blocks.1.mlp.fc2")))
    assert adapted_layers(backbone.state_dict()) == [
        "blocks.0.attn.proj",
        "blocks.1.attn.proj",
        "blocks.1.mlp.fc2",
        "blocks.2.attn.proj",
        "blocks.3.attn.proj",
    ]


def test_layers_that_cannot_be_adapted_are_an_error() -> None:
    with raises(ConfigError):
        add_adapters(seeded("vit_mini"), AdapterSettings(rank=8, layers=("qkv", "querry")))
    with raises(ConfigError):
        add_adapters(nn.Sequential(nn.Conv2d(3, 4, 1)), AdapterSettings(rank=8))
    with raises(ConfigError):
        add_adapters(TwoByTwo(), AdapterSettings(rank=2))


def test_layers_that_compute_something_else_stay_plain() -> None:
    """A subclass of Linear, a depthwise convolution, and one that pads by reflection."""

    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    module = nn.Sequential(
        nn.Conv2d(4, 4, 1),
        nn.Conv2d(4, 4, 3, groups=4),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        Doubled(4, 4),
        nn.Linear(4, 4),
    )
    add_adapters(module, AdapterSettings(rank=1))
    assert adapted_layers(module.state_dict()) == ["4"]
    assert type(module[3]) is Doubled


def test_only_a_draws_random_numbers() -> None:
    """Uniform with the bound 1/√inputs of the authors' code: √(6 / (1 + 5)) / √2."""
    module = TwoByTwo()
    torch.manual_seed(3)
    add_adapters(module, AdapterSettings(rank=1))
    after = torch.get_rng_state()
    torch.manual_seed(3)
    bound = 1 / math.sqrt(2)
    expected = torch.empty(1, 2).uniform_(-bound, bound)
    torch.testing.assert_close(module.layer.lora_A.detach(), expected)
    assert torch.equal(torch.get_rng_state(), after)
    assert not module.layer.lora_B.any()


def test_copies_can_share_frozen_weights() -> None:
    backbone = seeded("cnn")
    add_adapters(backbone, AdapterSettings(rank=2))
    other = copy.deepcopy(backbone)
    assert other.get_buffer(frozen_names(other)[0]) is not backbone.get_buffer("layers.0.0.weight")
    share_frozen(backbone, other)
    for name in frozen_names(backbone):
        assert other.get_buffer(name) is backbone.get_buffer(name)
    for name, parameter in backbone.named_parameters():
        assert other.get_parameter(name) is not parameter


@pytest.mark.parametrize("name", METHODS.names())
def test_every_method_trains_adapters_and_nothing_else_of_the_backbone(name: str) -> None:
    trainer = make_trainer(name, adapters={"rank": 1})
    method = trainer.method
    names = frozen_names(method.backbone)
    assert names
    frozen = {path: method.backbone.get_buffer(path).clone() for path in names}
    rows = method.state.clone()
    client = make_client(trainer, random_pixels(16), labels=lambda: torch.arange(16) % 5, lr=0.05)
    client.train(lambda m, batch, out, constants: m.loss(out, constants), {})
    for path, tensor in frozen.items():
        assert torch.equal(method.backbone.get_buffer(path), tensor)
        assert f"backbone.{path}" not in rows.layout.offsets
    moved = method.state.pick(("backbone",))
    for path in adapted_layers([entry.name for entry in moved.layout.entries]):
        before = rows.tensors()[f"{path}.lora_B"]
        assert not torch.equal(method.state.tensors()[f"{path}.lora_B"], before)


def test_clients_average_factors_and_not_their_products() -> None:
    """Client a with one image has A = 1 and B = 2, client b with three has A = 3 and B = 6.

    The mean of A is (1 + 3·3) / 4 = 2.5, that of B (2 + 3·6) / 4 = 5: their product is 12.5. The
    mean of the products is (2 + 3·18) / 4 = 14.
    """
    layout = Layout.of([Entry(f"backbone.l.lora_{factor}", (1, 1), "weight") for factor in "AB"])

    def factors(a: float, b: float) -> State:
        return State(layout, torch.tensor([a, b]), torch.zeros(0, dtype=torch.int64))

    uploads = [
        Upload("a", 1, {"model": factors(1, 2)}),
        Upload("b", 3, {"model": factors(3, 6)}),
    ]
    merged = model(FedAvg().merge({"model": factors(0, 0)}, uploads, Mean), "model")
    assert merged.floats.tolist() == [2.5, 5.0]
    frozen = {"l.weight": torch.zeros(1, 1)}
    trained = merged.without_prefix("backbone").tensors()
    assert merge_adapters(frozen, trained, scale=1.0)["l.weight"].item() == 12.5


def test_a_momentum_copy_shares_the_frozen_weights_and_has_its_own_factors() -> None:
    method = make_trainer("byol", adapters={"rank": 1}).method
    online = method.backbone.get_submodule("layers.1.0")
    target = method.target["backbone"].get_submodule("layers.1.0")
    assert target.weight is online.weight
    assert target.lora_A.data_ptr() != online.lora_A.data_ptr()
    assert not target.lora_A.requires_grad


def test_a_linear_layer_without_bias_stays_without() -> None:
    layer = AdaptedLinear(frozen_linear(), AdapterSettings(rank=1))
    assert layer.bias is None
    assert layer(torch.ones(1, 3)).shape == (1, 2)


def frozen_linear() -> nn.Linear:
    """Return a layer whose weight is a buffer, as `add_adapters` freezes it."""
    layer = nn.Linear(3, 2, bias=False)
    weight = layer.weight.detach()
    del layer._parameters["weight"]
    layer.register_buffer("weight", weight, persistent=False)
    return layer


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of what torch itself does
def test_compiled_steps_in_bfloat16_train_what_eager_ones_do() -> None:
    """The bfloat16 copy of the weights has the factors; frozen weights are cast by autocast."""
    changes = []
    for mode in ("eager", "compiled"):
        trainer = make_trainer("byol", {"mode": mode, "precision": "bf16"}, adapters={"rank": 1})
        state = trainer.method.state
        start = state.floats.clone()
        client = make_client(trainer, random_pixels(16), lr=0.05)
        client.train(lambda m, batch, out, constants: m.loss(out, constants), {})
        changes.append(state.floats - start)
    eager, compiled = changes
    assert eager.norm() > 0
    assert (eager - compiled).norm() < 0.01 * eager.norm()


@pytest.mark.oracle
def test_a_transformer_of_timm_like_dinov2() -> None:
    """Two blocks with LayerScale and register tokens: merged weights give its features."""
    timm = pytest.importorskip("timm")
    options = {"depth": 2, "img_size": 32, "patch_size": 8, "init_values": 1.0, "reg_tokens": 4}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        plain = timm.create_model("vit_tiny_patch16_224", num_classes=0, **options).eval()
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    frozen = dict(plain.state_dict())
    adapted = copy.deepcopy(plain)
    settings = AdapterSettings(rank=4)
    add_adapters(adapted, settings)
    with torch.no_grad():
        before = plain(images)
        assert torch.equal(adapted(images), before)
        disturb(adapted)
        features = adapted(images)
        plain.load_state_dict(merge_adapters(frozen, adapted.state_dict(), settings.scale))
        torch.testing.assert_close(plain(images), features, rtol=1e-4, atol=1e-4)
    assert (features - before).abs().max() > 1e-2
    assert len(adapted_layers(adapted.state_dict())) == 8
    assert {"reg_token", "cls_token", "blocks.0.ls1.gamma"} <= set(frozen_names(adapted))
