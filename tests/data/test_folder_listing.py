"""Files are listed by their layout, and links do not lead out of a folder."""

import os

import pytest
from error_messages import raises
from image_files import greys, load, put

from fedssl.core.errors import DataError
from fedssl.data.folder_listing import printable


def test_a_folder_that_cannot_be_listed_is_not_named_in_the_sentence(tmp_path, monkeypatch):
    put(tmp_path, "a/jones/1.png", 1)
    scan = os.scandir

    def refuse(path):
        if os.fspath(path).endswith("jones"):
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with raises(DataError) as raised:
        load(tmp_path, "clients")
    assert "jones" not in str(raised.value)
    assert raised.value.detail == "it is a/jones"


@pytest.mark.rows("D10")
def test_links_out_of_the_folder_are_not_followed(tmp_path):
    root = tmp_path / "root"
    outside = tmp_path / "root-outside"
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


def test_links_into_hidden_folders_are_followed(tmp_path):
    """Tools that version large files replace them by such links."""
    put(tmp_path, "train/a/0.png", 0)
    put(tmp_path, "test/a/1.png", 1)
    (tmp_path / ".git/annex").mkdir(parents=True)
    (tmp_path / "train/a/0.png").rename(tmp_path / ".git/annex/key")
    (tmp_path / "train/a/0.png").symlink_to("../../.git/annex/key")
    data = load(tmp_path, "classes")
    assert (greys(data.train), data.skipped) == ([0], ())


@pytest.mark.rows("D10")
def test_links_lead_neither_to_test_images_nor_to_another_client(tmp_path):
    for k, name in enumerate(("train/a/x/0.png", "train/ab/x/1.png", "test/x/2.png")):
        put(tmp_path, name, k)
    (tmp_path / "train/a/x/own.png").symlink_to("0.png")
    (tmp_path / "train/a/x/test.png").symlink_to("../../../test/x/2.png")
    (tmp_path / "train/a/x/theirs.png").symlink_to("../../ab/x/1.png")
    (tmp_path / "test/x/train.png").symlink_to("../../train/a/x/0.png")
    data = load(tmp_path, "clients-classes")
    assert (greys(data.train), greys(data.test)) == ([0, 0, 1], [2])
    assert data.skipped == (
        "symbolic link out of the folder: train/a/x/test.png",
        "symbolic link out of the folder: train/a/x/theirs.png",
        "symbolic link out of the folder: test/x/train.png",
    )
    # Links between classes are allowed.
    assert greys(load(tmp_path / "train", "classes").train) == [0, 0, 1, 1]


@pytest.mark.rows("D10")
def test_odd_names(tmp_path):
    for k, name in enumerate(
        ("a b/ü 'q'.png", "a b/-rf.png", "new\nline/x.png", ".hidden/1.png", "a b/.x.png")
    ):
        put(tmp_path, name, k)
    odd = os.fsencode(tmp_path) + b"/a b/\xff.png"
    with open(odd, "wb") as out:
        out.write(b"text")
    data = load(tmp_path, "clients", bad_share=0.5)
    assert len(data.train) == 3
    assert list(data.owners) == ["a b", "new\\nline"]
    assert data.skipped == ("not an image: a b/\\xff.png",)
    assert printable("plain ü.png") == "plain ü.png"


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
    assert data.skipped == (
        "not an image by its name: README",
        "outside the layout's folders: a/2.png",
    )
