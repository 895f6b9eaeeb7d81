"""Memory is reused once the last tensor that shares it is freed, and not before."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from fedssl.core.state import buffers
from fedssl.core.state.buffers import MIN_BYTES, row

LONG = MIN_BYTES // 4  # float32


@pytest.fixture(autouse=True)
def _nothing_spare() -> Iterator[None]:
    buffers._spare.clear()
    yield
    buffers._spare.clear()


@pytest.mark.parametrize("length", [0, 1, LONG - 1, LONG, LONG + 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_a_row_is_an_ordinary_tensor(length: int, dtype: torch.dtype) -> None:
    values = row(length, dtype)
    assert (values.shape, values.dtype, values.is_contiguous()) == ((length,), dtype, True)
    values.fill_(3)
    assert values.sum() == 3 * length
    assert row(length, dtype, "meta").is_meta


def test_memory_is_used_again() -> None:
    first = row(LONG)
    address = first.data_ptr()
    del first
    assert row(LONG).data_ptr() == address
    assert row(LONG // 2, torch.float64).data_ptr() == address  # reused for another dtype


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
def test_memory_is_kept_while_it_is_shared(share: object) -> None:
    first = row(LONG)
    address = first.data_ptr()
    other = share(first)  # type: ignore[operator]
    del first
    assert row(LONG).data_ptr() != address
    buffers._spare.clear()
    del other
    assert row(LONG).data_ptr() == address


def test_another_length_is_other_memory() -> None:
    del (first := [row(LONG)])[0]
    assert not first
    longer = row(LONG + 1)
    assert longer.untyped_storage().nbytes() == 4 * (LONG + 1)
    assert [memory.nbytes for memory in buffers._spare] == [4 * LONG]


def test_at_most_eight_blocks_are_kept() -> None:
    rows = [row(LONG + i) for i in range(20)]
    assert not buffers._spare
    rows.clear()
    assert len(buffers._spare) == 8


def test_small_rows_are_not_pooled() -> None:
    row(LONG - 1)
    assert not buffers._spare


def test_threads_allocate_and_release_concurrently() -> None:
    """Each thread fills rows with its own number; no thread ever reads another's number."""
    wrong: set[float] = set()

    def work(number: int) -> None:
        for _ in range(200):
            mine = row(LONG).fill_(number)
            if mine[0] != number or mine[-1] != number:
                wrong.add(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
