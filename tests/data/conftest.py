"""A folder of five images, and a record of the files that are decoded."""

import pytest
from image_files import put

from fedssl.data import decode


@pytest.fixture
def photos(tmp_path):
    """1.png … 5.png, each of one grey: its number."""
    for k in range(1, 6):
        put(tmp_path / "photos", f"{k}.png", k)
    return tmp_path / "photos"


@pytest.fixture
def decoded(monkeypatch) -> list[str]:
    """Names of the files that have been decoded, in this process, so far."""
    names: list[str] = []
    real = decode.decode

    def spy(source, *options):
        names.append(source.name)
        return real(source, *options)

    monkeypatch.setattr(decode, "decode", spy)
    return names
