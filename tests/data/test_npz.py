import numpy as np
import pytest

from fedssl.data import Npz
from fedssl.errors import DataError

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
    assert {name: index.tolist() for name, index in data.owners.items()} == {"a": [1], "b": [0, 2, 3]}
    numbers = load(tmp_path, x_train=PIXELS, owner_train=[10, 9, 9, 10])
    assert {name: index.tolist() for name, index in numbers.owners.items()} == {"9": [1, 2], "10": [0, 3]}


def test_labels_are_read_when_asked_for_and_never_unpickled(tmp_path):
    data = load(tmp_path, x_train=PIXELS, y_train=np.array([0, 1, 2, None]))  # an array of objects is a pickle
    assert data.train.labelled
    with pytest.raises(DataError, match="y_train"):
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
def test_what_does_not_fit_is_refused(tmp_path, arrays, message):
    with pytest.raises(DataError, match=message):
        load(tmp_path, **arrays)


def test_an_archive_is_looked_up_in_the_data_directory_then_in_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    np.savez("a.npz", x_train=PIXELS[:1])
    assert len(Npz(path="a.npz").load(tmp_path).train) == 1
    np.savez(tmp_path / "a.npz", x_train=PIXELS)
    assert len(Npz(path="a.npz").load(tmp_path).train) == 4


def test_other_files_are_refused(tmp_path):
    with pytest.raises(DataError, match="there is no file"):
        Npz(path="none.npz").load(tmp_path)
    (tmp_path / "text.npz").write_text("text")
    np.save(tmp_path / "one.npy", PIXELS)
    for name in ("text.npz", "one.npy"):
        with pytest.raises(DataError, match="not a NumPy archive"):
            Npz(path=name).load(tmp_path)
