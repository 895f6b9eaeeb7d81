"""A damaged cache, or a disk without room, never yields a wrong image."""

import hashlib
import json
import resource
import shutil

import pytest
from image_files import cache_dir, cached_greys, home, put, read_cached

from fedssl.core.errors import DataError
from fedssl.data import decode, mapped_file


def damaged(path, how):
    whole = path.read_bytes()
    for at in range(0, len(whole), 3):
        yield (
            (whole[:at] if how == "cut" else whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]),
            at,
        )


@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_a_damaged_ledger_never_makes_a_wrong_image(how, photos):
    (photos / "bad").write_text("text")
    read_cached(photos)
    (photos / "4.png").unlink()  # the second file of pixels
    read_cached(photos)
    whole = photos.parent / "whole"
    shutil.copytree(home(photos), whole)
    for data, at in damaged(whole / "ledger", how):
        shutil.rmtree(home(photos))
        shutil.copytree(whole, cache_dir(photos) / "x")
        (cache_dir(photos) / "x").rename(cache_dir(photos) / key(photos))
        (home(photos) / "ledger").write_bytes(data)
        assert cached_greys(photos) == [1, 2, 3, 5], at
        assert read_cached(photos)[1] == {4: "not an image"}
        assert len(list(home(photos).glob("pixels-*"))) == 1


def key(photos) -> str:
    return hashlib.sha256(
        json.dumps([str(photos.resolve()), 2, 1, decode.RULES]).encode()
    ).hexdigest()[:16]


@pytest.mark.parametrize("how", ["gone", "short", "zeros"])
def test_pixels_lost_in_a_power_cut_are_decoded_again(how, photos, decoded):
    read_cached(photos)
    lines = (home(photos) / "ledger").read_bytes().splitlines(keepends=True)
    assert lines[-1].endswith(b" true\n")
    (home(photos) / "ledger").write_bytes(b"".join(lines[:-1]))  # the build had not ended
    (pixels,) = home(photos).glob("pixels-*")
    if how == "gone":
        pixels.unlink()
    else:
        keep = pixels.read_bytes()[:10]  # two images and a half
        pixels.write_bytes(keep if how == "short" else keep + bytes(10))
    del decoded[:]
    assert cached_greys(photos) == [1, 2, 3, 4, 5]
    assert sorted(decoded) == [
        f"{k}.png" for k in ((1, 2, 3, 4, 5) if how == "gone" else (3, 4, 5))
    ]
    del decoded[:]
    assert cached_greys(photos) == [1, 2, 3, 4, 5]
    assert decoded == []


def test_any_changed_byte_of_the_pixels_is_noticed_and_decoded_again(photos, decoded):
    read_cached(photos)
    for at in range(5 * 4):
        (pixels,) = home(photos).glob("pixels-*")
        data = bytearray(pixels.read_bytes())
        data[at] ^= 1 << at % 8
        pixels.write_bytes(bytes(data))
        del decoded[:]
        messages = []
        assert read_cached(photos, notify=messages.append)[0].tensor()[:, 0, 0, 0].tolist() == [
            1,
            2,
            3,
            4,
            5,
        ]
        assert len(decoded) == 1
        assert messages[0] == f"{home(photos)}: 1 of 5 decoded images are damaged and decoded again"


def test_a_damaged_ledger_is_reported(photos):
    read_cached(photos)
    for at, expected in (
        (0, "all images are decoded again"),
        (-3, "the images it lacks are decoded again"),
    ):
        path = home(photos) / "ledger"
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(bytes(data))
        messages = []
        read_cached(photos, notify=messages.append)
        assert messages[0].startswith(str(path))
        assert messages[0].endswith(expected)


def test_what_a_killed_copy_left_is_swept_away(photos):
    read_cached(photos)
    (home(photos) / "pixels-7.u8").write_bytes(b"left")
    (home(photos) / "ledger.new").write_bytes(b"left")
    assert cached_greys(photos) == [1, 2, 3, 4, 5]
    assert [path.name for path in home(photos).glob("pixels-*")] == ["pixels-0.u8"]
    (photos / "1.png").unlink()
    assert cached_greys(photos) == [2, 3, 4, 5]
    assert not (home(photos) / "ledger.new").exists()


@pytest.fixture
def limit():
    """limit(bytes): no file may become longer, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("early", [True, False])
def test_no_room_is_an_error_and_harms_nothing(early, photos, limit, monkeypatch):
    read_cached(photos, 64)
    for k in range(6, 9):
        put(photos, f"{k}.png", k)
    if not early:  # a file system that cannot set room aside: the writing fails, in the middle
        monkeypatch.setattr(mapped_file, "_allocate", lambda *_: None)
    limit(6 * 64 * 64 + 100)
    with pytest.raises(
        DataError,
        match=r'cannot be kept in .*File too large\); free some space, set data\.cache .* "off"',
    ):
        read_cached(photos, 64)
    limit(resource.RLIM_INFINITY)
    (pixels,) = home(photos).glob("pixels-*")
    assert not early or pixels.stat().st_size == 5 * 64 * 64
    rows, _ = read_cached(photos, 64)
    assert rows.tensor()[:, 0, 9, 9].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_no_room_for_a_copy_leaves_the_old_one(photos, limit):
    read_cached(photos, 64)
    (photos / "1.png").unlink()
    before = {path.name: path.read_bytes() for path in home(photos).iterdir()}
    limit(100)
    with pytest.raises(DataError, match="cannot be kept"):
        read_cached(photos, 64)
    limit(resource.RLIM_INFINITY)
    assert {path.name: path.read_bytes() for path in home(photos).iterdir()} == before
