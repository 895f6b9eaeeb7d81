"""C1, P9: an experiment that cannot work is refused at once, with a helpful message."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import fedssl.data.images

WRONG = {
    "rouns=3": 'unknown key "rouns", did you mean "rounds"?',
    "train.lrr=1": 'unknown key "train.lrr", did you mean "train.lr"?',
    "method.hiden=3": 'unknown key "method.hiden", did you mean "method.hidden"?',
    "method.augment.flp=1": 'unknown key "method.augment.flp", did you mean "method.augment.flip"?',
    "algorithm.updat=both": 'unknown key "algorithm.updat", did you mean "algorithm.update"?',
    "probe.label=1": 'unknown key "probe.label", did you mean "probe.labels"?',
    "xyzzy.deep.key=1": "unknown table [xyzzy]; known: data, partition",
    "rounds=ten": "rounds: input should be a valid integer",
    "rounds=0": "rounds: input should be greater than 0 (got 0)",
    "train.lr=fast": "train.lr: input should be a valid number",
    "train.lr=inf": "train.lr: input should be a finite number",
    "train.batch=1": "train.batch: input should be greater than or equal to 2 (got 1)",
    "seed=2020-01-01": "seed: input should be a valid integer",
    "method.name=5": "method.name must be text (got 5)",
    "method.name=[1]": "method.name must be text (got [1])",
    "method=5": "method: input should be",
    "seed.deep=1": "seed: input should be a valid integer",
    "method.name=byoll": 'unknown method "byoll", did you mean "byol"?',
    "method=simclrr": 'unknown method "simclrr", did you mean "simclr"?',
    "method.backbone=resnet81": 'unknown backbone "resnet81", did you mean "resnet18"?',
    "method.stem=cifr": 'unknown stem "cifr", did you mean "cifar"?',
    "method.view_size=0": "method.view_size: input should be greater than 0",
    "method.init=nowhere.safetensors": "method.init: there is no file nowhere.safetensors",
    "algorithm.name=fedavgg": 'unknown algorithm "fedavgg", did you mean "fedavg"?',
    "topology.name=centralised": 'unknown topology "centralised", did you mean "centralized"?',
    "topology.participation=0": "topology.participation: input should be greater than 0",
    "partition.name=dirichlett": 'unknown partition "dirichlett", did you mean "dirichlet"?',
    "partition.name=dirichlet": 'missing key "partition.alpha", which has no default',
    "data.name=cifr10": 'unknown data set "cifr10", did you mean "cifar10"?',
    "probe.baselines=['randm']": 'unknown baseline "randm", did you mean "random"?',
    "probe.baselines=random": "probe.baselines: input should be a list (got ",
    "algorithm.update=both": 'algorithm "fedavg" needs a method with a target, but method "simclr" has none with these settings. Choose another method or algorithm: `fedssl combinations` lists those that fit',
    "data.mean=[0.5]": "mean and std must be given together",
    "=3": '"=3" is not of the form key=value, such as rounds=10',
    "rounds": '"rounds" is not of the form key=value, such as rounds=10',
}


@pytest.mark.rows("C1")
@pytest.mark.parametrize("wrong", WRONG)
def test_refused_before_any_image_is_read(
    wrong: str, federation: Any, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*args: Any) -> None:
        raise AssertionError("images were read")

    monkeypatch.setattr(fedssl.data.images.Source, "load", read)
    started = time.monotonic()
    code, out, err = cli(*federation.command("run", "simclr", wrong)[3:])
    assert time.monotonic() - started < 2
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1  # one line
    assert err.startswith("fedssl: ")
    assert WRONG[wrong] in err
    assert not (federation.root / "run").exists()


@pytest.mark.rows("C1")
def test_a_refusal_takes_little_longer_than_importing_torch(federation: Any) -> None:
    """The faster of two attempts, since the machine may be busy."""

    def seconds(command: list[str]) -> float:
        started = time.monotonic()
        subprocess.run(command, capture_output=True)
        return time.monotonic() - started

    torch = min(seconds([sys.executable, "-c", "import torch"]) for _ in range(2))
    refused = min(seconds(federation.command("run", "simclr", "rouns=3")) for _ in range(2))
    assert refused - torch < 2


@pytest.mark.rows("P9")
@pytest.mark.parametrize(
    ("device", "sentence"),
    [
        ("cuda:99", 'device "cuda:99" is not available: torch'),
        ("mps", 'fedssl does not train on device "mps"; try auto, cpu, cuda or cuda:1'),
        ("meta", 'fedssl does not train on device "meta"; try auto, cpu, cuda or cuda:1'),
        ("gpu", 'unknown device "gpu"; try auto, cpu, cuda or cuda:1'),
        ("", 'unknown device ""'),
    ],
)
def test_missing_devices(device: str, sentence: str, federation: Any, cli: Any) -> None:
    code, _, err = cli(*federation.command("run")[3:], "--device", device)
    assert (code, err.count("\n")) == (2, 1)
    assert sentence in err


@pytest.mark.rows("P9")
def test_no_gpu(federation: Any, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, _, err = cli(*federation.command("run")[3:], "--device", "cuda")
    assert (code, err.count("\n")) == (2, 1)
    assert 'device "cuda" is not available' in err
    assert "detects 0 CUDA devices" in err


@pytest.mark.rows("C1")
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"rounds = ", "is not valid TOML, line 1: the value is missing"),
        (b"\xff\xfe\x00", "cannot be read: 'utf-8'"),
        (b'[method]\nname = "byol"\n', "missing table [data], which has no default"),
        (b"rounds = 3\nrounds = 4\n", "is not valid TOML, line 2: this key was set before"),
        (b'[data]\nname = "given"\n', "missing table [method], which has no default"),
        (
            b'[method]\nbackbone = "cnn"\n[data]\nname = "given"\n',
            "[method] needs a name; known: autoencoder, barlow",
        ),
    ],
)
def test_files_that_are_no_experiment(text: bytes, sentence: str, tmp_path: Path, cli: Any) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(text)
    code, _, err = cli("run", str(path), "--dir", str(tmp_path / "run"))
    lines = 3 if "TOML" in sentence else 1  # with the line of the file and a caret
    assert (code, err.count("\n")) == (2, lines)
    assert sentence in err


@pytest.mark.rows("C1")
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("dmo", 'there is no recipe or file "dmo", did you mean "demo"?'),
        ("nowhere.toml", "there is no file nowhere.toml"),
        (".", ". is a folder, not an experiment: fedssl new . writes an experiment for the images"),
        ("", 'there is no recipe or file ""'),
    ],
)
def test_unknown_names(name: str, sentence: str, cli: Any) -> None:
    code, _, err = cli("run", name)
    assert (code, err.count("\n")) == (2, 1)
    assert sentence in err


def test_a_run_directory_that_is_a_file(federation: Any, cli: Any) -> None:
    (federation.root / "run").write_text("my notes")
    code, _, err = cli(*federation.command("run")[3:])
    assert (code, err.count("\n")) == (2, 1)
    assert "is a file, not a run directory" in err
    code, _, err = cli(*federation.command("run/inside")[3:])
    assert code == 4
    assert "cannot be written" in err.splitlines()[-1]
    assert (federation.root / "run").read_text() == "my notes"


def test_missing_images(federation: Any, cli: Any) -> None:
    (federation.root / "data/tiny.npz").unlink()
    code, _, err = cli(*federation.command("run")[3:])
    places = f"in the data directory (--data-dir) {federation.root}/data or in the working directory {Path.cwd()}"
    assert (code, err.splitlines()[-1]) == (3, f"fedssl: there is no file tiny.npz {places}")
    assert not (federation.root / "run").exists()


@pytest.mark.parametrize(
    ("sets", "code", "sentence"),
    [
        (["method.backbone=cnn5"], 2, "cnn5 needs images of at least 16 × 16 pixels"),
        (
            ["data.mean=[0.5]", "data.std=[0.5]"],
            2,
            "data.mean has 1 numbers, but the images have 3 channels",
        ),
        (
            ["clients=100"],
            2,
            "48 images are too few for 100 clients, because training needs two images per client: "
            "set clients to 24 or fewer",
        ),
        (
            ["clients=48"],
            2,
            "training needs 2 images per client, and 0 of 48 clients have them: set clients to 24 "
            "or fewer",
        ),
        (["partition.name=natural"], 2, 'partition "natural" needs data with owners'),
        (["data.holdout=48"], 3, "holdout = 48 would leave nothing of 48 training images"),
        (
            ["partition.name=listed", "partition.path=nowhere.json"],
            3,
            "the partition cannot be read from nowhere.json",
        ),
        (["partition.name=classes", "partition.per_client=2"], 2, None),
    ],
)
def test_errors_that_depend_on_the_images(
    sets: list[str], code: int, sentence: str | None, federation: Any, cli: Any
) -> None:
    found, _, err = cli(*federation.command("run", "simclr", "rounds=1", *sets)[3:])
    if sentence is None:
        assert found == 0  # 3 clients of 2 classes each from 3 classes: a multiple, so it works
        return
    assert found == code
    assert sentence in err.splitlines()[-1]
    assert "Traceback" not in err
