"""A damaged cache, or a disk without room, never yields a wrong image."""

import resource
import shutil

import pytest
from error_messages import raises
from image_files import cached_greys, home, put, read_cached

from fedssl.core.errors import DataError
from fedssl.data import mapped_file

pytestmark = pytest.mark.rows("P11")


def cut_versions(data):
    """Yield the data cut at every third byte."""
    for at in range(0, len(data), 3):
        yield data[:at]


def flipped_versions(data):
    """Yield the data with one bit flipped, in every third byte."""
    for at in range(0, len(data), 3):
        yield data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("versions", [cut_versions, flipped_versions])
def test_a_damaged_index_never_makes_a_wrong_image(versions, photos):
    (photos / "bad").write_text("text")
    read_cached(photos)
    (photos / "4.png").unlink()  # leaves a gap in the rows
    read_cached(photos)
    whole = photos.parent / "whole"
    shutil.copytree(home(photos), whole)
    for data in versions((whole / "index").read_bytes()):
        shutil.copytree(whole, home(photos), dirs_exist_ok=True)
        (home(photos) / "index").write_bytes(data)
        assert cached_greys(photos) == [1, 2, 3, 5], data
        assert read_cached(photos)[1] == {4: "not an image"}


@pytest.mark.parametrize(
    ("pixels", "expected"),
    [
        (b"", ["1.png", "2.png", "3.png", "4.png", "5.png"]),
        (bytes([1, 1, 1, 1, 2, 2, 2, 2, 3, 3]), ["3.png", "4.png", "5.png"]),
        (bytes([1, 1, 1, 1, 2, 2, 2, 2] + [0] * 12), ["3.png", "4.png", "5.png"]),
    ],
)
def test_pixels_lost_in_a_power_cut_are_decoded_again(pixels, expected, photos, decoded):
    read_cached(photos)
    (home(photos) / "pixels").write_bytes(pixels)
    del decoded[:]
    assert cached_greys(photos) == [1, 2, 3, 4, 5]
    assert sorted(decoded) == expected
    del decoded[:]
    assert cached_greys(photos) == [1, 2, 3, 4, 5]
    assert decoded == []


@pytest.mark.parametrize(("name", "expected"), [("pixels", 5), ("index", 5), ("folder", 0)])
def test_a_missing_file_of_the_cache_is_written_again(name, expected, photos, decoded):
    read_cached(photos)
    (home(photos) / name).unlink()
    del decoded[:]
    assert cached_greys(photos) == [1, 2, 3, 4, 5]
    assert len(decoded) == expected
    assert (home(photos) / name).is_file()


def test_any_changed_byte_of_the_pixels_is_detected_and_decoded_again(photos, decoded):
    read_cached(photos)
    pixels = home(photos) / "pixels"
    for at in range(5 * 4):
        data = bytearray(pixels.read_bytes())
        data[at] ^= 1 << at % 8
        pixels.write_bytes(data)
        del decoded[:]
        messages = []
        rows, _ = read_cached(photos, notify=messages.append)
        assert rows.tensor()[:, 0, 0, 0].tolist() == [1, 2, 3, 4, 5]
        assert decoded == [f"{1 + at // 4}.png"]
        assert messages[0] == f"{home(photos)}: 1 cached images are damaged and decoded again"


def test_a_damaged_line_of_the_index_is_reported_and_affects_one_image(photos, decoded):
    read_cached(photos)
    index = home(photos) / "index"
    index.write_bytes(index.read_bytes().replace(b"2.png", b"3.png"))
    del decoded[:]
    messages = []
    rows, _ = read_cached(photos, notify=messages.append)
    assert rows.tensor()[:, 0, 0, 0].tolist() == [1, 2, 3, 4, 5]
    assert decoded == ["2.png"]
    assert messages[0] == f"{home(photos)}: 1 cached images are damaged and decoded again"


def test_a_kill_between_the_two_replacements_does_no_harm(photos, decoded):
    """The old index fits the new pixels: only the deleted image is missing."""
    read_cached(photos)
    index = home(photos) / "index"
    old_index = index.read_bytes()
    (photos / "2.png").unlink()
    read_cached(photos)
    assert (home(photos) / "pixels").read_bytes()[:12] == bytes([1] * 4 + [0] * 4 + [3] * 4)
    index.write_bytes(old_index)
    del decoded[:]
    assert cached_greys(photos) == [1, 3, 4, 5]
    assert decoded == []
    assert b"2.png" not in index.read_bytes()


def test_files_of_a_killed_replacement_are_removed(photos):
    read_cached(photos)
    for name in ("pixels.new", "index.new", ".0123abcd.pixels.tmp"):
        (home(photos) / name).write_bytes(b"left")
    assert cached_greys(photos) == [1, 2, 3, 4, 5]
    assert [*home(photos).glob("*.new"), *home(photos).glob("*.tmp")] == []


@pytest.fixture
def limit():
    """Return limit(bytes): no file may become longer, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("early", [True, False])
def test_a_full_disk_is_an_error_and_damages_nothing(early, photos, limit, monkeypatch):
    read_cached(photos, 64)
    for k in range(6, 9):
        put(photos, f"{k}.png", k)
    if not early:  # the file system cannot allocate space in advance: a write fails later
        monkeypatch.setattr(mapped_file, "_allocate", lambda *_: None)
    limit(6 * 64 * 64 + 100)
    with raises(DataError):
        read_cached(photos, 64)
    limit(resource.RLIM_INFINITY)
    assert not early or (home(photos) / "pixels").stat().st_size == 5 * 64 * 64
    rows, _ = read_cached(photos, 64)
    assert rows.tensor()[:, 0, 9, 9].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_no_room_for_a_copy_keeps_the_old_files(photos, limit):
    read_cached(photos, 64)
    (photos / "1.png").unlink()
    before = {path.name: path.read_bytes() for path in home(photos).iterdir()}
    limit(100)
    with raises(DataError):
        read_cached(photos, 64)
    limit(resource.RLIM_INFINITY)
    assert {path.name: path.read_bytes() for path in home(photos).iterdir()} == before
