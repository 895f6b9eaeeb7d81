"""The cross-validated accuracy of a classifier, by hand."""

from __future__ import annotations

import pytest
import torch

from fedssl.downstream.classify.report import make_report


def test_report_by_hand() -> None:
    """Five images of a, three of b, two of c; 4 + 1 + 0 = 5 of 10 are right, always "a" is 50%.

    Predicted as a: 4 of a, 2 of b, 2 of c, so its precision is 4 / 8; as b: 1 of a and 1 of b.
    """
    labels = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 2, 2])
    predicted = torch.tensor([0, 0, 0, 0, 1, 0, 0, 1, 0, 0])
    report = make_report(labels, predicted, ["a", "b", "c"], folds=5, penalty=0.1)
    assert report.accuracy.estimate == pytest.approx(50)
    assert (report.majority_class, report.majority) == ("a", 50.0)
    assert report.gain.estimate == pytest.approx(0)
    assert [tuple(row) for row in report.rows] == [
        ("a", 5, 80.0, 50.0, "b"),
        ("b", 3, pytest.approx(33.3333), 50.0, "a"),
        ("c", 2, 0.0, None, "a"),
    ]


def test_a_perfect_class_is_confused_with_none() -> None:
    labels = torch.tensor([0, 1, 1])
    report = make_report(labels, labels, ["a", "b"], folds=2, penalty=0.1)
    assert [row.confused_with for row in report.rows] == [None, None]
    assert report.values()["gain"]["estimate"] == pytest.approx(100 / 3)
