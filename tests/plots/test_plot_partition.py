import pytest
import torch
from PIL import Image

from fedssl.plots.partition import plot_partition


@pytest.mark.parametrize(("clients", "classes"), [(5, 10), (100, 10), (100, 100)])
def test_a_picture_is_saved_in_which_every_class_has_its_colour(tmp_path, clients, classes):
    table = torch.arange(clients * classes).view(clients, classes) % 17
    names = [f"class {c}" for c in range(classes)]
    plot_partition(table, names, "title", path=tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert image.width > image.height > 500
        assert len(image.convert("RGB").getcolors(1 << 24)) > classes
