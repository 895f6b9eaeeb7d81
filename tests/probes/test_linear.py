"""The linear probe: against autograd, other solvers, and problems with a known solution."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedssl.core.devices.precision import threads
from fedssl.core.seeds import generator
from fedssl.nets import CNN
from fedssl.probes import LINEAR, Labelled, Name, Protocol, Solver, embed, linear, linear_predict
from fedssl.probes.linear import fit_linear, minimise, thread_count


def protocol(epochs: int, lr: float, batch: int) -> Protocol:
    return LINEAR["fedema"].changed(epochs, lr, batch)


def blobs(per_class: int, seed: int, spread: float = 0.1) -> Labelled:
    """Return three clusters in a plane, which lines through the origin do not separate."""
    centres = torch.tensor([[2.0, 1.0], [4.0, 2.0], [4.0, 4.0]])
    labels = torch.arange(3).repeat(per_class)
    noise = torch.randn(3 * per_class, 2, generator=torch.Generator().manual_seed(seed))
    return Labelled(centres[labels] + spread * noise, labels)


def accuracy(train: Labelled, test: Labelled, protocol: Protocol) -> float:
    """Return the share of the test images that the probe classifies correctly."""
    correct = linear_predict(train, test.features, protocol) == test.labels
    return float(correct.double().mean())


def test_separable_classes_are_separated() -> None:
    assert accuracy(blobs(30, 0), blobs(30, 1), protocol(200, 0.05, 45)) == 1.0


@pytest.mark.parametrize("batch", [8, 100])
@pytest.mark.parametrize("name", ["fedema", "ccl", "easyfl"])
@pytest.mark.parametrize("penalty", [0.0, 0.3])
def test_the_same_steps_as_autograd_and_torch_optimizers(
    batch: int, name: Name, penalty: float
) -> None:
    """Same start, same order of images, torch's gradient, optimizer and schedule: same weights.

    CCL's rate drops to a tenth after 3 and after 4 of 5 epochs. EasyFL does not shuffle.
    """
    train = blobs(7, 0, spread=1.0)
    seed = 3
    weight, bias = fit_linear(train, LINEAR[name].changed(5, 0.01, batch), seed, penalty)
    stream = generator(seed, "linear probe")
    bound = 2**-0.5
    row = torch.empty(9).uniform_(-bound, bound, generator=stream)
    layer = [row[:6].view(3, 2).clone().requires_grad_(), row[6:].clone().requires_grad_()]
    optimizer: torch.optim.Optimizer = torch.optim.Adam(layer, 0.01)
    milestones: list[int] = []
    if name == "ccl":
        optimizer = torch.optim.SGD(layer, 0.01, momentum=0.9)
        milestones = [3, 4]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
    for _ in range(5):
        order = torch.arange(21)
        if name != "easyfl":
            order = torch.randperm(21, generator=stream)
        # The last, smaller batch included: few labels must all count.
        for index in order.split(batch):
            optimizer.zero_grad()
            logits = train.features[index] @ layer[0].T + layer[1]
            loss = F.cross_entropy(logits, train.labels[index])
            (loss + penalty / 2 * layer[0].square().sum()).backward()
            optimizer.step()
        schedule.step()
    torch.testing.assert_close(weight, layer[0].detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(bias, layer[1].detach(), rtol=1e-4, atol=1e-5)


def test_the_papers_settings() -> None:
    """MoCo's rate is 30, 3 and 0.3 from epochs 0, 60 and 80 on."""
    assert LINEAR["fedema"][:4] == ("adam", 3e-3, 200, 512)
    assert LINEAR["fedu"][:4] == ("adam", 3e-3, 100, 512)
    assert LINEAR["easyfl"][:4] == ("adam", 3e-3, 200, 2048)
    assert LINEAR["easyfl-literal"] == LINEAR["easyfl"]
    unshuffled = {name for name, protocol in LINEAR.items() if not protocol.shuffled}
    assert unshuffled == {"easyfl", "easyfl-literal"}
    dec_ssl = LINEAR["dec-ssl"]
    assert dec_ssl[:4] == ("adam", 1e-3, 50, 256)
    assert (dec_ssl.weight_decay, dec_ssl.training_mode, dec_ssl.head) == (1e-6, 1, "linear")
    assert [name for name, protocol in LINEAR.items() if protocol.augmented] == ["dec-ssl"]
    moco = LINEAR["ccl"]
    assert moco[:4] == ("sgd", 30.0, 100, 256)
    assert [moco.lr * moco.drop(epoch) for epoch in (0, 59, 60, 79, 80, 99)] == pytest.approx(
        [30, 30, 3, 3, 0.3, 0.3]
    )
    assert moco.changed(None, None, None) == moco
    assert moco.changed(20, None, 8) == moco._replace(epochs=20, batch=8)


def test_easyfl_takes_the_images_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """5,000 images in batches of 2048, 2048 and 904; FedEMA's order differs in each epoch."""
    seen: list[Tensor] = []

    def record(_layer: object, x: Tensor, *_: object) -> None:
        seen.append(x[:, 0])

    monkeypatch.setattr("fedssl.probes.linear._write_gradient", record)
    train = Labelled(torch.arange(5000.0)[:, None], torch.arange(5000) % 2)
    fit_linear(train, LINEAR["easyfl"]._replace(epochs=2))
    assert [len(batch) for batch in seen] == [2048, 2048, 904] * 2
    assert torch.equal(torch.cat(seen), torch.arange(5000.0).repeat(2))
    seen.clear()
    fit_linear(train, LINEAR["fedema"]._replace(epochs=2))
    first, second = torch.cat(seen).view(2, 5000)
    assert not torch.equal(first, second)
    assert torch.equal(first.sort().values, torch.arange(5000.0))


def backbone_features(n: int, seed: int) -> Labelled:
    """Return features of noisy images in four classes under an untrained backbone."""
    stream = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (n,), generator=stream)
    pixels = torch.randint(200, (n, 3, 8, 8), generator=stream)
    pixels[:, 0] += 18 * labels[:, None, None]
    torch.manual_seed(0)
    features = embed(CNN(), pixels.to(torch.uint8), None, "cpu")[:, ::8].clone()
    # Of a size at which optimizers converge in seconds.
    return Labelled(50 * (features - features.mean(0)), labels)


def objective(train: Labelled, weight: Tensor, bias: Tensor, penalty: float) -> float:
    logits = train.features.double() @ weight.double().T + bias.double()
    loss = F.cross_entropy(logits, train.labels)
    return float(loss + penalty / 2 * weight.double().square().sum())


@pytest.mark.parametrize("solver", ["protocol", "lbfgs"])
def test_against_logistic_regression(solver: Solver) -> None:
    """scikit-learn minimises ½‖weight‖² + C · Σ cross-entropy: equal if C = 1 / (penalty · n)."""
    sklearn = pytest.importorskip("sklearn.linear_model")
    train = backbone_features(400, 0)
    test = backbone_features(400, 1)
    penalty = 1e-2
    oracle = sklearn.LogisticRegression(C=1 / (penalty * 400), tol=1e-8, max_iter=10_000)
    oracle.fit(train.features.double().numpy(), train.labels.numpy())
    # All images in one batch, so that the optimizer converges to the optimum.
    long = LINEAR["fedema"].changed(1500, None, 400)
    if solver == "lbfgs":
        weight, bias = minimise(train, penalty)
    else:
        weight, bias = fit_linear(train, long, 0, penalty)
    expected = objective(
        train, torch.from_numpy(oracle.coef_), torch.from_numpy(oracle.intercept_), penalty
    )
    assert objective(train, weight, bias, penalty) == pytest.approx(expected, abs=1e-3)
    predicted = linear_predict(train, test.features, long, seed=0, penalty=penalty, solver=solver)
    same = predicted == torch.from_numpy(oracle.predict(test.features.double().numpy()))
    assert float(same.double().mean()) >= 0.99
    # The problem is neither impossible nor trivial.
    assert 0.4 < float((predicted == test.labels).double().mean()) < 0.99


def test_zero_features_learn_the_class_frequencies() -> None:
    """On features that are all zero only the bias learns: softmax(bias) → 1/2, 1/3, 1/6."""
    labels = torch.tensor([0, 0, 0, 1, 1, 2] * 10)
    _, bias = fit_linear(Labelled(torch.zeros(60, 4), labels), protocol(600, 0.02, 60))
    shares = torch.tensor([3.0, 2.0, 1.0]) / 6
    torch.testing.assert_close(torch.softmax(bias, 0), shares, rtol=0, atol=0.01)


def test_the_probe_repeats_and_leaves_features_alone() -> None:
    train = blobs(20, 0, spread=1.0)
    before = train.features.clone()
    short = protocol(3, 0.01, 16)
    first, again, other = (fit_linear(train, short, seed).weight for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(train.features, before)
    assert not first.requires_grad


def test_random_labels_give_chance_accuracy() -> None:
    stream = torch.Generator().manual_seed(0)
    train, test = (
        Labelled(torch.randn(800, 8, generator=stream), torch.randint(4, (800,), generator=stream))
        for _ in range(2)
    )
    assert accuracy(train, test, protocol(20, 0.01, 512)) == pytest.approx(0.25, abs=0.06)


def test_features_computed_in_inference_mode_are_accepted() -> None:
    with torch.inference_mode():
        train = blobs(20, 0)
        train = Labelled(train.features.clone(), train.labels)
    assert accuracy(train, blobs(5, 1), protocol(100, 0.05, 512)) == 1.0


@pytest.mark.parametrize("solver", ["protocol", "lbfgs"])
def test_one_thread_fits_a_small_layer(solver: Solver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other threads would only wait for each other. Afterwards there are as many as before."""
    counts = set()
    write_gradient = linear._write_gradient

    def record(*tensors: Any) -> None:
        counts.add(torch.get_num_threads())
        write_gradient(*tensors)

    monkeypatch.setattr(linear, "_write_gradient", record)
    with threads(2):
        linear_predict(blobs(5, 0), blobs(5, 1).features, protocol(2, 0.1, 8), solver=solver)
        assert torch.get_num_threads() == 2
    assert counts == {1}


def test_all_threads_fit_a_large_layer() -> None:
    """CIFAR-10: 50,000 features of 512 numbers, 10 classes, 200 epochs; with 5% of the labels."""
    with threads(3):
        assert thread_count(50_000 * 512, 10, 200) == 3
        assert thread_count(2_500 * 512, 10, 200) == 1


def test_few_iterations_do_not_reach_the_minimum() -> None:
    train = blobs(20, 0, spread=1.0)
    losses = [objective(train, *minimise(train, 1e-3, count), 1e-3) for count in (2, 5, 1000)]
    assert losses[0] > losses[1] + 1e-3 > losses[2] + 2e-3
