"""Fine-tune Mask R-CNN end to end on a CPU, with torchvision's operators or the tests' own."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from error_messages import raises
from PIL import Image
from safetensors.torch import load_file
from shapes import parts

from fedssl.core.errors import ConfigError, RunError
from fedssl.downstream.object_detection import finetune, maskrcnn, training
from fedssl.downstream.object_detection.backbone_file import read_backbone
from fedssl.downstream.object_detection.coco import read_coco
from fedssl.downstream.object_detection.finetune import fine_tune
from fedssl.downstream.object_detection.loader import Sample, load_sample
from fedssl.downstream.object_detection.settings import DetectionSettings
from fedssl.runs.local import STOPPING, Interrupted
from fedssl.runs.rounds_log import read_rounds

pytestmark = [pytest.mark.slow]
pytest.importorskip("pycocotools")

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "detection.md"
Tiny = Callable[..., DetectionSettings]
Make = Callable[..., Path]
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _torchvision() -> None:
    pytest.importorskip("torchvision")


def test_it_learns_shapes(
    export: Make,
    shapes_of: Make,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A detector trained on eight images finds nearly all of their objects, an untrained one hardly
    any. A second call does not train; the exported file works as the page describes, with the same
    figures.
    """
    train, val = parts(shapes_of(8, 64))
    small: dict[str, Any] = {"batch": 4, "size": 64, "width": 32, "regions": 32}
    before = fine_tune(
        export(), train, val, DetectionSettings(iterations=0, **small), device="cpu", quiet=True
    )
    settings = DetectionSettings(iterations=120, **small)
    after = fine_tune(export(), train, val, settings, device="cpu", quiet=True)
    for kind in ("boxes", "masks"):
        assert before[kind]["AP"] < 10
        assert after[kind]["AP"] > 50
        assert after[kind]["AP50"] > 80
        assert set(after[kind]["by_class"]) == {"circle", "square", "triangle"}
    lines = list(read_rounds(Path(after["dir"]) / "log.jsonl"))
    assert [line["iteration"] for line in lines] == [20, 40, 60, 80, 100, 120]
    assert lines[-1]["loss"] < lines[0]["loss"] / 3
    again = fine_tune(export(), train, val, settings, device="cpu", quiet=True)
    assert again == after

    monkeypatch.chdir(after["dir"])
    Image.open(train.images / "0.png").save("photo.jpg")
    (example,) = re.findall(r"```py\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    exec(compile(example, str(PAGE), "exec"), {})
    printed = capsys.readouterr().out
    assert re.search(r"^(circle|square|triangle) 0\.\d\d \[", printed), printed

    model = finetune.load("model.safetensors")
    coco = read_coco(*val)
    assert model.classes == ["circle", "square", "triangle"]
    figures = finetune.average_precision(
        coco, finetune.detect(model, coco, 3, device=torch.device("cpu"), advance=lambda n: None)
    )
    assert figures["masks"]["AP"] == pytest.approx(after["masks"]["AP"])


def test_a_stopped_fine_tuning_resumes_with_the_same_bits(
    export: Make,
    shapes_of: Make,
    tiny: Tiny,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The first start is interrupted after three of six steps. The second crashes in the fifth step
    and loses the fourth. The weights equal those of an uninterrupted fine-tuning, and the log has
    every step once. Two steps are an epoch.
    """
    monkeypatch.setattr(training, "LOG_EVERY", 1)
    train, val = parts(shapes_of(4))
    settings = tiny(iterations=6)
    straight = fine_tune(
        export(), train, val, settings, folder=tmp_path / "straight", device="cpu", quiet=True
    )
    step = training.Training._step
    count: list[int] = []

    def interrupted(self: training.Training, iteration: int, samples: list[Sample]) -> None:
        if iteration == 4 and count.count(3) == 1:
            raise ZeroDivisionError
        step(self, iteration, samples)
        count.append(iteration)
        if iteration == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(training.Training, "_step", interrupted)
    with raises(Interrupted):
        fine_tune(
            export(), train, val, settings, folder=tmp_path / "stopped", device="cpu", quiet=True
        )
    assert capfd.readouterr().err == f"{STOPPING}\n"
    with pytest.raises(ZeroDivisionError):
        fine_tune(
            export(), train, val, settings, folder=tmp_path / "stopped", device="cpu", quiet=True
        )
    resumed = fine_tune(
        export(), train, val, settings, folder=tmp_path / "stopped", device="cpu", quiet=True
    )
    assert count == [0, 1, 2, 3, 3, 4, 5]
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in ("straight", "stopped"))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert resumed["boxes"] == straight["boxes"]
    lines = [
        [line["loss"] for line in read_rounds(tmp_path / name / "log.jsonl")]
        for name in ("straight", "stopped")
    ]
    assert lines[0] == lines[1]
    assert len(lines[0]) == 6


def test_a_directory_is_about_one_fine_tuning(
    export: Make, shapes_of: Make, tiny: Tiny, tmp_path: Path
) -> None:
    train, val = parts(shapes_of())
    fine_tune(
        export(), train, val, tiny(iterations=0), folder=tmp_path / "d", device="cpu", quiet=True
    )
    with raises(ConfigError):
        fine_tune(
            export(),
            train,
            val,
            tiny(iterations=1),
            folder=tmp_path / "d",
            device="cpu",
            quiet=True,
        )
    with raises(ConfigError):
        fine_tune(
            export("cifar"),
            train,
            val,
            tiny(iterations=0),
            folder=tmp_path / "d",
            device="cpu",
            quiet=True,
        )


def test_images_without_objects(
    export: Make, shapes_of: Make, tiny: Tiny, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """They are left out of training and counted in a message, as are objects without extent;
    keep_empty keeps them, even in a batch without any object.
    """
    folder = shapes_of()
    file = folder / "annotations" / "instances_train.json"
    body = json.loads(file.read_text())
    body["annotations"] = [a for a in body["annotations"] if a["image_id"] == 100]
    body["annotations"].append(body["annotations"][0] | {"id": 77, "bbox": [3, 3, 0, 5]})
    file.write_text(json.dumps(body))
    train, val = parts(folder)
    done = fine_tune(export(), train, val, tiny(iterations=1), folder=tmp_path / "a", device="cpu")
    messages = capsys.readouterr().err
    assert done["train_images"] == 1
    assert "train: 3 images without objects are left out" in messages
    assert "train: 1 objects have no extent" in messages
    kept = fine_tune(
        export(),
        train,
        val,
        tiny(keep_empty=True, iterations=2, batch=1),
        folder=tmp_path / "b",
        device="cpu",
    )
    assert kept["train_images"] == 4
    empty = [load_sample(image, 3) for image in read_coco(*train).images if not image.objects]
    model: Any = maskrcnn.build_detector(read_backbone(export()), tiny(), 3)
    maskrcnn.set_training_mode(model, tiny())
    losses = model([sample.image for sample in empty], [sample.target for sample in empty])
    total = sum(losses.values())
    total.backward()
    assert torch.isfinite(total)
    assert model.rpn.head.cls_logits.weight.grad.abs().sum() > 0


def test_annotations_that_do_not_fit_each_other(export: Make, shapes_of: Make, tiny: Tiny) -> None:
    folder = shapes_of()
    train, val = parts(folder)
    body = json.loads(val.annotations.read_text())
    val.annotations.write_text(
        json.dumps(body | {"categories": [*body["categories"], {"id": 99, "name": "x"}]})
    )
    with raises(ConfigError):
        fine_tune(export(), train, val, tiny(), device="cpu", quiet=True)
    val.annotations.write_text(json.dumps(body))
    train.annotations.write_text(json.dumps(body | {"annotations": []}))
    with raises(ConfigError):
        fine_tune(export(), train, val, tiny(), device="cpu", quiet=True)


def test_a_rate_that_is_too_high(export: Make, shapes_of: Make, tiny: Tiny, tmp_path: Path) -> None:
    with raises(RunError):
        fine_tune(
            export(),
            *parts(shapes_of()),
            tiny(lr=1e9, iterations=40),
            folder=tmp_path / "d",
            device="cpu",
            quiet=True,
        )
    assert not (tmp_path / "d" / "model.safetensors").exists()


def test_weights_that_do_not_fit(export: Make, shapes_of: Make, tiny: Tiny) -> None:
    file = export("cifar", stem="imagenet")  # the header has another stem
    with raises(ConfigError):
        fine_tune(file, *parts(shapes_of()), tiny(), device="cpu", quiet=True)


def test_the_command(export: Make, shapes_of: Make, cli: Cli, tmp_path: Path) -> None:
    export()
    args = [
        "finetune",
        "detection",
        str(tmp_path),
        "--data",
        str(shapes_of()),
        "--iterations",
        "1",
        "--batch",
        "2",
    ]
    args += ["--set", "width=8", "--set", "size=64", "--set", "regions=16", "--device", "cpu"]
    code, out, err = cli(*args)
    assert code == 0
    assert "Mask R-CNN from a pretrained backbone, 1 iterations: precision in %" in out
    assert "batches of 2 are small" in err
    assert "fine-tuning" in err
    code, out, err = cli(*args, "--json", "--quiet", "--from", "random")
    found = json.loads(out)
    assert (code, found["start"], err) == (0, "random", "")
    assert {path.name for path in Path(found["dir"]).iterdir()} == {
        "checkpoints", "integrity.jsonl", "log.jsonl", "log.jsonl.copy", "metrics.json",
        "model.safetensors", "run.lock", "settings.json"
    }  # fmt: skip
    code, _, err = cli(*args, "--set", "nrom=frozen")
    assert (code, err) == (2, 'fedssl: unknown key "nrom", did you mean "norm"?\n')
    code, _, err = cli(*args, "--from", "scratch")
    assert code == 2
