"""The linear probe: its gradient is autograd's, its answers those of problems with a known one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedssl.nets import CNN
from fedssl.probes import LINEAR, Labelled, Name, Protocol, Solver, embed, linear_predict
from fedssl.probes.linear import fit_linear, minimise
from fedssl.seeds import generator


def how(epochs: int, lr: float, batch: int) -> Protocol:
    return LINEAR["fedema"].changed(epochs, lr, batch)


def blobs(per_class: int, seed: int, spread: float = 0.1) -> Labelled:
    """Three clouds in a plane, none of which a line through the origin alone would tell apart."""
    centres = torch.tensor([[2.0, 1.0], [4.0, 2.0], [4.0, 4.0]])
    labels = torch.arange(3).repeat(per_class)
    noise = torch.randn(3 * per_class, 2, generator=torch.Generator().manual_seed(seed))
    return Labelled(centres[labels] + spread * noise, labels)


def right(train: Labelled, test: Labelled, how: Protocol) -> float:
    """The share of the test images that the probe is right about."""
    return float((linear_predict(train, test.features, how) == test.labels).double().mean())


def test_separable_classes_are_separated() -> None:
    assert right(blobs(30, 0), blobs(30, 1), how(200, 0.05, 45)) == 1.0


@pytest.mark.parametrize("batch", [8, 100])
@pytest.mark.parametrize("protocol", ["fedema", "ccl"])
@pytest.mark.parametrize("penalty", [0.0, 0.3])
def test_the_same_steps_as_autograd_and_torch_optimizers(batch: int, protocol: Name, penalty: float) -> None:
    """Same start, same order of images, torch's own gradient, optimizer and schedule: the same weights, to rounding.
    CCL's rate drops to a tenth after 3 and after 4 of 5 epochs."""
    train, seed = blobs(7, 0, spread=1.0), 3
    mine = LINEAR[protocol].changed(5, 0.01, batch)
    weight, bias = fit_linear(train, mine, seed, penalty)
    stream = generator(seed, "linear probe")
    bound = 2**-0.5
    row = torch.empty(9).uniform_(-bound, bound, generator=stream)
    layer = [row[:6].view(3, 2).clone().requires_grad_(), row[6:].clone().requires_grad_()]
    oracle = torch.optim.Adam(layer, 0.01) if protocol == "fedema" else torch.optim.SGD(layer, 0.01, momentum=0.9)
    schedule = torch.optim.lr_scheduler.MultiStepLR(oracle, [3, 4] if protocol == "ccl" else [], gamma=0.1)
    for _ in range(5):
        order = torch.randperm(21, generator=stream)
        for index in order.split(batch):  # the last, smaller batch included: few labels must all count
            oracle.zero_grad()
            loss = F.cross_entropy(train.features[index] @ layer[0].T + layer[1], train.labels[index])
            (loss + penalty / 2 * layer[0].square().sum()).backward()
            oracle.step()
        schedule.step()
    torch.testing.assert_close(weight, layer[0].detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(bias, layer[1].detach(), rtol=1e-4, atol=1e-5)


def test_the_papers_settings() -> None:
    """What methods.md says of each; MoCo's rate goes 30, 3, 0.3, beginning at epochs 0, 60 and 80."""
    assert LINEAR["fedema"][:4] == ("adam", 3e-3, 200, 512)
    assert LINEAR["fedu"][:4] == ("adam", 3e-3, 100, 512)
    moco = LINEAR["ccl"]
    assert moco[:4] == ("sgd", 30.0, 100, 256)
    assert [moco.lr * moco.drop(epoch) for epoch in (0, 59, 60, 79, 80, 99)] == pytest.approx([30, 30, 3, 3, 0.3, 0.3])
    assert moco.changed(None, None, None) == moco
    assert moco.changed(20, None, 8) == moco._replace(epochs=20, batch=8)


def backbone_features(n: int, seed: int) -> Labelled:
    """Of noisy images in four classes, under a backbone that has learned nothing."""
    stream = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (n,), generator=stream)
    pixels = torch.randint(200, (n, 3, 8, 8), generator=stream)
    pixels[:, 0] += 18 * labels[:, None, None]
    torch.manual_seed(0)
    features = embed(CNN(), pixels.to(torch.uint8), None, "cpu")[:, ::8].clone()
    return Labelled(50 * (features - features.mean(0)), labels)  # of a size at which optimizers settle in seconds


def objective(train: Labelled, weight: Tensor, bias: Tensor, penalty: float) -> float:
    logits = train.features.double() @ weight.double().T + bias.double()
    return float(F.cross_entropy(logits, train.labels) + penalty / 2 * weight.double().square().sum())


@pytest.mark.parametrize("solver", ["protocol", "lbfgs"])
def test_against_logistic_regression(solver: Solver) -> None:
    """scikit-learn minimises ½‖weight‖² + C · the sum of cross-entropies: ours, if C = 1 / (penalty · n)."""
    sklearn = pytest.importorskip("sklearn.linear_model")
    train, test, penalty = backbone_features(400, 0), backbone_features(400, 1), 1e-2
    oracle = sklearn.LogisticRegression(C=1 / (penalty * 400), tol=1e-8, max_iter=10_000)
    oracle.fit(train.features.double().numpy(), train.labels.numpy())
    theirs = torch.from_numpy(oracle.coef_), torch.from_numpy(oracle.intercept_)
    how = LINEAR["fedema"].changed(1500, None, 400)  # all images in one batch: nothing but the optimum to settle in
    mine = minimise(train, penalty) if solver == "lbfgs" else fit_linear(train, how, 0, penalty)
    assert objective(train, *mine, penalty) == pytest.approx(objective(train, *theirs, penalty), abs=1e-3)
    predicted = linear_predict(train, test.features, how, 0, penalty, solver)
    expected = torch.from_numpy(oracle.predict(test.features.double().numpy()))
    assert float((predicted == expected).double().mean()) >= 0.99
    assert 0.4 < float((predicted == test.labels).double().mean()) < 0.99  # a problem neither hopeless nor trivial


def test_without_information_it_learns_the_frequencies() -> None:
    """On features that are all zero only the bias learns: softmax(bias) → the share of each class, 1/2, 1/3, 1/6."""
    labels = torch.tensor([0, 0, 0, 1, 1, 2] * 10)
    _, bias = fit_linear(Labelled(torch.zeros(60, 4), labels), how(600, 0.02, 60))
    torch.testing.assert_close(torch.softmax(bias, 0), torch.tensor([3.0, 2.0, 1.0]) / 6, rtol=0, atol=0.01)


def test_the_probe_repeats_and_leaves_features_alone() -> None:
    train = blobs(20, 0, spread=1.0)
    before = train.features.clone()
    first, again, other = (fit_linear(train, how(3, 0.01, 16), seed).weight for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(train.features, before)
    assert not first.requires_grad


def test_labels_that_have_nothing_to_do_with_the_features_are_worth_chance() -> None:
    stream = torch.Generator().manual_seed(0)
    sets = [Labelled(torch.randn(800, 8, generator=stream), torch.randint(4, (800,), generator=stream)) for _ in "ab"]
    assert right(*sets, how(20, 0.01, 512)) == pytest.approx(0.25, abs=0.06)


def test_features_of_an_inference_run_will_do() -> None:
    with torch.inference_mode():
        train = blobs(20, 0)
        train = Labelled(train.features.clone(), train.labels)
    assert right(train, blobs(5, 1), how(100, 0.05, 512)) == 1.0
