import hashlib

import torch

from fedssl.data import FashionMini
from fedssl.data.fashion_mini import TEST_SHEET, TRAIN_SHEET


def test_the_embedded_set_has_its_documented_content(tmp_path):
    data = FashionMini().load(tmp_path)
    assert data.train.pixels.shape == (5000, 1, 28, 28)
    assert data.test.pixels.shape == (1000, 1, 28, 28)
    assert torch.bincount(data.train.labels).tolist() == [500] * 10
    assert torch.bincount(data.test.labels).tolist() == [100] * 10
    digest = hashlib.sha256()
    for images in data[:2]:
        digest.update(images.pixels.numpy().tobytes() + images.labels.numpy().tobytes())
    assert digest.hexdigest() == "9fb948feaef2f4d018997d3848d31034ad9f6d1d64e02382bbc355fbda938915"
    assert TRAIN_SHEET.stat().st_size + TEST_SHEET.stat().st_size < 3_000_000


def test_labels_go_with_their_images(tmp_path):
    """In mean images, trousers are narrow, bags fill the picture, sneakers leave its top empty."""
    data = FashionMini().load(tmp_path)
    mean = torch.stack(
        [data.train.pixels[data.train.labels == c].double().mean((0, 1)) for c in range(10)]
    )
    trouser = mean[1]
    sneaker = mean[7]
    bag = mean[8]
    assert trouser[:, :7].mean() < 5
    assert sneaker[:7].mean() < 5
    assert bag.mean() > 1.5 * trouser.mean()


def test_the_licence_is_in_the_folder_of_the_images():
    text = (TRAIN_SHEET.parent / "FASHION_MNIST_LICENSE").read_text()
    assert "MIT" in text
    assert "Zalando SE" in text
