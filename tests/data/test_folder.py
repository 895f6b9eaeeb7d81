import shutil
from pathlib import Path

import pytest
import torch
from client_parts import as_lists
from error_messages import raises
from image_files import greys, load, put
from pydantic import ValidationError

from fedssl.core.console import names_hidden
from fedssl.core.errors import DataError
from fedssl.data import Folder, skipped_files
from fedssl.data import folder as folder_module


def test_layouts(tmp_path):
    for k, name in enumerate(
        ("b/y/1.png", "a/x/1.png", "a/y/1.png", "b/y/deep/2.png", "c/x/1.png")
    ):
        put(tmp_path, name, k)
    in_order = [1, 2, 0, 3, 4]  # of names

    both = load(tmp_path, "clients-classes")
    assert greys(both.train) == in_order
    assert as_lists(both.owners) == {
        "a": [0, 1],
        "b": [2, 3],
        "c": [4],
    }
    assert both.train.classes == ("x", "y")
    assert both.train.labels.tolist() == [0, 1, 1, 1, 0]

    clients = load(tmp_path, "clients")
    assert not clients.train.labelled
    assert clients.owners["b"].tolist() == [2, 3]

    classes = load(tmp_path, "classes")
    assert classes.owners is None
    assert classes.train.labels.tolist() == [0, 0, 1, 1, 2]

    flat = load(tmp_path)
    assert not flat.train.labelled
    assert flat.owners is None
    assert greys(flat.train) == in_order


def test_size_and_channels(tmp_path):
    put(tmp_path, "a.png", 9)
    assert Folder(path=".", size=5, layout="flat").load(tmp_path).train.pixels.shape == (1, 3, 5, 5)


@pytest.mark.parametrize("name", ["test", "val"])
def test_train_and_test_folders_are_recognised(tmp_path, name):
    for k, path in enumerate(("train/x/1.png", "train/y/1.png", f"{name}/y/1.png")):
        put(tmp_path, path, k)
    data = load(tmp_path, "classes")
    assert greys(data.train) == [0, 1]
    assert greys(data.test) == [2]
    assert data.test.labels.tolist() == [1]  # numbered as in training
    put(tmp_path, f"{name}/z/1.png", 3)
    with raises(DataError):
        load(tmp_path, "classes")


def test_a_class_may_be_called_train(tmp_path):
    for k, path in enumerate(("car/1.png", "train/1.png")):
        put(tmp_path, path, k)
    data = load(tmp_path, "classes")
    assert data.train.classes == ("car", "train")
    assert data.test is None


def test_test_images_elsewhere(tmp_path):
    put(tmp_path, "here/u/1.png", 1)
    put(tmp_path, "there/x/1.png", 2)
    put(tmp_path, "there/y/1.png", 3)
    data = Folder(path="here", size=1, layout="clients", test="there").load(tmp_path)
    assert greys(data.test) == [2, 3]
    assert data.test.labels.tolist() == [0, 1]
    assert data.test.classes == ("x", "y")
    assert not data.train.labelled
    for path, test in ((".", "there"), ("there/x", "there"), ("there", "there")):
        with raises(DataError):
            Folder(path=path, size=1, layout="flat", test=test).load(tmp_path)


@pytest.fixture(scope="module")
def thousand(tmp_path_factory):
    """990 good images and ten bad ones: three empty, three text, two truncated, two unreadable."""
    root = tmp_path_factory.mktemp("thousand")
    put(root, "0000.png", 5)
    for k in range(1, 990):
        shutil.copy(root / "0000.png", root / f"{k:04}.png")
    whole = (root / "0000.png").read_bytes()
    contents = [b""] * 3 + [b"text"] * 3 + [whole[:45]] * 2 + [b"\x89PNG\r\n\x1a\n" + bytes(40)] * 2
    for k, content in enumerate(contents):
        (root / f"bad{k}.png").write_bytes(content)
    return root


@pytest.mark.rows("D1")
def test_ten_bad_files_in_a_thousand_are_skipped_counted_and_listed(thousand):
    data = load(thousand)
    assert len(data.train) == 990
    assert data.train.pixels.unique().tolist() == [5]
    assert data.skipped == (
        "empty file: bad0.png",
        "empty file: bad1.png",
        "empty file: bad2.png",
        "not an image: bad3.png",
        "not an image: bad4.png",
        "not an image: bad5.png",
        "truncated or damaged: bad6.png",
        "truncated or damaged: bad7.png",
        "not an image: bad8.png",
        "not an image: bad9.png",
    )


@pytest.mark.rows("D1")
def test_more_bad_files_than_allowed_are_an_error(thousand):
    with raises(DataError) as raised:
        load(thousand, bad_share=0.009)
    assert "bad0" not in str(raised.value)  # which may go into a log or a table
    lines = raised.value.detail.splitlines()
    assert (len(lines), lines[0], lines[-1]) == (
        10,
        "empty file: bad0.png",
        "not an image: bad9.png",
    )


@pytest.mark.rows("D1")
def test_all_unreadable_files_are_listed_in_a_private_file(tmp_path):
    """Of 25 files, the error lists 20; those of all clients are reported together."""
    for k in range(25):
        put(tmp_path, f"photos/{'ab'[k % 2]}/good{k:02}.png", k)
        (tmp_path / f"photos/{'ab'[k % 2]}/bad{k:02}.png").touch()
    cache = tmp_path / "cache"
    with raises(DataError) as raised:
        load(tmp_path / "photos", "clients", cache=str(cache))
    lines = raised.value.detail.splitlines()
    assert (len(lines), lines[-1]) == (21, "and 5 more")
    listed = cache / "unreadable.txt"
    assert listed.stat().st_mode & 0o077 == 0
    first, *names = listed.read_text("utf-8").splitlines()
    assert first == f"in {tmp_path / 'photos'}"
    assert len(names) == 25
    assert names[:20] == lines[:20]


def test_without_a_cache_no_list_is_written(tmp_path):
    (tmp_path / "bad.png").touch()
    with raises(DataError) as raised:
        load(tmp_path, cache="off")
    assert raised.value.detail == "empty file: bad.png"
    assert [path.name for path in tmp_path.iterdir()] == ["bad.png"]


@pytest.mark.parametrize("shown", [False, True])
def test_files_that_are_no_images_are_skipped_and_counted(tmp_path, monkeypatch, shown):
    """They are not unreadable images: bad_share = 0 allows them. Archives are: they may hold data.

    Where names are hidden, kinds of files are printed.
    """
    monkeypatch.setattr(skipped_files, "names_are_shown", lambda: shown)
    put(tmp_path, "a/1.png", 1)
    put(tmp_path, "b/2", 2)  # an image without a suffix
    for name in ("a/Thumbs.db", "a/.DS_Store", "b/desktop.ini", "notes.TXT", "b/README"):
        (tmp_path / name).write_text("text")
    messages = []
    folder = Folder(path=".", size=2, channels=1, layout="clients", bad_share=0)
    data = folder.load(tmp_path, messages.append)
    assert greys(data.train) == [1, 2]
    kinds = "(.txt, desktop.ini, readme, …)"
    names = "(a/Thumbs.db, b/README, b/desktop.ini, …)"
    assert messages[-1] == f"skipped 4 files that are not images {names if shown else kinds}"
    (tmp_path / "b/scan.nii.gz").write_text("data")
    with raises(DataError):
        folder.load(tmp_path, messages.append)


def test_one_file_that_is_no_image(tmp_path):
    put(tmp_path, "1.png", 1)
    (tmp_path / "labels.csv").touch()
    messages = []
    Folder(path=".", size=2, layout="flat").load(tmp_path, messages.append)
    assert messages[-1] == "skipped 1 file that is not an image (labels.csv)"


def test_files_left_out_are_named(thousand, tmp_path_factory, monkeypatch):
    """MAX_LISTED = 8 of ten are named, and a private file names all."""
    cache = tmp_path_factory.mktemp("cache")
    folder = Folder(path=".", size=2, channels=1, layout="flat", cache=str(cache))
    for module in (skipped_files, folder_module):
        monkeypatch.setattr(module, "MAX_LISTED", 8)
    messages = []
    folder.load(thousand, messages.append)
    first, *lines = messages[-1].splitlines()
    assert first == "left out 10 files:"
    assert (lines[0], lines[-2:]) == (
        "  empty file: bad0.png",
        [
            "  truncated or damaged: bad7.png",
            f"  and 2 more; all are listed in {cache / 'unreadable.txt'}",
        ],
    )
    assert len((cache / "unreadable.txt").read_text().splitlines()) == 1 + 10


def test_files_left_out_are_counted_in_logs(thousand):
    messages = []
    with names_hidden():
        Folder(path=".", size=2, channels=1, layout="flat").load(thousand, messages.append)
    assert messages[-1].splitlines() == [
        "left out 10 files (files are named on a terminal only):",
        "  empty file: 3",
        "  not an image: 5",
        "  truncated or damaged: 2",
    ]


def test_the_share_of_bad_files_counts_by_client(tmp_path):
    for k in range(30):
        put(tmp_path, f"{'ab'[k % 2]}/{k}.png", k)
    (tmp_path / "b" / "bad").write_text("text")
    assert len(load(tmp_path, "clients", bad_share=0.07).train) == 30  # 1 of 16
    with raises(DataError):
        load(tmp_path, "clients", bad_share=0.06)
    assert len(load(tmp_path, "flat", bad_share=0.06).train) == 30  # 1 of 31


def test_exactly_the_share_allowed_is_allowed(tmp_path):
    for k in range(71):
        put(tmp_path, f"{k}.png", 1)
    for k in range(71, 100):
        (tmp_path / f"{k}.png").touch()
    assert len(load(tmp_path, bad_share=0.29).train) == 71
    with raises(DataError):
        load(tmp_path, bad_share=0.28)


def test_a_client_may_have_no_images(tmp_path):
    put(tmp_path, "a/1.png", 1)
    (tmp_path / "b").mkdir()
    assert as_lists(load(tmp_path, "clients").owners) == {
        "a": [0],
        "b": [],
    }


def test_nothing_to_read_is_an_error(tmp_path):
    with raises(DataError):
        load(tmp_path)


def test_a_missing_folder_is_reported_with_all_places_searched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path, problem in (
        (
            "none",
            f"none in the data directory (--data-dir) {tmp_path}/data "
            f"or in the working directory {tmp_path}",
        ),
        ("/nowhere/none", "/nowhere/none"),
    ):
        with pytest.raises(DataError) as missing:
            Folder(path=path, size=2, layout="flat").load(Path("data"), lambda _: None)
        assert str(missing.value) == f"there is no folder {problem}"
    put(tmp_path, "photos/x/1.png", 1)
    with raises(DataError):
        Folder(path="photos", test="tests", size=2, layout="flat").load(tmp_path, lambda _: None)
    with raises(DataError):
        Folder(path="photos/x/1.png", size=2, layout="flat").load(tmp_path, lambda _: None)


def test_a_path_is_looked_up_in_the_data_directory_then_in_the_working_directory(
    tmp_path, monkeypatch
):
    put(tmp_path, "work/photos/1.png", 1)
    monkeypatch.chdir(tmp_path / "work")
    photos = Folder(path="photos", size=2, channels=1, layout="flat")
    assert greys(photos.load(tmp_path / "data", lambda _: None).train) == [1]
    put(tmp_path, "data/photos/2.png", 2)
    assert greys(photos.load(tmp_path / "data", lambda _: None).train) == [2]


def test_settings_are_checked():
    with pytest.raises(ValidationError):
        Folder(path=".", size=0, layout="flat")


@pytest.mark.parametrize("slip", ["of", "Auto", "offf"])
def test_a_misspelled_cache_setting_is_not_taken_for_a_folder(slip):
    with pytest.raises(ValidationError, match='a folder, "auto" or "off", did you mean'):
        Folder(path=".", size=2, layout="flat", cache=slip)
    assert Folder(path=".", size=2, layout="flat", cache=f"./{slip}").cache == f"./{slip}"


def test_labels_are_lazy(tmp_path, monkeypatch):
    put(tmp_path, "x/1.png", 1)
    data = load(tmp_path, "classes")
    assert data.train.labelled

    def refuse(*_):
        raise RuntimeError("labels were loaded")

    monkeypatch.setattr(torch, "tensor", refuse)
    with pytest.raises(RuntimeError):
        _ = data.train.labels
