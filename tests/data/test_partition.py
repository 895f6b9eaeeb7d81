import json

import pytest
import torch
from client_parts import all_indices, as_lists, has_fewer_at_each_client, seeded, sizes
from error_messages import raises
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedssl.core.errors import ConfigError, DataError
from fedssl.data import PARTITIONS, Dataset, Iid, Images, Listed, Natural, Quantity
from fedssl.data.partition import equal_sizes


def forbidden() -> torch.Tensor:
    raise AssertionError("labels were loaded")


def blind(count: int, owners=None) -> Dataset:
    """Images whose labels raise."""
    return Dataset(Images(torch.zeros(count, 1, 1, 1, dtype=torch.uint8), forbidden), owners=owners)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 9))
def test_iid_deals_every_image_once_in_equal_shares(count, clients, seed):
    if clients > count:
        with pytest.raises(ConfigError, match="too few"):
            Iid().split(blind(count), clients, seeded(seed))
        return
    parts = Iid().split(blind(count), clients, seeded(seed))
    assert all_indices(parts) == list(range(count))
    assert sizes(parts) == equal_sizes(count, clients)
    assert list(parts) == sorted(parts)
    for part in parts.values():
        assert part.tolist() == sorted(part.tolist())
        assert part.dtype == torch.int64


def test_a_share_is_the_beginning_of_what_a_client_would_have():
    """43 images for 4 clients are 11, 11, 11 and 10.

    A quarter of 11 is 2.75, of 10 it is 2.5, rounded to even.
    """
    whole = Iid(share=1.0).split(blind(43), 4, seeded())
    part = Iid(share=0.25).split(blind(43), 4, seeded())
    assert sizes(part) == [3, 3, 3, 2]
    assert has_fewer_at_each_client(part, whole)
    smallest = Iid(share=1e-9).split(blind(43), 4, seeded())
    assert sizes(smallest) == [1] * 4


def test_client_ids_have_equal_width():
    assert list(Iid().split(blind(12), 10, seeded()))[-1] == "9"
    assert list(Iid().split(blind(12), 11, seeded()))[:3] == ["00", "01", "02"]


@pytest.mark.parametrize("partition", [Iid(), Quantity(alpha=1.0), Quantity(shares=(0.2,) * 5)])
def test_draws_come_from_the_generator_alone(partition):
    torch.manual_seed(1)
    one = partition.split(blind(50), 5, seeded(3))
    torch.manual_seed(2)
    two = partition.split(blind(50), 5, seeded(3))
    other = partition.split(blind(50), 5, seeded(4))
    assert as_lists(one) == as_lists(two)
    assert as_lists(one) != as_lists(other)


def test_there_must_be_a_client():
    for partition in (Iid(), Quantity(alpha=1.0)):
        with raises(ConfigError):
            partition.split(blind(3), 0, seeded())


def test_quantity_gives_the_shares_asked_for():
    parts = Quantity(shares=(0.5, 0.3, 0.1)).split(blind(100), 3, seeded())
    assert sizes(parts) == [50, 30, 10]
    assert len(set(all_indices(parts))) == 90
    with raises(ConfigError):
        Quantity(shares=(0.5, 0.3, 0.1)).split(blind(100), 4, seeded())


def test_quantity_drawn_from_a_dirichlet_uses_every_image():
    equal = Quantity(alpha=1e6).split(blind(100), 4, seeded())
    assert min(sizes(equal)) >= 24
    assert max(sizes(equal)) <= 26
    skewed = Quantity(alpha=0.05).split(blind(100), 4, seeded())
    assert max(sizes(skewed)) > 60
    assert all_indices(skewed) == all_indices(equal) == list(range(100))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"shares": (0.5,), "alpha": 1.0},
        {"shares": (0.8, 0.3)},
        {"shares": (0.5, 0.0)},
        {"shares": ()},
        {"alpha": 0},
    ],
)
def test_quantity_wants_shares_or_alpha(values):
    with pytest.raises(ValidationError):
        Quantity(**values)


def test_natural_keeps_owners():
    owners = {"eve": torch.tensor([4, 0]), "bob": torch.tensor([], dtype=torch.int64)}
    parts = Natural().split(blind(5, owners), 2, seeded())
    assert as_lists(parts) == {"eve": [0, 4], "bob": []}
    # 0 clients: as many as there are owners
    assert list(Natural().split(blind(5, owners), 0, seeded())) == ["eve", "bob"]
    with raises(ConfigError):
        Natural().split(blind(5, owners), 3, seeded())
    with raises(ConfigError):
        Natural().split(blind(5), 2, seeded())


def test_listed_reads_index_lists(tmp_path):
    path = tmp_path / "parts.json"
    path.write_text(json.dumps({"a": [3, 1], "b": [], "c": [0]}))
    parts = Listed(path=str(path)).split(blind(5), 3, seeded())
    assert as_lists(parts) == {
        "a": [1, 3],
        "b": [],
        "c": [0],
    }
    assert list(Listed(path=str(path)).split(blind(5), 0, seeded())) == ["a", "b", "c"]
    path.write_text("{}")
    with raises(DataError):
        Listed(path=str(path)).split(blind(5), 0, seeded())


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("{", DataError, "cannot be read"),
        ("[[1]]", DataError, "must hold"),
        ('{"a": [1.5], "b": []}', DataError, "must hold"),
        ('{"a": [true], "b": []}', DataError, "must hold"),
        ('{"a": [1], "b": [5]}', DataError, "outside the range of 5 images"),
        ('{"a": [1], "b": [-1]}', DataError, "outside the range of 5 images"),
        ('{"a": [1], "b": [1]}', DataError, "to two clients"),
        ('{"a": [1]}', ConfigError, "has 2 clients but .* has 1"),
    ],
)
def test_lists_that_are_not_a_partition_are_refused(tmp_path, text, error, message):
    path = tmp_path / "parts.json"
    path.write_text(text)
    with pytest.raises(error, match=message):
        Listed(path=str(path)).split(blind(5), 2, seeded())
    with raises(DataError):
        Listed(path=str(tmp_path / "none")).split(blind(5), 2, seeded())


@pytest.mark.parametrize(
    ("name", "brings_clients"),
    [
        ("iid", False),
        ("quantity", False),
        ("natural", True),
        ("listed", True),
        ("clusters", False),
        ("rotation", False),
        ("style", False),
        ("classes", False),
        ("dirichlet", False),
        ("skew", False),
    ],
)
def test_every_partition_is_registered_with_its_needs(name, brings_clients):
    assert PARTITIONS[name].brings_clients is brings_clients
