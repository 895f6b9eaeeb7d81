import os
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from pydantic import ValidationError

from fedssl.data import Folder, images
from fedssl.data.walk import shown
from fedssl.errors import DataError


def put(root, name: str, grey: int) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (2, 2), grey).save(path, "PNG")


def load(root, layout="flat", **options):
    return Folder(path=".", size=2, channels=1, layout=layout, **options).load(root, lambda _: None)


def greys(images) -> list[int]:
    return images.pixels[:, 0, 0, 0].tolist()


def test_layouts(tmp_path):
    for k, name in enumerate(("b/y/1.png", "a/x/1.png", "a/y/1.png", "b/y/deep/2.png", "c/x/1.png")):
        put(tmp_path, name, k)
    in_order = [1, 2, 0, 3, 4]  # of names

    both = load(tmp_path, "clients-classes")
    assert greys(both.train) == in_order
    assert {name: index.tolist() for name, index in both.owners.items()} == {
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
    with pytest.raises(DataError, match='class "z" has test images'):
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
        with pytest.raises(DataError, match="would also be training images"):
            Folder(path=path, size=1, layout="flat", test=test).load(tmp_path)


@pytest.fixture(scope="module")
def thousand(tmp_path_factory):
    """990 good images and ten bad ones: three empty, three of text, two cut short, two unreadable."""
    root = tmp_path_factory.mktemp("thousand")
    put(root, "0000.png", 5)
    for k in range(1, 990):
        shutil.copy(root / "0000.png", root / f"{k:04}.png")
    whole = (root / "0000.png").read_bytes()
    contents = [b""] * 3 + [b"text"] * 3 + [whole[:45]] * 2 + [b"\x89PNG\r\n\x1a\n" + bytes(40)] * 2
    for k, content in enumerate(contents):
        (root / f"bad{k}.png").write_bytes(content)
    return root


def test_ten_bad_files_in_a_thousand_are_skipped_counted_and_listed(thousand):
    data = load(thousand)
    assert len(data.train) == 990
    assert data.train.pixels.unique().tolist() == [5]
    reasons = ["empty file"] * 3 + ["not an image"] * 3 + ["truncated or damaged"] * 2 + ["not an image"] * 2
    assert data.skipped == tuple(f"{reason}: bad{k}.png" for k, reason in enumerate(reasons))


def test_more_bad_files_than_allowed_are_an_error(thousand):
    with pytest.raises(DataError, match=r"10 of 1000 files .* bad_share = 0.009 .* the first: empty file") as raised:
        load(thousand, bad_share=0.009)
    assert "bad0" not in str(raised.value)  # which may go into a log or a table
    assert raised.value.detail == "the first is bad0.png"


def test_files_left_out_are_named_on_a_terminal_and_counted_elsewhere(thousand, monkeypatch):
    """A standard error that is no terminal may be kept; of ten names all are shown, of LISTED = 8 so many."""
    said = []
    Folder(path=".", size=2, channels=1, layout="flat").load(thousand, said.append)
    assert said[-1].splitlines() == [
        "left out 10 files (files are named on a terminal only):",
        "  empty file: 3",
        "  not an image: 5",
        "  truncated or damaged: 2",
    ]
    monkeypatch.setattr(images, "on_a_terminal", lambda: True)
    monkeypatch.setattr(images, "LISTED", 8)
    Folder(path=".", size=2, channels=1, layout="flat").load(thousand, said.append)
    lines = said[-1].splitlines()[1:]
    assert (lines[0], lines[-2:]) == ("  empty file: bad0.png", ["  truncated or damaged: bad7.png", "  and 2 more"])


def test_a_folder_that_cannot_be_listed_is_not_named_in_the_sentence(tmp_path, monkeypatch):
    put(tmp_path, "a/jones/1.png", 1)
    scan = os.scandir

    def refuse(path):
        if os.fspath(path).endswith("jones"):
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=r"^a folder in \S+ cannot be listed \(Permission denied\)$") as raised:
        load(tmp_path, "clients")
    assert "jones" not in str(raised.value)
    assert raised.value.detail == "it is a/jones"


def test_the_share_of_bad_files_counts_by_client(tmp_path):
    for k in range(30):
        put(tmp_path, f"{'ab'[k % 2]}/{k}.png", k)
    (tmp_path / "b" / "bad").write_text("text")
    assert len(load(tmp_path, "clients", bad_share=0.07).train) == 30  # 1 of 16
    with pytest.raises(DataError, match='client "b": 1 of 16 files'):
        load(tmp_path, "clients", bad_share=0.06)
    assert len(load(tmp_path, "flat", bad_share=0.06).train) == 30  # 1 of 31


def test_exactly_the_share_allowed_is_allowed(tmp_path):
    for k in range(100):
        put(tmp_path, f"{k}.png", 1) if k < 71 else (tmp_path / f"{k}.png").touch()
    assert len(load(tmp_path, bad_share=0.29).train) == 71
    with pytest.raises(DataError, match="29 of 100"):
        load(tmp_path, bad_share=0.28)


def test_a_client_may_have_no_images(tmp_path):
    put(tmp_path, "a/1.png", 1)
    (tmp_path / "b").mkdir()
    assert {name: index.tolist() for name, index in load(tmp_path, "clients").owners.items()} == {
        "a": [0],
        "b": [],
    }


def test_links_out_of_the_folder_are_not_followed(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "root-outside"
    put(root, "good.png", 1)
    put(outside, "secret.png", 2)
    (root / "escape.png").symlink_to(outside / "secret.png")
    (root / "up").symlink_to(outside)
    (root / "circle").symlink_to(root)
    (root / "loop").symlink_to(root / "loop")
    (root / "inside.png").symlink_to("good.png")
    os.mkfifo(root / "pipe")
    data = load(root, bad_share=0)
    assert greys(data.train) == [1, 1]
    assert sorted(data.skipped) == [
        "not a regular file: loop",
        "not a regular file: pipe",
        "symbolic link out of the folder: escape.png",
        "symbolic link out of the folder: up",
        "symbolic link to a folder: circle",
    ]


def test_links_into_what_is_hidden_are_followed(tmp_path):
    """As tools that keep versions of large files leave a folder."""
    put(tmp_path, "train/a/0.png", 0)
    put(tmp_path, "test/a/1.png", 1)
    (tmp_path / ".git/annex").mkdir(parents=True)
    (tmp_path / "train/a/0.png").rename(tmp_path / ".git/annex/key")
    (tmp_path / "train/a/0.png").symlink_to("../../.git/annex/key")
    data = load(tmp_path, "classes")
    assert (greys(data.train), data.skipped) == ([0], ())


def test_links_lead_neither_to_test_images_nor_to_another_client(tmp_path):
    for k, name in enumerate(("train/a/x/0.png", "train/ab/x/1.png", "test/x/2.png")):
        put(tmp_path, name, k)
    (tmp_path / "train/a/x/own.png").symlink_to("0.png")
    (tmp_path / "train/a/x/test.png").symlink_to("../../../test/x/2.png")
    (tmp_path / "train/a/x/theirs.png").symlink_to("../../ab/x/1.png")
    (tmp_path / "test/x/train.png").symlink_to("../../train/a/x/0.png")
    data = load(tmp_path, "clients-classes")
    assert (greys(data.train), greys(data.test)) == ([0, 0, 1], [2])
    links = ["train/a/x/test.png", "train/a/x/theirs.png", "test/x/train.png"]
    assert data.skipped == tuple(f"symbolic link out of the folder: {name}" for name in links)
    assert greys(load(tmp_path / "train", "classes").train) == [0, 0, 1, 1]  # between classes, which share everything


def test_odd_names(tmp_path):
    for k, name in enumerate(("a b/ü 'q'.png", "a b/-rf.png", "new\nline/x.png", ".hidden/1.png", "a b/.x.png")):
        put(tmp_path, name, k)
    odd = os.fsencode(tmp_path) + b"/a b/\xff.png"
    with open(odd, "wb") as out:
        out.write(b"text")
    data = load(tmp_path, "clients", bad_share=0.5)
    assert len(data.train) == 3
    assert list(data.owners) == ["a b", "new\\nline"]
    assert data.skipped == ("not an image: a b/\\xff.png",)
    assert shown("plain ü.png") == "plain ü.png"


@pytest.mark.parametrize(("layout", "what"), [("clients", "client"), ("classes", "class")])
def test_two_folders_are_not_taken_for_one(tmp_path, layout, what):
    r"""The byte 0xff, which is no UTF-8, is shown as \xff; another folder is called that."""
    put(tmp_path, "\\xff/1.png", 1)
    put(tmp_path, os.fsdecode(b"\xff/2.png"), 2)
    put(tmp_path, "c/3.png", 3)
    with pytest.raises(DataError, match=rf'2 folders in \S+ would be {what} "\\xff"'):
        load(tmp_path, layout)
    assert len(load(tmp_path, "flat").train) == 3


def test_files_outside_the_layout_are_listed(tmp_path):
    put(tmp_path, "a/x/1.png", 1)
    put(tmp_path, "a/2.png", 2)
    (tmp_path / "README").write_text("text")
    data = load(tmp_path, "clients-classes")
    assert greys(data.train) == [1]
    assert data.skipped == ("outside the layout's folders: README", "outside the layout's folders: a/2.png")


def test_nothing_to_read_is_an_error(tmp_path):
    with pytest.raises(DataError, match="holds no image"):
        load(tmp_path)


def test_a_folder_that_is_not_there_is_said_with_all_places_looked_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path, problem in (
        ("none", f"none in the data directory (--data-dir) {tmp_path}/data or in the working directory {tmp_path}"),
        ("/nowhere/none", "/nowhere/none"),
    ):
        with pytest.raises(DataError) as missing:
            Folder(path=path, size=2, layout="flat").load(Path("data"), lambda _: None)
        assert str(missing.value) == f"there is no folder {problem}"
    put(tmp_path, "photos/x/1.png", 1)
    with pytest.raises(DataError, match="no folder tests in the data directory"):
        Folder(path="photos", test="tests", size=2, layout="flat").load(tmp_path, lambda _: None)
    with pytest.raises(DataError, match=r"1\.png is no folder"):
        Folder(path="photos/x/1.png", size=2, layout="flat").load(tmp_path, lambda _: None)


def test_a_path_is_looked_up_in_the_data_directory_then_in_the_working_directory(tmp_path, monkeypatch):
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
def test_a_slip_is_no_folder_to_keep_images_in(slip):
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
