import io

import pytest
from archives import write_folder, write_zip
from error_messages import raises
from PIL import Image

from fedssl.core.errors import DataError
from fedssl.data import TinyImageNet

TOP = "tiny-imagenet-200"


def jpeg(grey: int, mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    Image.new("L", (64, 64), grey).convert(mode).save(out, "JPEG")
    return out.getvalue()


@pytest.fixture
def files():
    """Three classes in wnids.txt out of order; some images are grey, as in the official archive."""
    ids = ["n03", "n01", "n02"]
    train = {}
    for i in ids:
        train[f"train/{i}/{i}_boxes.txt"] = b""
        train[f"train/{i}/images/{i}_0.JPEG"] = jpeg(100, "L")
        train[f"train/{i}/images/{i}_1.JPEG"] = jpeg(101, "L")
    return {
        "wnids.txt": "\n".join(ids).encode(),
        "words.txt": b"n01\tgoldfish, Carassius auratus\nn02\tnewt\nn03\tcat\nn99\tother\n",
        "val/val_annotations.txt": b"val_0.JPEG\tn02\t0\t0\t9\t9\nval_1.JPEG\tn01\t0\t0\t9\t9\n",
        "val/images/val_0.JPEG": jpeg(10),
        "val/images/val_1.JPEG": jpeg(20),
        **train,
        "test/images/test_0.JPEG": jpeg(1),
    }


def check(data):
    assert data.train.pixels.shape == (6, 3, 64, 64)
    assert data.train.pixels[:, 1, 5, 5].tolist() == [100, 101] * 3
    assert data.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert data.train.classes == ("goldfish", "newt", "cat")
    assert data.test.pixels[:, 0, 0, 0].tolist() == [10, 20]
    assert data.test.labels.tolist() == [1, 0]


def test_archive_and_extracted_folder_read_alike(files, tmp_path):
    write_zip(tmp_path / f"{TOP}.zip", TOP, files)
    check(TinyImageNet().load(tmp_path))
    write_folder(tmp_path / "other" / "tiny-imagenet" / TOP, files)
    check(TinyImageNet().load(tmp_path / "other"))
    check(TinyImageNet().load(tmp_path / "other" / "tiny-imagenet" / TOP))


def test_a_bad_image_or_a_missing_list_is_an_error(files, tmp_path):
    path = tmp_path / f"{TOP}.zip"
    write_zip(path, TOP, files | {"train/n01/images/n01_1.JPEG": b""})
    with raises(DataError):
        TinyImageNet().load(tmp_path)
    del files["wnids.txt"]
    write_zip(path, TOP, files)
    with raises(DataError):
        TinyImageNet().load(tmp_path)
    path.write_bytes(b"PK")
    with raises(DataError):
        TinyImageNet().load(tmp_path)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("wnids.txt", b"\xff\xfe", "wnids.txt of Tiny ImageNet is damaged: it is not text"),
        ("wnids.txt", b"n01 n02", "a folder 'n03', which wnids.txt does not list"),
        (
            "val/val_annotations.txt",
            b"val_0.JPEG\nval_1",
            "val_annotations.txt of Tiny ImageNet is damaged",
        ),
        (
            "val/val_annotations.txt",
            b"val_0.JPEG\tn77\n",
            "val_annotations.txt of Tiny ImageNet is damaged",
        ),
    ],
)
def test_damaged_lists_are_refused(files, name, data, message, tmp_path):
    write_zip(tmp_path / f"{TOP}.zip", TOP, files | {name: data})

    def labels():
        loaded = TinyImageNet().load(tmp_path)
        return loaded.train.labels, loaded.test.labels

    with pytest.raises(DataError, match=message):
        labels()


def test_a_file_of_an_absurd_size_is_refused_before_it_is_read(files, tmp_path):
    """A sparse file takes no space on disk."""
    write_folder(tmp_path / TOP, files)
    with (tmp_path / TOP / "val/images/val_0.JPEG").open("r+b") as file:
        file.truncate(10**12)
    with raises(DataError):
        TinyImageNet().load(tmp_path)
