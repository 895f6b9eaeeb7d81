"""The study of collaborative fine-tuning: its method, and the closed forms that it relies on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from factories import make_experiment

import fedssl
from benchmarks import collaborative
from benchmarks.collaborative import Bench, study
from benchmarks.collaborative_variants import CLEAN, FIXED, SGD, Variant, register_study
from fedssl.core.state.layout import PARAMETERS
from fedssl.core.state.state import State
from fedssl.data import Dataset, Images
from fedssl.method import METHODS


def images(n: int, seed: int) -> Images:
    """Return images of four classes: bright or dark in one of two channels."""
    labels = torch.arange(n) % 4
    pixels = torch.randint(100, (n, 3, 8, 8), generator=torch.Generator().manual_seed(seed))
    pixels[torch.arange(n), labels // 2] += 70 + 80 * (labels[:, None, None] % 2)
    return Images(pixels.to(torch.uint8), labels)


@pytest.fixture(autouse=True)
def study_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the method of the study for one test only: other tests list all methods."""
    METHODS.names()  # imports the methods of the package
    monkeypatch.setattr(METHODS, "_classes", dict(METHODS._classes))
    register_study()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedssl.Run:
    """Two clients with two classes each; 20 of their 80 images have labels."""
    chosen = make_experiment(
        {"clients": 2, "rounds": 1, "partition": {"name": "classes", "per_client": 2}}
    )
    data = Dataset(images(160, 0), images(40, 1))
    folder = tmp_path_factory.mktemp("study") / "run"
    return fedssl.run(chosen, folder, "cpu", dataset=data, quiet=True)


def parameters(state: State) -> torch.Tensor:
    (row,) = state.float_slices(PARAMETERS)
    return row


def after_one_round(run: fedssl.Run, folder: Path, variant: Variant) -> torch.Tensor:
    """Return the parameters (n,) after a round of one batch at every client."""
    folder.mkdir()
    changes = {"rounds": 1, "train.batch": 100, **variant.changes}
    _, tuned = Bench(run, 0.25).tune(variant._replace(changes=changes), folder)
    return parameters(tuned)


def test_a_variant_without_changes_is_the_probe(run: fedssl.Run) -> None:
    probe = run.evaluate("collaborative", labels=0.25)
    assert Bench(run, 0.25).measure(Variant()) == pytest.approx(probe["global"])


def test_one_step_of_sgd_is_that_of_all_images_only_with_fixed_statistics(
    run: fedssl.Run, tmp_path: Path
) -> None:
    """The mean of the clients' gradients is the gradient of the mean loss for any assignment of
    images.

    With batch statistics the loss of an image depends on the other images of its client.
    """
    sgd = {**SGD, **CLEAN, "train.lr": 0.1}
    fixed = {}
    for owners in ("own", "dealt", "pooled"):
        variant = Variant({**sgd, **FIXED}, owners)
        fixed[owners] = after_one_round(run, tmp_path / f"fixed-{owners}", variant)
    torch.testing.assert_close(fixed["own"], fixed["pooled"], rtol=0, atol=1e-6)
    torch.testing.assert_close(fixed["dealt"], fixed["pooled"], rtol=0, atol=1e-6)
    own = after_one_round(run, tmp_path / "own", Variant(sgd))
    pooled = after_one_round(run, tmp_path / "pooled", Variant(sgd, "pooled"))
    assert (own - pooled).abs().max() > 1e-4


def test_a_first_step_of_adam_is_a_sign_and_two_clients_with_unlike_signs_cancel(
    run: fedssl.Run, tmp_path: Path
) -> None:
    """After a reset, Adam moves a weight by lr · g / |g|, however small g is: by ±lr, or not at all.

    The mean of two clients with as many images moves it by ±lr, by 0 if their signs differ, and by
    half of lr if one of them has no gradient.
    """
    changes = {**CLEAN, **FIXED}
    # A step of 1e-12 keeps the first weights.
    start = after_one_round(run, tmp_path / "start", Variant({**changes, "train.lr": 1e-12}))
    own = after_one_round(run, tmp_path / "own", Variant(changes)) - start
    pooled = after_one_round(run, tmp_path / "pooled", Variant(changes, "pooled")) - start
    near_lr = (pooled.abs() - 1e-3).abs() < 2e-5
    near_0 = own.abs() < 2e-5
    assert (near_lr | (pooled.abs() < 2e-5)).float().mean() > 0.99
    halves = own / 5e-4
    assert ((halves - halves.round()).abs() < 0.04).float().mean() > 0.99
    assert halves.round().abs().max() == 2
    assert (near_lr & near_0).float().mean() > 0.1  # cancelled, though the gradient is not 0


def test_a_measured_accuracy_is_not_measured_again(
    run: fedssl.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collaborative, "pretrained", lambda seed, folder: run)
    out = tmp_path / "out.json"
    only = ["reference: linear, fixed features"]
    report = study(2, only, tmp_path, out)
    first, second = report["accuracy"][only[0]]
    assert first == second > 25
    report["accuracy"][only[0]] = [1.0]
    out.write_text(json.dumps(report))
    assert study(2, only, tmp_path, out)["accuracy"][only[0]] == [1.0, first]
    assert json.loads(out.read_text())["dropped_uploads"] == {}
