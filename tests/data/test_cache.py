"""Decoded once, mapped, and believed only where the ledger and the file agree."""

import json
import os
import resource
import shutil
import stat
import threading

import PIL
import pytest
import torch
from PIL import Image

from fedssl.data import Folder, cache, decode, decoders, mapped
from fedssl.data.cache import cached, default_place
from fedssl.errors import ConfigError, DataError
from fedssl.lock import locked


def put(root, name: str, grey: int) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (2, 2), grey).save(path, "PNG")


@pytest.fixture
def photos(tmp_path):
    """1.png … 5.png, each of one grey: its number."""
    for k in range(1, 6):
        put(tmp_path / "photos", f"{k}.png", k)
    return tmp_path / "photos"


@pytest.fixture
def decoded(monkeypatch) -> list[str]:
    """Names of the files that have been decoded, in this process, so far."""
    names: list[str] = []
    real = decode.decode

    def spy(source, *options):
        names.append(source.name)
        return real(source, *options)

    monkeypatch.setattr(decode, "decode", spy)
    return names


def place(photos):
    return photos.parent / "cache"


def home(photos):
    (only,) = place(photos).iterdir()
    return only


def read(photos, size: int = 2, say=lambda _: None):
    names = sorted(path.name for path in photos.iterdir())
    return cached(photos, names, size, 1, place(photos), say)


def greys(photos) -> list[int]:
    return read(photos)[0].tensor()[:, 0, 0, 0].tolist()


def test_files_are_decoded_once(photos, decoded):
    said = []
    rows, bad = read(photos, say=said.append)
    assert rows.tensor()[:, 0, 1, 1].tolist() == [1, 2, 3, 4, 5]
    assert rows.rows is None
    assert bad == {}
    assert said == ["decoding 5 images"]
    before = {path: path.stat().st_mtime_ns for path in home(photos).iterdir() if path.name != "run.lock"}
    del decoded[:], said[:]
    assert greys(photos) == [1, 2, 3, 4, 5]
    assert (decoded, said) == ([], [])
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_what_is_cached_is_what_would_be_decoded(tmp_path):
    for k in range(7):
        (tmp_path / "x").mkdir(exist_ok=True)
        Image.effect_noise((30 + k, 40), 80).convert("RGB").save(tmp_path / f"x/{k}.jpg")
    (tmp_path / "x/3.jpg").write_text("text")
    options = {"path": "x", "size": 9, "layout": "flat", "bad_share": 0.5}
    kept = Folder(**options, cache=str(tmp_path / "cache")).load(tmp_path, print)
    direct = Folder(**options, cache="off").load(tmp_path, print)
    assert torch.equal(kept.train.pixels, direct.train.pixels)
    assert kept.skipped == direct.skipped == ("not an image: 3.jpg",)
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_only_what_changed_is_decoded_again(photos, decoded):
    read(photos)
    del decoded[:]
    put(photos, "3.png", 30)
    put(photos, "0.png", 9)
    put(photos, "deep/6.png", 60)
    (photos / "5.png").unlink()
    names = ["0.png", "1.png", "2.png", "3.png", "4.png", "deep/6.png"]
    said = []
    rows, _ = cached(photos, names, 2, 1, place(photos), said.append)
    assert rows.tensor()[:, 0, 0, 0].tolist() == [9, 1, 2, 30, 4, 60]
    assert sorted(decoded) == ["0.png", "3.png", "6.png"]
    assert said == ["decoding 3 images, 3 are decoded already"]


@pytest.mark.parametrize("what", ["size", "time"])
def test_a_file_has_changed_if_its_size_or_its_time_has(what, photos, decoded):
    read(photos)
    found = (photos / "2.png").stat()
    if what == "size":
        with (photos / "2.png").open("ab") as out:
            out.write(b"more")
        os.utime(photos / "2.png", ns=(found.st_atime_ns, found.st_mtime_ns))
    else:
        os.utime(photos / "2.png", ns=(found.st_atime_ns, found.st_mtime_ns + 1))
    del decoded[:]
    read(photos)
    assert decoded == ["2.png"]


def test_whoever_reads_is_not_disturbed_by_a_change(photos):
    rows, _ = read(photos)
    (photos / "1.png").unlink()
    put(photos, "2.png", 20)
    put(photos, "9.png", 90)
    assert greys(photos) == [20, 3, 4, 5, 90]
    assert rows.tensor()[:, 0, 0, 0].tolist() == [1, 2, 3, 4, 5]


def test_writing_to_the_pixels_does_not_change_the_cache(photos):
    read(photos)[0].pool.zero_()
    assert greys(photos) == [1, 2, 3, 4, 5]


def test_nothing_is_left_of_deleted_images(photos):
    put(photos, "secret.png", 77)
    read(photos)
    assert bytes([77] * 4) in b"".join(path.read_bytes() for path in home(photos).iterdir())
    (photos / "secret.png").unlink()
    read(photos)
    left = b"".join(path.read_bytes() for path in home(photos).iterdir())
    assert bytes([77]) * 4 not in left
    assert b"secret" not in left


def test_bad_files_are_remembered_until_pillow_changes(photos, decoded, monkeypatch):
    (photos / "bad").write_text("text")
    (photos / "empty").touch()
    expected = {5: "not an image", 6: "empty file"}
    assert read(photos)[1] == expected
    del decoded[:]
    assert read(photos)[1] == expected
    assert decoded == []
    monkeypatch.setattr(PIL, "__version__", "99.0")
    assert read(photos)[1] == expected
    assert sorted(decoded) == ["bad", "empty"]
    put(photos, "bad", 6)
    assert read(photos)[1] == {6: "empty file"}
    assert greys(photos) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("failure", [OSError(5, "Input/output error"), PermissionError(13, "Permission denied")])
def test_a_file_that_could_not_be_read_today_is_tried_again(failure, photos, monkeypatch):
    def refuse(stream, formats):
        if stream.name.endswith("2.png"):
            raise failure
        return real(stream, formats=formats)

    real = Image.open
    with monkeypatch.context() as patch:
        patch.setattr(Image, "open", refuse)
        assert read(photos)[1] == {1: f"cannot be read ({failure.strerror})"}
    assert read(photos)[1] == {}
    assert greys(photos) == [1, 2, 3, 4, 5]


def test_a_missing_file_is_bad_and_a_size_has_its_own_cache(photos):
    rows, bad = cached(photos, ["1.png", "none.png"], 2, 1, place(photos), print)
    assert bad == {1: "cannot be opened (No such file or directory)"}
    assert len(rows) == 1
    assert read(photos, size=3)[0].image == (1, 3, 3)
    assert len(list(place(photos).iterdir())) == 2


def damaged(path, how):
    whole = path.read_bytes()
    for at in range(0, len(whole), 3):
        yield (whole[:at] if how == "cut" else whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]), at


@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_a_damaged_ledger_never_makes_a_wrong_image(how, photos):
    (photos / "bad").write_text("text")
    read(photos)
    (photos / "4.png").unlink()  # the second file of pixels
    read(photos)
    whole = photos.parent / "whole"
    shutil.copytree(home(photos), whole)
    for data, at in damaged(whole / "ledger", how):
        shutil.rmtree(home(photos))
        shutil.copytree(whole, place(photos) / "x")
        (place(photos) / "x").rename(place(photos) / key(photos))
        (home(photos) / "ledger").write_bytes(data)
        assert greys(photos) == [1, 2, 3, 5], at
        assert read(photos)[1] == {4: "not an image"}
        assert len(list(home(photos).glob("pixels-*"))) == 1


def key(photos) -> str:
    import hashlib

    return hashlib.sha256(json.dumps([str(photos.resolve()), 2, 1, decode.RULES]).encode()).hexdigest()[:16]


@pytest.mark.parametrize("how", ["gone", "short", "zeros"])
def test_pixels_lost_in_a_power_cut_are_decoded_again(how, photos, decoded):
    read(photos)
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
    assert greys(photos) == [1, 2, 3, 4, 5]
    assert sorted(decoded) == [f"{k}.png" for k in ((1, 2, 3, 4, 5) if how == "gone" else (3, 4, 5))]
    del decoded[:]
    assert greys(photos) == [1, 2, 3, 4, 5]
    assert decoded == []


def test_any_changed_byte_of_the_pixels_is_noticed_and_decoded_again(photos, decoded):
    read(photos)
    for at in range(5 * 4):
        (pixels,) = home(photos).glob("pixels-*")
        data = bytearray(pixels.read_bytes())
        data[at] ^= 1 << at % 8
        pixels.write_bytes(bytes(data))
        del decoded[:]
        said = []
        assert read(photos, say=said.append)[0].tensor()[:, 0, 0, 0].tolist() == [1, 2, 3, 4, 5]
        assert len(decoded) == 1
        assert said[0] == f"{home(photos)}: 1 of 5 decoded images are damaged and decoded again"


def test_a_damaged_ledger_is_reported(photos):
    read(photos)
    for at, expected in ((0, "all images are decoded again"), (-3, "what it lacks is decoded again")):
        path = home(photos) / "ledger"
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(bytes(data))
        said = []
        read(photos, say=said.append)
        assert said[0].startswith(str(path))
        assert said[0].endswith(expected)


def test_what_a_killed_copy_left_is_swept_away(photos):
    read(photos)
    (home(photos) / "pixels-7.u8").write_bytes(b"left")
    (home(photos) / "ledger.new").write_bytes(b"left")
    assert greys(photos) == [1, 2, 3, 4, 5]
    assert [path.name for path in home(photos).glob("pixels-*")] == ["pixels-0.u8"]
    (photos / "1.png").unlink()
    assert greys(photos) == [2, 3, 4, 5]
    assert not (home(photos) / "ledger.new").exists()


def test_the_cache_is_for_its_owner_alone(photos):
    read(photos)
    assert stat.S_IMODE(place(photos).stat().st_mode) == 0o700
    assert stat.S_IMODE(home(photos).stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) & 0o77 for path in home(photos).iterdir() if path.name != "run.lock"} == {
        0
    }


def test_a_second_process_waits_and_says_so(photos):
    read(photos)
    put(photos, "6.png", 6)
    said, results = [], []
    with locked(home(photos)):
        second = threading.Thread(target=lambda: results.append(read(photos, say=said.append)))
        second.start()
        second.join(0.5)
        assert results == []
        assert said == [f"waiting for process {os.getpid()}, which is at work in {home(photos)}"]
    second.join(30)
    assert results[0][0].tensor()[:, 0, 0, 0].tolist() == [1, 2, 3, 4, 5, 6]


@pytest.fixture
def limit():
    """limit(bytes): no file may become longer, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("early", [True, False])
def test_no_room_is_an_error_and_harms_nothing(early, photos, limit, monkeypatch):
    read(photos, 64)
    for k in range(6, 9):
        put(photos, f"{k}.png", k)
    if not early:  # a file system that cannot set room aside: the writing fails, in the middle
        monkeypatch.setattr(mapped, "_set_aside", lambda *_: None)
    limit(6 * 64 * 64 + 100)
    with pytest.raises(DataError, match=r'cannot be kept in .*File too large\); make room, set data\.cache .* "off"'):
        read(photos, 64)
    limit(resource.RLIM_INFINITY)
    (pixels,) = home(photos).glob("pixels-*")
    assert not early or pixels.stat().st_size == 5 * 64 * 64
    rows, _ = read(photos, 64)
    assert rows.tensor()[:, 0, 9, 9].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_no_room_for_a_copy_leaves_the_old_one(photos, limit):
    read(photos, 64)
    (photos / "1.png").unlink()
    before = {path.name: path.read_bytes() for path in home(photos).iterdir()}
    limit(100)
    with pytest.raises(DataError, match="cannot be kept"):
        read(photos, 64)
    limit(resource.RLIM_INFINITY)
    assert {path.name: path.read_bytes() for path in home(photos).iterdir()} == before


def test_a_place_that_cannot_be_used_is_refused(photos):
    names = ["1.png"]
    with pytest.raises(ConfigError, match="lies among the images"):
        cached(photos, names, 2, 1, photos / "cache", print)
    with pytest.raises(DataError, match="Not a directory"):
        cached(photos, names, 2, 1, photos / "1.png" / ".cache", print)
    assert len(cached(photos, names, 2, 1, photos / ".cache", print)[0]) == 1


def test_the_usual_place(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert str(default_place()) == "/somewhere/fedssl"
    monkeypatch.setenv("HOME", str(tmp_path))
    for unset in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert default_place() == tmp_path / ".cache" / "fedssl"


def test_processes_and_threads_fill_the_same_rows(photos, monkeypatch):
    (photos / "bad").write_text("text")
    odd = os.fsdecode(os.fsencode(photos) + b"/\xff'\n.png")
    shutil.copy(photos / "3.png", odd)
    expected = read(photos)
    monkeypatch.setattr(decoders, "FEW", 1)
    monkeypatch.setattr(decoders, "CHUNK", 2)
    shutil.rmtree(place(photos))
    rows, bad = read(photos)
    assert torch.equal(rows.tensor(), expected[0].tensor())
    assert rows.tensor()[:, 0, 0, 0].tolist() == [1, 2, 3, 4, 5, 3]
    assert bad == expected[1] == {5: "not an image"}


def test_the_ledger_learns_as_the_work_goes_on(photos, monkeypatch):
    """An end in the middle keeps what was done."""
    monkeypatch.setattr(decoders, "CHUNK", 1)
    monkeypatch.setattr(cache, "SECONDS", 0)
    real, seen = decode.fill, []

    def fill(*arguments):
        seen.append(arguments)
        if len(seen) == 4:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(decode, "fill", fill)
    monkeypatch.setattr(decoders, "_MOST_THREADS", 1)
    with pytest.raises(KeyboardInterrupt):
        read(photos)
    said = []
    assert read(photos, say=said.append)[0].tensor()[:, 0, 0, 0].tolist() == [1, 2, 3, 4, 5]
    assert said == ["decoding 2 images, 3 are decoded already"]
