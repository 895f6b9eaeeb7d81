import numpy as np
import pytest
from archives import write_folder, write_tar
from error_messages import raises

from fedssl.core.errors import DataError
from fedssl.data import Cifar10, Cifar100


def records(count: int, labels: tuple[int, ...], seed: int) -> bytes:
    """Return records in the official format; the last label byte of record i is i modulo 10."""
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 3072), np.uint8)
    out = b""
    for i in range(count):
        out += bytes([*labels, i % 10]) + pixels[i].tobytes()
    return out


@pytest.fixture
def ten():
    # Not in the order of their numbers, as in the official archive.
    files = {f"data_batch_{k}.bin": records(3, (), k) for k in (4, 1, 5, 2, 3)}
    return {"batches.meta.txt": b"airplane\n", **files, "test_batch.bin": records(2, (), 9)}


def test_cifar10_is_read_from_its_archive_and_from_its_files_alike(ten, tmp_path):
    write_tar(tmp_path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", ten)
    data = Cifar10().load(tmp_path)
    assert data.train.pixels.shape == (15, 3, 32, 32)
    assert data.test.pixels.shape == (2, 3, 32, 32)
    expected = np.frombuffer(ten["data_batch_2.bin"], np.uint8)[1:3073].reshape(3, 32, 32)
    assert np.array_equal(data.train.pixels[3], expected)
    assert data.train.labels.tolist() == [0, 1, 2] * 5
    assert data.test.labels.tolist() == [0, 1]
    assert data.train.classes[3] == "cat"

    for place in ("a/cifar-10-batches-bin", "b/cifar10", "c"):
        write_folder(tmp_path / place, ten)
        other = Cifar10().load(tmp_path / place[0])
        assert other.train.pixels.equal(data.train.pixels)
        assert other.test.labels.equal(data.test.labels)


def test_pixels_are_read_without_labels(ten, tmp_path):
    write_tar(tmp_path / "cifar-10-binary.tar.gz", "x", ten)
    data = Cifar10().load(tmp_path)
    (tmp_path / "cifar-10-binary.tar.gz").unlink()
    with raises(DataError):
        _ = data.train.labels


def test_cifar100_takes_the_second_of_two_labels(tmp_path):
    files = {"train.bin": records(12, (19,), 0), "test.bin": records(4, (19,), 1)}
    (tmp_path / "cifar100").mkdir()
    write_tar(tmp_path / "cifar100" / "cifar-100-binary.tar.gz", "cifar-100-binary", files)
    data = Cifar100().load(tmp_path)
    assert data.train.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert data.test.pixels.flatten(1)[3].tolist() == list(files["test.bin"][3 * 3074 + 2 :])
    assert len(set(data.train.classes)) == 100
    assert data.train.classes[0] == "apple"
    assert data.train.classes[99] == "worm"
    assert list(data.train.classes) == sorted(data.train.classes)


def test_an_npz_is_preferred(ten, tmp_path):
    write_tar(tmp_path / "cifar-10-binary.tar.gz", "x", ten)
    x = np.arange(2 * 32 * 32 * 3, dtype=np.uint32).astype(np.uint8).reshape(2, 32, 32, 3)
    np.savez(tmp_path / "cifar10.npz", x_train=x, y_train=[[3], [4]], x_test=x[:1], y_test=[[5]])
    data = Cifar10().load(tmp_path)
    assert data.train.labels.tolist() == [3, 4]
    assert np.array_equal(data.train.pixels.permute(0, 2, 3, 1), x)


def test_damaged_archives_are_refused_in_one_sentence(ten, tmp_path):
    path = tmp_path / "cifar-10-binary.tar.gz"
    write_tar(path, "x", ten)
    whole = path.read_bytes()
    for data in (whole[: len(whole) // 2], b"no archive"):
        path.write_bytes(data)
        with raises(DataError):
            Cifar10().load(tmp_path)
    write_tar(path, "x", ten | {"test_batch.bin": bytes(100)})
    with raises(DataError):
        Cifar10().load(tmp_path)
    del ten["test_batch.bin"]
    write_tar(path, "x", ten)
    with raises(DataError):
        Cifar10().load(tmp_path)


def test_a_file_of_an_absurd_size_is_refused_before_it_is_read(ten, tmp_path):
    """A sparse file takes no space on disk."""
    write_folder(tmp_path, ten)
    with (tmp_path / "data_batch_3.bin").open("r+b") as file:
        file.truncate(3073 * 10**9)
    with raises(DataError):
        Cifar10().load(tmp_path)
