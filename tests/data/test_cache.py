"""Images are decoded once, mapped, and used only if the index matches the file."""

import os
import shutil
import stat
import threading

import PIL
import pytest
import torch
from error_messages import raises
from image_files import cache_dir, cached_greys, home, put, read_cached
from PIL import Image

from fedssl.core.errors import ConfigError, DataError
from fedssl.core.files.lock import locked
from fedssl.data import Folder, decode_parallel, decode_worker
from fedssl.data.cache import decode_cached, default_cache_dir


def cache_files(photos):
    """Return the files of the cache, except its lock."""
    return sorted(set(home(photos).iterdir()) - {home(photos) / "run.lock"})


def change_times(photos):
    return [path.stat().st_mtime_ns for path in cache_files(photos)]


def cached_bytes(photos):
    return b"".join(path.read_bytes() for path in cache_files(photos))


def test_files_are_decoded_once(photos, decoded):
    messages = []
    rows, bad = read_cached(photos, notify=messages.append)
    assert rows.tensor()[:, 0, 1, 1].tolist() == [1, 2, 3, 4, 5]
    assert rows.rows is None
    assert bad == {}
    assert messages == ["decoding 5 images"]
    before = change_times(photos)
    del decoded[:], messages[:]
    assert cached_greys(photos) == [1, 2, 3, 4, 5]
    assert (decoded, messages) == ([], [])
    assert change_times(photos) == before


def test_cached_pixels_equal_decoded_ones(tmp_path):
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


def test_only_changed_files_are_decoded_again(photos, decoded):
    read_cached(photos)
    del decoded[:]
    put(photos, "3.png", 30)
    put(photos, "0.png", 9)
    put(photos, "deep/6.png", 60)
    (photos / "5.png").unlink()
    names = ["0.png", "1.png", "2.png", "3.png", "4.png", "deep/6.png"]
    messages = []
    rows, _ = decode_cached(
        photos, names, 2, 1, cache_dir=cache_dir(photos), notify=messages.append
    )
    assert rows.tensor()[:, 0, 0, 0].tolist() == [9, 1, 2, 30, 4, 60]
    assert sorted(decoded) == ["0.png", "3.png", "6.png"]
    assert messages == ["decoding 3 images, 3 are decoded already"]


@pytest.mark.parametrize("changed", ["size", "time"])
def test_a_file_has_changed_if_its_size_or_its_time_has(changed, photos, decoded):
    read_cached(photos)
    before = (photos / "2.png").stat()
    if changed == "size":
        with (photos / "2.png").open("ab") as out:
            out.write(b"more")
        os.utime(photos / "2.png", ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        os.utime(photos / "2.png", ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    del decoded[:]
    read_cached(photos)
    assert decoded == ["2.png"]


def test_a_change_does_not_affect_earlier_readers(photos):
    rows, _ = read_cached(photos)
    (photos / "1.png").unlink()
    put(photos, "2.png", 20)
    put(photos, "9.png", 90)
    assert cached_greys(photos) == [20, 3, 4, 5, 90]
    assert rows.tensor()[:, 0, 0, 0].tolist() == [1, 2, 3, 4, 5]


def test_writing_to_the_pixels_does_not_change_the_cache(photos):
    read_cached(photos)[0].pool.zero_()
    assert cached_greys(photos) == [1, 2, 3, 4, 5]


def test_no_trace_is_left_of_deleted_images(photos):
    put(photos, "secret.png", 77)
    read_cached(photos)
    assert bytes([77] * 4) in cached_bytes(photos)
    (photos / "secret.png").unlink()
    read_cached(photos)
    assert bytes([77] * 4) not in cached_bytes(photos)
    assert b"secret" not in cached_bytes(photos)


def test_bad_files_are_cached_until_pillow_changes(photos, decoded, monkeypatch):
    (photos / "bad").write_text("text")
    (photos / "empty").touch()
    expected = {5: "not an image", 6: "empty file"}
    assert read_cached(photos)[1] == expected
    del decoded[:]
    assert read_cached(photos)[1] == expected
    assert decoded == []
    monkeypatch.setattr(PIL, "__version__", "99.0")
    assert read_cached(photos)[1] == expected
    assert sorted(decoded) == ["bad", "empty"]
    put(photos, "bad", 6)
    assert read_cached(photos)[1] == {6: "empty file"}
    assert cached_greys(photos) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "failure", [OSError(5, "Input/output error"), PermissionError(13, "Permission denied")]
)
def test_a_file_that_could_not_be_read_is_tried_again(failure, photos, monkeypatch):
    def refuse(stream, formats):
        if stream.name.endswith("2.png"):
            raise failure
        return real(stream, formats=formats)

    real = Image.open
    with monkeypatch.context() as patch:
        patch.setattr(Image, "open", refuse)
        assert read_cached(photos)[1] == {1: f"cannot be read ({failure.strerror})"}
    assert read_cached(photos)[1] == {}
    assert cached_greys(photos) == [1, 2, 3, 4, 5]


def test_a_missing_file_is_bad_and_a_size_has_its_own_cache(photos):
    rows, bad = decode_cached(
        photos, ["1.png", "none.png"], 2, 1, cache_dir=cache_dir(photos), notify=print
    )
    assert bad == {1: "cannot be opened (No such file or directory)"}
    assert len(rows) == 1
    assert read_cached(photos, size=3)[0].image_shape == (1, 3, 3)
    assert len(list(cache_dir(photos).iterdir())) == 2


def test_the_cache_is_for_its_owner_alone(photos):
    read_cached(photos)
    assert stat.S_IMODE(cache_dir(photos).stat().st_mode) == 0o700
    assert stat.S_IMODE(home(photos).stat().st_mode) == 0o700
    for path in cache_files(photos):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_second_process_waits_and_reports_it(photos):
    read_cached(photos)
    put(photos, "6.png", 6)
    messages = []
    results = []
    with locked(home(photos)):
        second = threading.Thread(
            target=lambda: results.append(read_cached(photos, notify=messages.append))
        )
        second.start()
        second.join(0.5)
        assert results == []
        assert messages == [
            f"waiting for process {os.getpid()}, which is at work in {home(photos)}"
        ]
    second.join(30)
    assert results[0][0].tensor()[:, 0, 0, 0].tolist() == [1, 2, 3, 4, 5, 6]


def test_a_directory_that_cannot_be_used_is_refused(photos):
    names = ["1.png"]
    with raises(ConfigError):
        decode_cached(photos, names, 2, 1, cache_dir=photos / "cache", notify=print)
    with raises(DataError):
        decode_cached(photos, names, 2, 1, cache_dir=photos / "1.png" / ".cache", notify=print)
    rows, _ = decode_cached(photos, names, 2, 1, cache_dir=photos / ".cache", notify=print)
    assert len(rows) == 1


def test_the_default_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert str(default_cache_dir()) == "/somewhere/fedssl"
    monkeypatch.setenv("HOME", str(tmp_path))
    for unset in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert default_cache_dir() == tmp_path / ".cache" / "fedssl"


def test_processes_and_threads_fill_the_same_rows(photos, monkeypatch):
    (photos / "bad").write_text("text")
    odd = os.fsdecode(os.fsencode(photos) + b"/\xff'\n.png")
    shutil.copy(photos / "3.png", odd)
    expected = read_cached(photos)
    monkeypatch.setattr(decode_parallel, "MIN_FILES_FOR_PROCESSES", 1)
    monkeypatch.setattr(decode_parallel, "CHUNK", 2)
    shutil.rmtree(cache_dir(photos))
    rows, bad = read_cached(photos)
    assert torch.equal(rows.tensor(), expected[0].tensor())
    assert rows.tensor()[:, 0, 0, 0].tolist() == [1, 2, 3, 4, 5, 3]
    assert bad == expected[1] == {5: "not an image"}


def test_the_index_is_written_during_the_work(photos, monkeypatch):
    """An interrupt in the fourth file keeps three."""
    real = decode_worker.fill
    calls = []

    def fill(*arguments):
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(decode_parallel, "CHUNK", 1)
    monkeypatch.setattr(decode_parallel, "_MAX_THREADS", 1)
    with monkeypatch.context() as patch:
        patch.setattr(decode_worker, "fill", fill)
        with pytest.raises(KeyboardInterrupt):
            read_cached(photos)
    messages = []
    rows, _ = read_cached(photos, notify=messages.append)
    assert rows.tensor()[:, 0, 0, 0].tolist() == [1, 2, 3, 4, 5]
    assert messages == ["decoding 2 images, 3 are decoded already"]


def test_a_cache_of_an_earlier_version_is_removed(photos):
    read_cached(photos)
    files = cache_files(photos)
    assert files == [home(photos) / "folder", home(photos) / "index", home(photos) / "pixels"]
    for name in ("ledger", "pixels-0.u8"):
        (home(photos) / name).write_bytes(b"old")
    assert cached_greys(photos) == [1, 2, 3, 4, 5]
    assert cache_files(photos) == files


def test_a_cache_names_its_folder(photos):
    read_cached(photos)
    assert (home(photos) / "folder").read_text() == str(photos)
    (home(photos) / "folder").write_text("damaged")
    read_cached(photos)
    assert (home(photos) / "folder").read_text() == str(photos)
