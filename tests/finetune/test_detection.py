"""Fine-tuning Mask R-CNN, end to end on a CPU, with torchvision's operators or the tests' plain ones."""

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
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from fedssl import nets
from fedssl.drive import Interrupted
from fedssl.errors import ConfigError, RunError
from fedssl.finetune import detection, maskrcnn, training
from fedssl.finetune.batches import Sample, make
from fedssl.finetune.coco import read_coco
from fedssl.finetune.detection import fine_tune
from fedssl.finetune.folders import Given, Part, locate
from fedssl.finetune.settings import DetectionSettings
from fedssl.finetune.start import read_start
from fedssl.report.rounds import read_rounds

pytestmark = [pytest.mark.slow]
pytest.importorskip("pycocotools")

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "detection.md"
Tiny = Callable[..., DetectionSettings]
Make = Callable[..., Path]
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _torchvision() -> None:
    pytest.importorskip("torchvision")


def parts(folder: Path) -> tuple[Part, Part]:
    return locate("train", folder, Given()), locate("val", folder, Given())


def backbone_of(folder: Path | str) -> dict[str, Tensor]:
    prefix = "backbone.body."
    tensors = load_file(Path(folder) / "model.safetensors")
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """Names of the tensors that differ, but for counters."""
    return {name for name in after if "num_batches" not in name and not torch.equal(before[name], after[name])}


def test_it_learns_shapes(
    export: Make, shapes_of: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Eight images learned by heart: nearly everything is found and outlined, hardly anything by one untrained.
    Asking again trains nothing; the file it leaves can be used as the page says, and finds the same."""
    train, val = parts(shapes_of(8, 64))
    small: dict[str, Any] = {"batch": 4, "size": 64, "width": 32, "regions": 32}
    before = fine_tune(export(), train, val, DetectionSettings(iterations=0, **small), device="cpu", quiet=True)
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

    model = detection.load("model.safetensors")
    coco = read_coco(*val)
    assert model.classes == ["circle", "square", "triangle"]
    figures = detection.average_precision(coco, detection.detect(model, coco, 3, torch.device("cpu"), lambda n: None))
    assert figures["masks"]["AP"] == pytest.approx(after["masks"]["AP"])


def test_the_whole_model_moves(export: Make, shapes_of: Make, tiny: Tiny) -> None:
    """Every weight of the backbone, and every statistic of its norm layers."""
    start = load_file(export())
    after = backbone_of(fine_tune(export(), *parts(shapes_of()), tiny(), device="cpu", quiet=True)["dir"])
    assert after.keys() == start.keys()
    assert moved(start, after) == {name for name in start if "num_batches" not in name}


def test_what_is_frozen_does_not_move(export: Make, shapes_of: Make, tiny: Tiny) -> None:
    """freeze = 5 is all of the backbone, statistics included; 2 the stem and the first stage; norm = frozen the norm
    layers alone. Heads learn all the same."""
    train, val = parts(shapes_of())
    start = load_file(export())
    all_names = {name for name in start if "num_batches" not in name}
    norms = {name for name in all_names if ".bn" in f".{name}" or "downsample.1" in name}
    early = {name for name in all_names if name.startswith(("conv1.", "bn1.", "layer1."))}
    for change, still in (({"freeze": 5}, all_names), ({"freeze": 2}, early), ({"norm": "frozen"}, norms)):
        done = fine_tune(export(), train, val, tiny(**change), device="cpu", quiet=True)
        assert moved(start, backbone_of(done["dir"])) == all_names - still, change
        after = load_file(Path(done["dir"]) / "model.safetensors")
        fresh = maskrcnn.build(read_start(export()), tiny(**change), 3).state_dict()
        assert moved(fresh, after) >= {"rpn.head.cls_logits.weight", "roi_heads.mask_predictor.conv5_mask.weight"}


def test_the_backbone_is_the_exported_one(export: Make, tiny: Tiny) -> None:
    """The mean of the last map is what fedssl's own backbone computes; mean and std are those of its header."""
    for stem in ("imagenet", "cifar"):
        file = export(stem, mean=[0.1, 0.2, 0.3], std=[0.4, 0.5, 0.6])
        model: Any = maskrcnn.build(read_start(file), tiny(), 3).eval()
        own = nets.build("resnet18", 3, stem).eval()
        own.load_state_dict(load_file(file))
        images = torch.rand(2, 3, 64, 64)
        with torch.no_grad():
            torch.testing.assert_close(model.backbone.body(images)["3"].mean((2, 3)), own(images))
            transformed = model.transform([images[0]])[0].tensors[0]
        torch.testing.assert_close(transformed, (images[0] - torch.tensor([0.1, 0.2, 0.3])[:, None, None])
            / torch.tensor([0.4, 0.5, 0.6])[:, None, None])  # fmt: skip


@pytest.mark.parametrize(("stem", "first"), [("imagenet", 4), ("cifar", 1)])
def test_anchors_go_with_the_cells(export: Make, tiny: Tiny, stem: str, first: int) -> None:
    """At every level they are eight cells wide: 32 to 512 pixels with cells of 4, 8 to 128 with cells of 1."""
    model: Any = maskrcnn.build(read_start(export(stem)), tiny(), 3).eval()
    with torch.no_grad():
        maps = model.backbone(torch.rand(1, 3, 64, 64))
    cells = [64 / m.shape[-1] for m in maps.values()]
    assert cells == [first * 2**level for level in range(5)]
    assert [size for (size,) in model.rpn.anchor_generator.sizes] == [8 * cell for cell in cells]


def test_other_stems_channels_and_starts(export: Make, shapes_of: Make, tiny: Tiny) -> None:
    """A grey backbone sees grey images; an untrained one is drawn and learns."""
    train, val = parts(shapes_of(4, 32))
    for stem, channels in (("cifar", 1), ("imagenet", 1)):
        done = fine_tune(export(stem, channels), train, val, tiny(size=32, iterations=1), device="cpu", quiet=True)
        assert backbone_of(done["dir"])["conv1.weight"].shape[1] == 1
    file = export("cifar")
    done = fine_tune(file, train, val, tiny(size=32, start="random", iterations=0), device="cpu", quiet=True)
    assert done["start"] == "random"
    found = backbone_of(done["dir"])
    assert torch.equal(found["conv1.weight"], read_start(file).untrained(0).weights["conv1.weight"])
    assert not torch.equal(found["conv1.weight"], load_file(file)["conv1.weight"])


def test_stopped_and_gone_on_with(
    export: Make,
    shapes_of: Make,
    tiny: Tiny,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Ctrl-C after three of six steps, then a death in the fifth, which costs the fourth: the same bits as without, and
    a log without what was done twice. Two steps are an epoch."""
    monkeypatch.setattr(training, "LOG_EVERY", 1)
    train, val = parts(shapes_of(4))
    settings = tiny(iterations=6)
    straight = fine_tune(export(), train, val, settings, tmp_path / "straight", "cpu", quiet=True)
    step, count = training.Training._step, []

    def interrupted(self: training.Training, iteration: int, samples: list[Sample]) -> None:
        if iteration == 4 and count.count(3) == 1:
            raise ZeroDivisionError
        step(self, iteration, samples)
        count.append(iteration)
        if iteration == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(training.Training, "_step", interrupted)
    with pytest.raises(Interrupted, match="stopped after iteration 3 of 6; the same command goes on"):
        fine_tune(export(), train, val, settings, tmp_path / "stopped", "cpu", quiet=True)
    assert (
        capfd.readouterr().err == "stopping: the step under way ends, and what is finished is saved; the same "
        "command goes on\n"
    )
    with pytest.raises(ZeroDivisionError):
        fine_tune(export(), train, val, settings, tmp_path / "stopped", "cpu", quiet=True)
    resumed = fine_tune(export(), train, val, settings, tmp_path / "stopped", "cpu", quiet=True)
    assert count == [0, 1, 2, 3, 3, 4, 5]
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in ("straight", "stopped"))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert resumed["boxes"] == straight["boxes"]
    lines = [[line["loss"] for line in read_rounds(tmp_path / name / "log.jsonl")] for name in ("straight", "stopped")]
    assert lines[0] == lines[1]
    assert len(lines[0]) == 6


def test_a_directory_is_about_one_fine_tuning(export: Make, shapes_of: Make, tiny: Tiny, tmp_path: Path) -> None:
    train, val = parts(shapes_of())
    fine_tune(export(), train, val, tiny(iterations=0), tmp_path / "d", "cpu", quiet=True)
    with pytest.raises(ConfigError, match=r"another fine-tuning \(settings.iterations was 0, not 1\)"):
        fine_tune(export(), train, val, tiny(iterations=1), tmp_path / "d", "cpu", quiet=True)
    with pytest.raises(ConfigError, match=r"another fine-tuning \(another backbone\)"):
        fine_tune(export("cifar"), train, val, tiny(iterations=0), tmp_path / "d", "cpu", quiet=True)


def test_images_without_objects(
    export: Make, shapes_of: Make, tiny: Tiny, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Left out of training, and said; kept with keep_empty, in a batch of nothing else, too. An object without extent
    is dropped, and said."""
    folder = shapes_of()
    file = folder / "annotations" / "instances_train.json"
    body = json.loads(file.read_text())
    body["annotations"] = [a for a in body["annotations"] if a["image_id"] == 100]
    body["annotations"].append(body["annotations"][0] | {"id": 77, "bbox": [3, 3, 0, 5]})
    file.write_text(json.dumps(body))
    train, val = parts(folder)
    done = fine_tune(export(), train, val, tiny(iterations=1), tmp_path / "a", "cpu")
    told = capsys.readouterr().err
    assert done["train_images"] == 1
    assert "train: 3 images without objects are left out" in told
    assert "train: 1 objects have no extent" in told
    kept = fine_tune(export(), train, val, tiny(keep_empty=True, iterations=2, batch=1), tmp_path / "b", "cpu")
    assert kept["train_images"] == 4
    empty = [make(picture, 3) for picture in read_coco(*train).pictures if not picture.objects]
    model: Any = maskrcnn.build(read_start(export()), tiny(), 3)
    maskrcnn.training_mode(model, tiny())
    losses = model([sample.image for sample in empty], [sample.target for sample in empty])
    total = sum(losses.values())
    total.backward()
    assert torch.isfinite(total)
    assert model.rpn.head.cls_logits.weight.grad.abs().sum() > 0


def test_annotations_that_do_not_fit_each_other(export: Make, shapes_of: Make, tiny: Tiny) -> None:
    folder = shapes_of()
    train, val = parts(folder)
    body = json.loads(val.annotations.read_text())
    val.annotations.write_text(json.dumps(body | {"categories": [*body["categories"], {"id": 99, "name": "x"}]}))
    with pytest.raises(ConfigError, match="do not have the same categories"):
        fine_tune(export(), train, val, tiny(), device="cpu", quiet=True)
    val.annotations.write_text(json.dumps(body))
    train.annotations.write_text(json.dumps(body | {"annotations": []}))
    with pytest.raises(ConfigError, match="no object to learn from"):
        fine_tune(export(), train, val, tiny(), device="cpu", quiet=True)


def test_a_rate_that_is_too_high(export: Make, shapes_of: Make, tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="the loss is not finite by iteration 20: start again with an lr below 1e"):
        fine_tune(export(), *parts(shapes_of()), tiny(lr=1e9, iterations=40), tmp_path / "d", "cpu", quiet=True)
    assert not (tmp_path / "d" / "model.safetensors").exists()


def test_weights_that_do_not_fit(export: Make, shapes_of: Make, tiny: Tiny) -> None:
    file = export("cifar", stem="imagenet")  # which the header says
    with pytest.raises(ConfigError, match="does not fit the resnet18 it says it is"):
        fine_tune(file, *parts(shapes_of()), tiny(), device="cpu", quiet=True)


def test_the_command(export: Make, shapes_of: Make, cli: Cli, tmp_path: Path) -> None:
    export()
    args = ["finetune", "detection", str(tmp_path), "--data", str(shapes_of()), "--iterations", "1", "--batch", "2"]
    args += ["--set", "width=8", "--set", "size=64", "--set", "regions=16", "--device", "cpu"]
    code, out, err = cli(*args)
    assert code == 0
    assert "Mask R-CNN from a pretrained backbone, 1 iterations: precision in %" in out
    assert "batches of 2 are few" in err
    assert "iteration 1/1" in err
    code, out, err = cli(*args, "--json", "--quiet", "--from", "random")
    found = json.loads(out)
    assert (code, found["start"], err) == (0, "random", "")
    assert {path.name for path in Path(found["dir"]).iterdir()} == {
        "checkpoints", "integrity.jsonl", "log.jsonl", "log.jsonl.copy", "metrics.json", "model.safetensors",
        "run.lock", "settings.json"
    }  # fmt: skip
    code, _, err = cli(*args, "--set", "nrom=frozen")
    assert (code, err) == (2, 'fedssl: unknown key "nrom", did you mean "norm"?\n')
    code, _, err = cli(*args, "--from", "scratch")
    assert code == 2
