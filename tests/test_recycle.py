"""Memory comes back when the last tensor that shares it is gone, and not before."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from fedssl import recycle
from fedssl.recycle import LEAST, row

LONG = LEAST // 4  # float32


@pytest.fixture(autouse=True)
def _nothing_spare() -> Iterator[None]:
    recycle._spare.clear()
    yield
    recycle._spare.clear()


@pytest.mark.parametrize("length", [0, 1, LONG - 1, LONG, LONG + 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_a_row_is_an_ordinary_tensor(length: int, dtype: torch.dtype) -> None:
    made = row(length, dtype)
    assert (made.shape, made.dtype, made.is_contiguous()) == ((length,), dtype, True)
    made.fill_(3)
    assert made.sum() == 3 * length
    assert row(length, dtype, "meta").is_meta


def test_memory_is_used_again() -> None:
    first = row(LONG)
    address = first.data_ptr()
    del first
    assert row(LONG).data_ptr() == address
    assert row(LONG // 2, torch.float64).data_ptr() == address  # bytes are bytes


def test_two_rows_never_share_memory() -> None:
    rows = [row(LONG).fill_(i) for i in range(12)]
    assert [r.unique().tolist() for r in rows] == [[i] for i in range(12)]


@pytest.mark.parametrize(
    "share",
    [
        lambda t: t[5:9],
        lambda t: t.detach(),
        lambda t: t.view(-1, 2).T,
        lambda t: t.numpy(),
        lambda t: memoryview(t.numpy())[3:],
        lambda t: t.untyped_storage(),
        lambda t: torch.nn.Parameter(t),
    ],
)
def test_whoever_shares_it_keeps_it(share: object) -> None:
    first = row(LONG)
    address, other = first.data_ptr(), share(first)  # type: ignore[operator]
    del first
    assert row(LONG).data_ptr() != address
    recycle._spare.clear()
    del other
    assert row(LONG).data_ptr() == address


def test_another_length_is_other_memory() -> None:
    del (first := [row(LONG)])[0]
    assert not first
    longer = row(LONG + 1)
    assert longer.untyped_storage().nbytes() == 4 * (LONG + 1)
    assert [memory.nbytes for memory in recycle._spare] == [4 * LONG]


def test_little_is_kept_in_reserve() -> None:
    rows = [row(LONG + i) for i in range(20)]
    assert not recycle._spare
    rows.clear()
    assert len(recycle._spare) == 8


def test_small_rows_are_left_to_malloc() -> None:
    row(LONG - 1)
    assert not recycle._spare


def test_threads_may_take_and_leave_at_once() -> None:
    """Each thread fills rows with its own number; nobody ever finds another's in them."""
    found: set[float] = set()

    def work(number: int) -> None:
        for _ in range(200):
            mine = row(LONG).fill_(number)
            if mine[0] != number or mine[-1] != number:
                found.add(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not found
