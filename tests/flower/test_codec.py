"""Trees are encoded and decoded bit for bit."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedssl.core.state.codec import dumps
from fedssl.core.state.layout import Entry, Layout
from fedssl.core.state.state import State
from fedssl.flower.codec import Encoder, decode, encode

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
SMALL_FLOATS = [torch.float8_e4m3fn, torch.float8_e5m2]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
DTYPES = [*FLOATS, *SMALL_FLOATS, *INTEGERS, torch.bool, torch.complex64]


def _through_bytes(records: RecordDict) -> RecordDict:
    """Serialize and deserialize every object, as Flower does when it sends records."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    contents = {key: value.deflate() for key, value in get_all_nested_objects(records).items()}
    return inflate_object_from_contents(records.object_id, contents)


@st.composite
def _tensors(draw: Any) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    width = torch.empty(0, dtype=dtype).element_size()
    count = int(torch.Size(shape).numel())
    size = count * width
    raw = torch.tensor(list(draw(st.binary(min_size=size, max_size=size))), dtype=torch.uint8)
    if dtype == torch.bool:
        return (raw % 2).bool().view(shape)
    return raw.view(dtype).view(shape)


def _model(draws: list[int]) -> State:
    layout = Layout.of([Entry("backbone.a", (2, 3), "weight"), Entry("backbone.n", (), "counter")])
    return State(layout, torch.tensor(draws[:6]).float() / 7, torch.tensor([2**62 + draws[6]]))


values = st.one_of(
    _tensors(),
    st.lists(st.integers(-1000, 1000), min_size=7, max_size=7).map(_model),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.booleans(),
    st.text(),
)


def _is_complex(value: Any) -> bool:
    """True if `dumps` cannot store a value."""
    return isinstance(value, torch.Tensor) and value.dtype == torch.complex64


@given(st.dictionaries(st.text(), values, max_size=5))
def test_a_tree_comes_back_to_the_bit(tree: Any) -> None:
    back = decode(_through_bytes(encode(tree)))
    assert list(back) == list(tree)
    for key, value in tree.items():
        if isinstance(value, torch.Tensor):
            assert back[key].dtype == value.dtype
            assert back[key].shape == value.shape
        else:
            assert type(back[key]) is type(value)
    storable = {key: value for key, value in tree.items() if not _is_complex(value)}
    assert dumps({key: back[key] for key in storable}) == dumps(storable)


def test_encoded_values_by_hand() -> None:
    """bfloat16 1.0 is 0x3f80, the lower byte first; a counter above 2^53 is not rounded; 0-d and
    empty tensors keep their shapes."""
    tree = {
        "b": torch.tensor(1.0, dtype=torch.bfloat16),
        "n": torch.tensor(2**53 + 1),
        "e": torch.empty(0, 3),
    }
    records = encode(tree)
    assert records["arrays"]["0:b"].data.endswith(b"\x80\x3f")
    back = decode(_through_bytes(records))
    assert (back["b"].dtype, back["b"].shape, back["b"].item()) == (torch.bfloat16, (), 1.0)
    assert back["n"].item() == 2**53 + 1
    assert back["e"].shape == (0, 3)
    back["e"].add_(1)  # decoded tensors are writable
    back["n"].add_(1)


def test_a_transposed_tensor_keeps_its_shape() -> None:
    tensor = torch.arange(6.0).view(2, 3).T
    assert torch.equal(decode(encode({"t": tensor}))["t"], tensor)


def test_a_tensor_sent_again_is_encoded_once() -> None:
    shared = torch.ones(3)
    encoder = Encoder()
    first = encoder({"a": shared, "first": 0})
    second = encoder({"a": shared, "first": 1})
    assert first["arrays"]["0:a"] is second["arrays"]["0:a"]
    assert first["arrays"].object_id == second["arrays"].object_id
    encoder({"a": torch.zeros(1)})
    # Only the previous tree is held.
    assert encoder({"a": shared})["arrays"]["0:a"] is not first["arrays"]["0:a"]


@pytest.mark.parametrize("change", ["json", "missing", "format", "names", "none"])
def test_unreadable_records_raise_a_value_error(change: str) -> None:
    records = encode({"b": torch.tensor(1.0, dtype=torch.bfloat16)})
    described = json.loads(records["tree"]["json"])
    if change == "json":
        records["tree"] = ConfigRecord({"json": "{"})
    elif change == "missing":
        del records["arrays"]
    elif change == "format":
        records["arrays"]["0:b"] = Array(np.ones(1))
    elif change == "names":
        records["tree"] = ConfigRecord({"json": json.dumps({**described, "keys": [["b"]]})})
    else:
        records = RecordDict()
    with pytest.raises(ValueError, match="no tree can be read"):
        decode(records)
