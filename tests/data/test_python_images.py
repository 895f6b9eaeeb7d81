from types import SimpleNamespace

import numpy as np
import pytest
import torch
from error_messages import raises
from PIL import Image

from fedssl.core.errors import ConfigError, DataError
from fedssl.data import Images, PythonImages, from_python

COLOUR = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)  # N, H, W, C
FIRST = torch.from_numpy(COLOUR).permute(0, 3, 1, 2)


class Pairs(torch.utils.data.Dataset):
    """(image, label) pairs whose labels cannot be converted to numbers unless `open`."""

    def __init__(self, images):
        self.images = images
        self.open = False

    def __len__(self):
        return len(self.images)

    def __getitem__(self, k):
        return self.images[k], Label(self, k)


class Label:
    def __init__(self, owner, value):
        self.owner = owner
        self.value = value

    def __int__(self):
        assert self.owner.open, "a label was read"
        return self.value


class Table:
    """A minimal Hugging Face data set; reading its labels raises while `forbidden`."""

    column_names = ("image", "label")
    features = {"image": None, "label": SimpleNamespace(names=["cat", "dog"])}  # noqa: RUF012
    forbidden = True

    def __len__(self):
        return 2

    def select_columns(self, names):
        assert names == ["image"]
        return [{"image": Image.fromarray(image)} for image in COLOUR]

    def __getitem__(self, key):
        assert key == "label"
        assert not self.forbidden, "labels were read"
        return [1, 0]


@pytest.mark.parametrize(
    "images",
    [
        COLOUR,
        FIRST,
        torch.from_numpy(COLOUR),
        FIRST.numpy(),
        FIRST / 255,
        list(COLOUR),
        list(FIRST),
        [Image.fromarray(image) for image in COLOUR],
        [image / 255 for image in FIRST],
        Images(FIRST),
        torch.utils.data.TensorDataset(FIRST),
    ],
    ids=lambda value: type(value).__name__,
)
def test_images_of_every_kind_are_the_same_pixels(images):
    data = from_python(images, images)
    assert data.train.pixels.equal(FIRST)
    assert data.test.pixels.equal(FIRST)
    assert data.train.pixels.is_contiguous() or isinstance(images, Images)
    assert not data.train.labelled


def test_grey_images():
    grey = torch.arange(2 * 4 * 5, dtype=torch.uint8).view(2, 4, 5)
    for images in (
        grey,
        grey[:, None],
        grey.numpy()[..., None],
        [Image.fromarray(g) for g in grey.numpy()],
    ):
        assert from_python(images).train.pixels.equal(grey[:, None])
    mixed = from_python([grey[0].numpy(), COLOUR[0]]).train.pixels
    assert mixed[0].equal(grey[0].expand(3, 4, 5))


def test_images_as_narrow_as_channels():
    """(N, 3, W, 3): tensors have channels first, arrays last."""
    cube = np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3)
    assert from_python(torch.from_numpy(cube)).train.pixels.equal(torch.from_numpy(cube))
    assert from_python(cube).train.pixels.shape == (2, 3, 3, 4)


def test_pairs_of_pixels_and_labels():
    data = from_python((COLOUR, [1, 0]), (FIRST, torch.tensor([[5], [6]])))
    assert data.train.labels.tolist() == [1, 0]
    assert data.test.labels.tolist() == [5, 6]


def test_labels_of_a_torch_data_set_are_not_read():
    pairs = Pairs(COLOUR)
    data = from_python(pairs)
    assert data.train.pixels.equal(FIRST)
    assert data.train.labelled
    with pytest.raises(AssertionError, match="a label was read"):
        _ = data.train.labels
    pairs.open = True
    assert data.train.labels.tolist() == [0, 1]


def test_labels_of_a_table_are_not_read():
    table = Table()
    data = from_python(table)
    assert data.train.pixels.equal(FIRST)
    assert data.train.classes == ("cat", "dog")
    table.forbidden = False
    assert data.train.labels.tolist() == [1, 0]


def test_owners_are_kept():
    owners = {"a": torch.tensor([1]), "b": torch.tensor([0])}
    assert from_python(COLOUR, owners=owners).owners == owners


def test_a_dict_of_clients_is_one_data_set_with_owners():
    """Labels are read on first use, from each client in turn."""
    pairs = Pairs(COLOUR)
    data = from_python({"north": (FIRST, [4, 5]), "south": pairs, "west": (FIRST[:1], [6])}, FIRST)
    assert data.train.pixels.equal(torch.cat([FIRST, FIRST, FIRST[:1]]))
    owners = {name: index.tolist() for name, index in data.owners.items()}
    assert owners == {"north": [0, 1], "south": [2, 3], "west": [4]}
    pairs.open = True
    assert data.train.labels.tolist() == [4, 5, 0, 1, 6]
    assert data.test.pixels.equal(FIRST)


def test_classes_of_clients_are_kept():
    data = from_python({"north": Table(), "south": Table()})
    assert data.train.classes == ("cat", "dog")


@pytest.mark.parametrize(
    "clients",
    [
        {},
        {"north": FIRST, "south": FIRST[:, :, :, :4]},
        {"north": FIRST, "south": FIRST[:, :1]},
        {"north": FIRST, "south": (FIRST, [0, 1])},
        {"north": (FIRST, [0, 1]), "south": FIRST},
        {"north": Table(), "south": (FIRST, [0, 1])},
        {"north": FIRST, "south": FIRST.int()},
        {"north": FIRST, "south": []},
        {"north": FIRST, 3: FIRST},
        {"north": FIRST, "south": {"a": FIRST}},
    ],
    ids=lambda clients: "-".join(type(images).__name__ for images in clients.values()),
)
def test_clients_that_do_not_fit_together(clients):
    with raises(DataError):
        from_python(clients)


def test_a_dict_of_clients_has_no_other_owners():
    with raises(ConfigError):
        from_python({"north": FIRST}, owners={"north": torch.arange(2)})


def test_the_splits_of_a_table_are_not_clients():
    class Splits(dict):
        column_names = {"train": ["image"]}  # noqa: RUF012
        features = None

    with raises(DataError):
        from_python(Splits(train=Table()))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (5, "a int"),
        ([], "no images"),
        (["text"], "not a str"),
        ([(COLOUR[0], 1, 2)], "tuples of 3"),
        (FIRST.float(), "between 0 and 1"),
        (FIRST.int(), "between 0 and 1"),
        (torch.full((1, 3, 4, 4), torch.nan), "between 0 and 1"),
        (torch.zeros(2, 7, 4, 5, dtype=torch.uint8), "1 or 3 channels"),
        (torch.zeros(7, dtype=torch.uint8), "3 or 4 dimensions"),
        ([COLOUR[0], COLOUR[0, :3]], "must have one size"),
        (SimpleNamespace(column_names=["text"], features={}), "column named image"),
    ],
)
def test_other_values_than_images_are_refused(images, message):
    with pytest.raises(DataError, match=message):
        from_python(images)


def test_nothing_is_read_from_files(tmp_path):
    with raises(ConfigError):
        PythonImages().load(tmp_path)
