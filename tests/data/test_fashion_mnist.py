import gzip
import struct

import pytest
import torch
from error_messages import raises

from fedssl.core.errors import DataError
from fedssl.data import FashionMnist, fashion_mnist


def idx_bytes(tensor: torch.Tensor) -> bytes:
    header = bytes((0, 0, 8, tensor.ndim)) + struct.pack(f">{tensor.ndim}I", *tensor.shape)
    return header + tensor.numpy().tobytes()


@pytest.fixture(autouse=True)
def _no_system_files(monkeypatch, tmp_path):
    monkeypatch.setattr(fashion_mnist, "_DEBIAN", tmp_path / "nowhere")


def write(folder, *, packed):
    folder.mkdir(parents=True, exist_ok=True)
    images = torch.arange(3 * 28 * 28).remainder(251).to(torch.uint8).view(3, 28, 28)
    labels = torch.tensor([9, 0, 3], dtype=torch.uint8)
    for half in ("train", "t10k"):
        for name, tensor in (("images-idx3", images), ("labels-idx1", labels)):
            data = idx_bytes(tensor)
            path = folder / f"{half}-{name}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(data) if packed else data)
    return images


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("place", [".", "fashion-mnist", "nowhere"])
def test_fashion_mnist_is_read_from_every_supported_place(tmp_path, packed, place):
    images = write(tmp_path / place, packed=packed)
    data = FashionMnist().load(tmp_path)
    assert data.train.pixels.equal(images[:, None])
    assert data.test.labels.tolist() == [9, 0, 3]
    assert data.train.classes[9] == "Ankle boot"


def test_labels_are_read_on_first_use(tmp_path):
    write(tmp_path, packed=True)
    data = FashionMnist().load(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte.gz").unlink()
    with raises(DataError):
        _ = data.train.labels


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an IDX file"),
        (
            idx_bytes(torch.zeros(4, dtype=torch.uint8)),
            "not an IDX file of bytes with 3 dimensions",
        ),
        (
            idx_bytes(torch.zeros(2, 3, 4, dtype=torch.uint8))[:-1],
            "does not hold the 2 × 3 × 4 bytes",
        ),
    ],
)
def test_broken_files_are_refused(tmp_path, data, message):
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(DataError, match=message):
        fashion_mnist.read_idx(tmp_path / "x", 3)
    (tmp_path / "x.gz").write_bytes(gzip.compress(bytes(1000))[:-9])
    with raises(DataError):
        fashion_mnist.read_idx(tmp_path / "x.gz", 3)


@pytest.mark.parametrize("shape", [(2**32 - 1,) * 3, (2**22, 2**21, 2**21)])
def test_a_header_that_announces_absurd_sizes_is_refused(tmp_path, shape):
    """2⁶⁴ bytes are 0 in 64-bit integers, which is what the second file has."""
    (tmp_path / "x").write_bytes(bytes((0, 0, 8, 3)) + struct.pack(">3I", *shape))
    with raises(DataError):
        fashion_mnist.read_idx(tmp_path / "x", 3)


def test_a_compressed_file_is_read_up_to_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(fashion_mnist, "_MAX_BYTES", 1000)
    (tmp_path / "x.gz").write_bytes(gzip.compress(bytes(100_000)))
    with raises(DataError):
        fashion_mnist.read_idx(tmp_path / "x.gz", 3)
