import io
import zipfile

import numpy as np
import pytest
from client_parts import as_lists
from error_messages import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from fedssl.core.errors import DataError
from fedssl.data import Npz

PIXELS = np.arange(4 * 5 * 6 * 3, dtype=np.uint32).astype(np.uint8).reshape(4, 5, 6, 3)


def load(tmp_path, **arrays):
    np.savez(tmp_path / "a.npz", **arrays)
    return Npz(path="a.npz").load(tmp_path)


def test_colour_and_grey_images_come_with_channels_first(tmp_path):
    data = load(tmp_path, x_train=PIXELS)
    assert data.train.pixels.shape == (4, 3, 5, 6)
    assert np.array_equal(data.train.pixels[1, 2], PIXELS[1, :, :, 2])
    assert data.test is None
    assert data.owners is None
    assert not data.train.labelled
    assert load(tmp_path, x_train=PIXELS[..., 0]).train.pixels.shape == (4, 1, 5, 6)


def test_test_images_labels_and_owners(tmp_path):
    data = load(
        tmp_path,
        x_train=PIXELS,
        y_train=np.array([1, 0, 2, 2], np.uint8),
        x_test=PIXELS[:1],
        y_test=[[7]],
        owner_train=np.array(["b", "a", "b", "b"]),
    )
    assert data.train.labels.tolist() == [1, 0, 2, 2]
    assert data.test.labels.tolist() == [7]
    assert as_lists(data.owners) == {
        "a": [1],
        "b": [0, 2, 3],
    }
    numbers = load(tmp_path, x_train=PIXELS, owner_train=[10, 9, 9, 10])
    assert as_lists(numbers.owners) == {
        "9": [1, 2],
        "10": [0, 3],
    }


def test_labels_are_read_on_first_use_and_never_unpickled(tmp_path):
    objects = np.array([0, 1, 2, None])  # saved as a pickle
    data = load(tmp_path, x_train=PIXELS, y_train=objects)
    assert data.train.labelled
    with raises(DataError):
        _ = data.train.labels


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y_train": [1]}, "has no x_train"),
        ({"x_train": PIXELS.astype(np.float32)}, "must be uint8"),
        ({"x_train": PIXELS.transpose(0, 3, 1, 2)}, "must be uint8 of shape"),
        ({"x_train": np.array([None])}, "x_train .* cannot be read"),
        ({"x_train": PIXELS, "owner_train": [1, 2]}, "one owner for each of 4 images"),
    ],
)
def test_arrays_of_the_wrong_kind_are_refused(tmp_path, arrays, message):
    with pytest.raises(DataError, match=message):
        load(tmp_path, **arrays)


def test_an_archive_is_looked_up_in_the_data_directory_then_in_the_working_directory(
    tmp_path, monkeypatch
):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    np.savez("a.npz", x_train=PIXELS[:1])
    assert len(Npz(path="a.npz").load(tmp_path).train) == 1
    np.savez(tmp_path / "a.npz", x_train=PIXELS)
    assert len(Npz(path="a.npz").load(tmp_path).train) == 4


def test_other_files_are_refused(tmp_path):
    with raises(DataError):
        Npz(path="none.npz").load(tmp_path)
    (tmp_path / "text.npz").write_text("text")
    np.save(tmp_path / "one.npy", PIXELS)
    for name in ("text.npz", "one.npy"):
        with raises(DataError):
            Npz(path=name).load(tmp_path)


def _npy(shape, data=b"", descr="|u1"):
    """Return an .npy file whose header announces a shape, followed by any data."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return buffer.getvalue() + data


@pytest.mark.parametrize(
    "shape",
    [(1_000_000, 1000, 1000, 3), (2**40, 2**40), (2**63, 4), (-1, 8, 8), (4, 5, 6, 3)],
    ids=["2.7 TiB", "2⁸⁰ bytes", "2⁶³ rows", "negative", "no data"],
)
def test_a_header_that_announces_other_data_is_refused_before_memory_is_allocated(tmp_path, shape):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x_train.npy", _npy(shape))
    with raises(DataError):
        Npz(path="a.npz").load(tmp_path)


def test_a_size_that_no_compression_reaches_is_refused(tmp_path, monkeypatch):
    """A forged directory of the archive: the entry claims the bytes that the header announces."""
    shape = (1_000_000, 1000, 1000, 3)
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x_train.npy", _npy(shape, bytes(10_000)))
    getinfo = zipfile.ZipFile.getinfo

    def forged(self, name):
        entry = getinfo(self, name)
        entry.file_size = len(_npy(shape)) + 3 * 10**12
        return entry

    monkeypatch.setattr(zipfile.ZipFile, "getinfo", forged)
    with raises(DataError):
        Npz(path="a.npz").load(tmp_path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 10**6),
)
@settings(max_examples=150)
def test_damaged_archives_give_a_sentence_or_good_images(save, tmp_path_factory, changes, cut):
    folder = tmp_path_factory.mktemp("damaged")
    save(
        folder / "a.npz",
        x_train=PIXELS // 64,
        y_train=[1, 0, 2, 2],
        owner_train=np.array(list("baab")),
    )
    data = bytearray((folder / "a.npz").read_bytes())
    for place, value in changes:
        data[place % len(data)] = value
    if cut % 4 == 0:
        del data[cut % len(data) :]
    (folder / "a.npz").write_bytes(data)
    try:
        found = Npz(path="a.npz").load(folder)
        labels = found.train.labels.tolist() if found.train.labelled else None
    except DataError as refused:
        sentence = str(refused)
        assert "\n" not in sentence
        return
    assert np.array_equal(found.train.pixels, (PIXELS // 64).transpose(0, 3, 1, 2))
    assert labels in (None, [1, 0, 2, 2])
