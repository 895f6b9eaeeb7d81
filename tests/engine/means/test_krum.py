"""Krum and Multi-Krum by hand: which models they choose, and what bad clients can do."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from error_messages import raises
from hypothesis import given
from hypothesis import strategies as st
from small_models import mean_of, small_model

from fedssl.core.errors import TooFewUploadsError
from fedssl.engine.means import krum
from fedssl.engine.means.krum import Krum, MultiKrum, krum_scores, squared_distances

pytestmark = pytest.mark.rows("U12")

LINE = (0.0, 1.0, 3.0, 4.0, 100.0)


def test_scores_by_hand() -> None:
    """With f = 1, each of five models has its 5 − 1 − 2 = 2 nearest: for 0 these are 1 and 3 with
    1 + 9 = 10, for 1 they are 0 and 3 with 1 + 4 = 5, for 3 they are 4 and 1 with 1 + 4, for 4 they
    are 3 and 1 with 1 + 9, and for 100 they are 4 and 3 with 96² + 97² = 18625.
    """
    squares = squared_distances([small_model([value]) for value in LINE])
    assert krum_scores(squares, f=1) == [10, 5, 5, 10, 18625]


def test_of_equal_scores_the_smaller_model_is_chosen() -> None:
    """1 and 3 have equal scores, in any order of arrival."""
    for order in itertools.permutations(LINE):
        assert mean_of(Krum(), [small_model([value]) for value in order]).floats[0] == 1.0


def test_multi_krum_by_hand() -> None:
    """Of five with f = 1, two are averaged by default: (1 + 3) / 2. With 3, 0 or 4 is next: their
    scores are equal, and 0 is smaller: (1 + 3 + 0) / 3."""
    models = [small_model([value]) for value in LINE]
    assert mean_of(MultiKrum(), models).floats[0] == 2.0
    assert mean_of(MultiKrum(keep=3), models).floats[0] == pytest.approx(4 / 3)


def test_multi_krum_of_one_model_is_krum() -> None:
    models = [small_model(torch.randn(4).tolist()) for _ in range(7)]
    one = mean_of(MultiKrum(f=2, keep=1), models)
    assert torch.equal(one.floats, mean_of(Krum(f=2), models).floats)


@given(st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=2, max_size=2))
def test_krum_chooses_an_honest_model(bad: list[float]) -> None:
    """Two bad clients of seven, outside the cluster of the other five or in it."""
    honest = [small_model([value, value]) for value in (1.0, 1.1, 1.2, 1.3, 1.4)]
    models = [*honest, *(small_model([value, -value]) for value in bad)]
    assert 0.9 <= mean_of(Krum(f=2), models).floats[0] <= 1.5


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", range(7))
def test_models_that_are_not_finite_are_not_chosen(bad: float, place: int) -> None:
    """Two of seven; the scores of the others do not include their distances to them."""
    models = [small_model([value]) for value in (1.0, 1.1, 1.2, 1.3, 1.4)]
    for _ in range(2):
        models.insert(place, small_model([bad]))
    assert mean_of(Krum(f=2), models).floats[0] == pytest.approx(1.2)
    assert mean_of(MultiKrum(f=2, keep=3), models).floats[0] == pytest.approx(1.2)


def test_running_statistics_are_medians() -> None:
    """The chosen model, of weight 1, has statistics that no other has."""
    models = [small_model([value], [value * 2]) for value in LINE]
    models[1] = small_model([1.0], [1e30])
    assert mean_of(Krum(), models).floats.tolist() == [1.0, 8.0]


def test_distances_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a loop over pairs, with pieces of 3 of 10 weights. Statistics do not count."""
    stream = torch.Generator().manual_seed(0)
    rows = torch.randn(4, 10, generator=stream)
    models = [small_model(row.tolist(), [float(i)]) for i, row in enumerate(rows)]
    monkeypatch.setattr(krum, "PIECE_VALUES", 12)
    squares = squared_distances(models)
    for i, j in itertools.product(range(4), range(4)):
        expected = (rows[i].double() - rows[j].double()).square().sum()
        assert squares[i, j] == pytest.approx(float(expected))


def test_too_few_uploads() -> None:
    assert Krum(f=1).shortage(5) is None
    with raises(TooFewUploadsError):
        mean_of(Krum(f=1), [small_model([1.0])] * 4)
    with raises(TooFewUploadsError):
        mean_of(MultiKrum(f=1, keep=5), [small_model([1.0])] * 5)
