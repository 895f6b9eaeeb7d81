"""Results measured before are reused, and only if everything that decides them is equal."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fedssl
from fedssl.core.files import integrity
from fedssl.data import Dataset
from fedssl.data.images import Images
from fedssl.evaluation.evaluate import Evaluation
from fedssl.runs import earlier_results
from tests.factories import bright_dataset, bright_pixels, make_experiment

RESTORED = "the run was measured with these settings before: results restored from "


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The settings k of all measurements."""
    settings = []
    measure = Evaluation.measure

    def record(evaluation: Evaluation, *args: Any) -> Any:
        settings.append(evaluation.knn_settings["k"])
        return measure(evaluation, *args)

    monkeypatch.setattr(Evaluation, "measure", record)
    return settings


def _run(
    folder: Path, k: int, data: Dataset | None = None, *, quiet: bool = True, **settings: Any
) -> fedssl.Run:
    experiment = make_experiment(settings, probe__k=k)
    return fedssl.run(experiment, folder, "cpu", dataset=data or bright_dataset(), quiet=quiet)


def _bytes(folder: Path) -> dict[str, bytes]:
    """Return the files of a measurement."""
    names = [name for name in integrity.OUTPUTS if (folder / name).is_file()]
    return {name: (folder / name).read_bytes() for name in names}


def test_earlier_settings_bring_back_their_results(
    tmp_path: Path, measured: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is measured, the files have the same bytes, and the others are kept instead."""
    pytest.importorskip("matplotlib")
    picture = {"probe.picture": True}
    _run(tmp_path, 5, **picture)
    five = _bytes(tmp_path)
    _run(tmp_path, 3, **picture)
    three = _bytes(tmp_path)
    assert measured == [5, 3]
    assert five.keys() == three.keys() == set(integrity.OUTPUTS)
    capsys.readouterr()
    run = _run(tmp_path, 5, quiet=False, **picture)
    place = tmp_path / "earlier" / "1"
    (line,) = [line for line in capsys.readouterr().err.splitlines() if RESTORED in line]
    assert line == f"{RESTORED}{place}, which now has those with the other settings"
    assert measured == [5, 3]
    assert _bytes(tmp_path) == five
    assert _bytes(place) == three
    assert integrity.damaged(tmp_path) == []
    assert run.results["knn_settings"]["k"] == 5


def test_restored_results_are_up_to_date(
    tmp_path: Path, measured: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """The same command again changes nothing; exported backbones have the new experiment's hash."""
    for k in (5, 3, 5):
        run = _run(tmp_path, k)
    capsys.readouterr()
    _run(tmp_path, 5, quiet=False)
    assert "was finished already" in capsys.readouterr().err
    header, _ = fedssl.nets.read_weights(tmp_path / "backbone.safetensors")
    assert header["experiment"] == run.experiment.hash()
    assert measured == [5, 3]


def test_each_of_several_settings_comes_back(tmp_path: Path, measured: list[int]) -> None:
    for k in (5, 3, 4, 5, 3, 4):
        assert _run(tmp_path, k).results["knn_settings"]["k"] == k
    assert measured == [5, 3, 4]
    kept = [json.loads((tmp_path / f"earlier/{n}/results.json").read_text()) for n in (1, 2)]
    assert [results["knn_settings"]["k"] for results in kept] == [3, 5]


def test_results_of_an_interrupted_change_come_back(
    tmp_path: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measurement with k = 3 is interrupted before it has a result."""
    _run(tmp_path, 5)
    first = _bytes(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Evaluation, "measure", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            _run(tmp_path, 3)
    assert not (tmp_path / "results.json").exists()
    _run(tmp_path, 5)
    assert _bytes(tmp_path) == first
    assert measured == [5]
    assert list((tmp_path / "earlier").iterdir()) == []


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("step", range(7))
def test_a_kill_while_results_are_exchanged_loses_none(
    tmp_path: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Three files are copied to earlier/, three are copied back, and the kept ones are removed."""
    results = {}
    for k in (5, 3):
        _run(tmp_path, k)
        results[k] = _bytes(tmp_path)
    steps = iter(range(7))

    def kill_at(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if next(steps, None) == step:
                raise KeyboardInterrupt
            return function(*args, **options)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(earlier_results, "write_atomic", kill_at(earlier_results.write_atomic))
        patch.setattr(earlier_results.shutil, "rmtree", _rmtree_of_kept(kill_at))
        with pytest.raises(KeyboardInterrupt):
            _run(tmp_path, 5)
    for k in (5, 3, 5):
        _run(tmp_path, k)
        assert _bytes(tmp_path) == results[k]
    assert measured == [5, 3]


def _rmtree_of_kept(kill_at: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
    """Return rmtree that may be killed, except where it removes an unfinished copy."""
    rmtree = shutil.rmtree
    killed = kill_at(rmtree)

    def remove(path: Path, ignore_errors: bool = False) -> None:
        (rmtree if ignore_errors else killed)(path, ignore_errors)

    return remove


# -- what must be equal --


def test_settings_of_no_earlier_measurement_are_measured(
    tmp_path: Path, measured: list[int]
) -> None:
    for k in (5, 3, 4):
        _run(tmp_path, k)
    assert measured == [5, 3, 4]


def _with_test_images(data: Dataset) -> Dataset:
    return data._replace(test=bright_dataset(test=30).test)


def _with_labels(data: Dataset) -> Dataset:
    """Return the same images with other labels of the test images."""
    assert data.test is not None
    return data._replace(test=Images(data.test.pixel_rows, 2 - data.test.labels))


@pytest.mark.parametrize("change", [_with_test_images, _with_labels])
def test_other_test_images_and_labels_are_measured(
    tmp_path: Path, measured: list[int], change: Callable[[Dataset], Dataset]
) -> None:
    _run(tmp_path, 5)
    _run(tmp_path, 3)
    _run(tmp_path, 5, change(bright_dataset()))
    assert measured == [5, 3, 5]


def test_other_images_that_probes_learn_from_are_measured(
    tmp_path: Path, measured: list[int]
) -> None:
    """An image that no client has: the run can be resumed, but kNN has another neighbour."""
    data = bright_dataset()
    share = {"partition": {"name": "iid", "share": 0.5}}
    _run(tmp_path, 5, data, **share)
    _run(tmp_path, 3, data, **share)
    run = _run(tmp_path, 3, data, **share)
    _, owners = run.partition_data(data)
    owned = {int(index) for rows in owners.values() for index in rows}
    unowned = min(set(range(48)) - owned)
    pixels, labels = bright_pixels(48)
    pixels[unowned] = 255 - pixels[unowned]
    changed = data._replace(train=fedssl.data.from_python((pixels, labels)).train)
    _run(tmp_path, 5, changed, **share)
    assert measured == [5, 3, 5]


def _replace_checkpoints(run: Path, other: Path) -> None:
    """Replace the checkpoints of a run by those of another."""
    for name in ("checkpoints", "memory"):
        shutil.rmtree(run / name)
        shutil.copytree(other / name, run / name)


def test_other_weights_are_measured(tmp_path: Path, measured: list[int]) -> None:
    """A run of another seed, whose checkpoints replace those of the directory."""
    _run(tmp_path / "a", 5)
    _run(tmp_path / "a", 3)
    _run(tmp_path / "b", 3, seed=7)
    _replace_checkpoints(tmp_path / "a", tmp_path / "b")
    _run(tmp_path / "a", 5)
    assert measured == [5, 3, 3, 5]


@pytest.mark.parametrize("change", ["other", "missing"])
def test_baselines_with_other_weights_are_measured(
    tmp_path: Path, measured: list[int], change: str
) -> None:
    """One that is missing is trained again. Each measurement is of the run and of the baseline."""
    alone = {"probe.baselines": ["isolated"]}
    for k in (5, 3):
        _run(tmp_path / "a", k, **alone)
    isolated = tmp_path / "a" / "isolated"
    if change == "other":
        _run(tmp_path / "b", 3, seed=7, **alone)
        _replace_checkpoints(isolated, tmp_path / "b" / "isolated")
    else:
        shutil.rmtree(isolated)
    before = len(measured)
    _run(tmp_path / "a", 5, **alone)
    assert measured[before:] == [5, 5]


def test_baselines_are_restored_with_the_run(tmp_path: Path, measured: list[int]) -> None:
    settings = {"probe.baselines": ["random", "isolated"]}
    for k in (5, 3, 5):
        run = _run(tmp_path, k, **settings)
    assert list(run.results["table"]) == ["this run", "random", "isolated"]
    assert measured == [5] * 3 + [3] * 3


@pytest.mark.parametrize("name", ["results.json", "classes.json", "outcomes.safetensors"])
@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_damaged_results_do_not_come_back(
    tmp_path: Path, measured: list[int], name: str, damage: str
) -> None:
    _run(tmp_path, 5)
    _run(tmp_path, 3)
    file = tmp_path / "earlier" / "1" / name
    if damage == "changed":
        file.write_bytes(file.read_bytes().replace(b"0", b"1", 1))
    else:
        file.unlink()
    _run(tmp_path, 5)
    assert measured == [5, 3, 5]


def test_results_without_hashes_do_not_come_back(tmp_path: Path, measured: list[int]) -> None:
    """As those that an earlier version kept."""
    _run(tmp_path, 5)
    _run(tmp_path, 3)
    (tmp_path / "earlier" / "1" / integrity.NAME).unlink()
    _run(tmp_path, 5)
    assert measured == [5, 3, 5]


@pytest.mark.parametrize("key", ["checkpoints", "training_images"])
def test_results_that_do_not_identify_their_models_and_images_do_not_come_back(
    tmp_path: Path, measured: list[int], key: str
) -> None:
    _run(tmp_path, 5)
    _run(tmp_path, 3)
    place = tmp_path / "earlier" / "1"
    results = json.loads((place / "results.json").read_text())
    del results[key]
    (place / "results.json").write_text(json.dumps(results))
    integrity.record_hashes(place, ["results.json"])
    _run(tmp_path, 5)
    assert measured == [5, 3, 5]


def test_an_unfinished_measurement_does_not_come_back(
    tmp_path: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first has a row when it is interrupted while a baseline is measured."""
    settings = {"probe.baselines": ["random"]}
    measure = Evaluation.measure

    def measure_once(evaluation: Evaluation, *args: Any) -> Any:
        if measured:
            raise KeyboardInterrupt
        return measure(evaluation, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Evaluation, "measure", measure_once)
        with pytest.raises(KeyboardInterrupt):
            _run(tmp_path, 5, **settings)
    assert json.loads((tmp_path / "results.json").read_text())["table"].keys() == {"this run"}
    measured.clear()
    _run(tmp_path, 3, **settings)
    _run(tmp_path, 5, **settings)
    assert measured == [3, 3, 5, 5]
