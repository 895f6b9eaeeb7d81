import numpy as np
import pytest
from archives import write_folder, write_tar
from error_messages import raises

from fedssl.core.errors import DataError
from fedssl.data import Stl10


def pictures(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3, 96, 96), np.uint8)


def stored(images: np.ndarray) -> bytes:
    """Return the pixels column by column, as in the official files."""
    return images.swapaxes(2, 3).tobytes()


@pytest.fixture
def root(tmp_path):
    files = {
        "test_X.bin": stored(pictures(2, 0)),
        "test_y.bin": bytes([1, 10]),
        "train_X.bin": stored(pictures(3, 1)),
        "train_y.bin": bytes([4, 5, 6]),
        "unlabeled_X.bin": stored(pictures(4, 2)),
    }
    write_tar(tmp_path / "stl10_binary.tar.gz", "stl10_binary", files)
    write_folder(tmp_path / "other" / "stl10_binary", files)
    return tmp_path


@pytest.mark.parametrize("place", [".", "other"])
def test_parts(root, place):
    train = Stl10(part="train").load(root / place)
    assert np.array_equal(train.train.pixels, pictures(3, 1))
    assert train.train.labels.tolist() == [3, 4, 5]
    assert train.test.labels.tolist() == [0, 9]
    assert np.array_equal(train.test.pixels, pictures(2, 0))
    both = Stl10(part="both").load(root / place)
    assert np.array_equal(both.train.pixels, np.concatenate([pictures(4, 2), pictures(3, 1)]))
    assert not both.train.labelled


def test_unlabelled_images_have_no_labels_but_test_images_do(root):
    data = Stl10().load(root)
    assert np.array_equal(data.train.pixels, pictures(4, 2))
    assert not data.train.labelled
    assert data.test.labelled
    with raises(DataError):
        _ = data.train.labels


def test_a_file_cut_short_is_refused(root):
    path = root / "other" / "stl10_binary" / "unlabeled_X.bin"
    path.write_bytes(path.read_bytes()[:-5])
    with raises(DataError):
        Stl10().load(root / "other")
    path = root / "stl10_binary.tar.gz"
    path.write_bytes(path.read_bytes()[:-100_000])
    with raises(DataError):
        Stl10().load(root)


def test_a_file_of_an_absurd_size_is_refused_before_memory_is_allocated(root):
    """A sparse file takes no space on disk."""
    path = root / "other/stl10_binary/unlabeled_X.bin"
    with path.open("r+b") as file:
        file.truncate(3 * 96 * 96 * 10**8)
    with raises(DataError):
        Stl10().load(root / "other")
