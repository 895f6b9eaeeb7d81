"""The texts of audit reports: attacks that succeed, attacks that fail, and the control."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_runs import Go

from fedssl.analysis.audit import audit
from fedssl.analysis.audit.feature_inversion import link_meaning
from fedssl.analysis.audit.inversion import Attacked, Compared, control_psnr, update_meaning
from fedssl.analysis.audit.layer_inversion import layer_result
from fedssl.analysis.audit.result import NO_TEST
from fedssl.analysis.audit.roc import Separation
from fedssl.analysis.audit.view_membership import membership_meaning
from fedssl.core.console import ignore_message

pytestmark = pytest.mark.rows("C9")


def _compared(reconstructed: float) -> Compared:
    """Return two reconstructions of this PSNR; for each image one of two guesses has 12 dB."""
    images = torch.zeros(2, 1, 4, 4)
    return Compared(
        images,
        images,
        images,
        reconstructed=torch.full((2,), reconstructed),
        guessed=torch.tensor([12.0, 11.0]),
        mean=torch.tensor([11.0, 12.0]),
        guess_count=2,
    )


def test_a_perfect_attack_on_two_images_is_not_reported_as_failed() -> None:
    expected = (
        f"reconstructions: closer to the original than the guesses for 2 of 2 images; {NO_TEST}"
    )
    assert update_meaning(_compared(100.0), None) == expected
    expected = (
        "inputs read out of gradients: closer to the original than the guesses for 2 of 2 views; "
        f"{NO_TEST}"
    )
    assert layer_result(torch.full((2,), 100.0), torch.full((2,), 12.0)).meaning == expected


def test_a_useless_attack_is_no_closer_than_guessing() -> None:
    none = "no closer to the original than the guesses for any of 2 images"
    assert update_meaning(_compared(5.0), None) == f"reconstructions: {none}; {NO_TEST}"
    useless = torch.full((2,), 5.0)
    result = layer_result(useless, torch.full((2,), 12.0))
    assert "no closer to the original than the guesses for any of 2 views" in result.meaning
    assert result.details["closer_than_guessing"] == 0


def test_an_original_must_be_closer_than_both_ways_of_guessing() -> None:
    """Each way of guessing has 12 dB for one image: 11.5 dB is below the better one for both."""
    assert _compared(11.5).wins == 0


def test_linked_rows_are_compared_with_guessing() -> None:
    assert link_meaning(10, 200, 0.01).startswith("10 of 200 rows are linked to their image")
    assert "no better than guessing" in link_meaning(2, 200, 0.01)


@pytest.mark.parametrize(
    ("trained", "untrained", "expected"),
    [
        ((0.65, 0.75), (0.45, 0.55), "training images are separated from others"),
        ((0.65, 0.75), (0.60, 0.70), "not clearly because of training"),
        ((0.45, 0.55), (0.45, 0.55), "cannot tell training images from others"),
        # Views of other images are more similar: an interval below 0.5 shows no membership either.
        ((0.30, 0.40), (0.45, 0.55), "cannot tell training images from others"),
    ],
)
def test_an_untrained_backbone_is_the_control_of_membership(
    trained: tuple[float, float], untrained: tuple[float, float], expected: str
) -> None:
    """Two sets of images may differ by themselves: an interval above 0.5 is not enough."""
    meaning = membership_meaning(_separation(*trained), _separation(*untrained))
    assert expected in meaning


def _separation(low: float, high: float) -> Separation:
    return Separation((low + high) / 2, low, high, tpr=None)


def _attacked(rows: list[int], brightness: float, found: float) -> Attacked:
    shape = (len(rows), 1, 4, 4)
    return Attacked(torch.tensor(rows), torch.full(shape, brightness), torch.full(shape, found))


def test_the_control_is_a_step_on_other_images() -> None:
    """Errors are 0.1 and 0.01, 10 and 20 dB; a step on common images is skipped."""
    first = _attacked([0, 1], 0.5, 0.4)
    common = _attacked([1, 2], 0.5, 0.5)
    second = _attacked([3, 4], 0.5, 0.5 - 0.1**0.5)
    assert control_psnr([first, second]) == pytest.approx(15.0, abs=0.01)
    assert control_psnr([first, common]) is None
    assert control_psnr([first]) is None


def test_the_report_has_the_control_and_no_p_values(go: Go) -> None:
    settings: dict[str, Any] = {"iterations": 1, "notify": ignore_message, "whole_round": False}
    found = audit(go(), attacks=["inversion"], images=8, batches=[2], **settings)
    attack = found.results["attacks"][0]
    assert "p_value" not in attack
    assert attack["random_images"] == 2
    assert f"{attack['psnr_of_control']:.1f} dB" in attack["meaning"]


def test_steps_on_more_images_than_the_client_has_are_reported(go: Go) -> None:
    """Each client has 16 images."""
    settings: dict[str, Any] = {"iterations": 1, "notify": ignore_message, "whole_round": False}
    found = audit(go(), attacks=["inversion"], batches=[17], **settings)
    attack = found.results["attacks"][0]
    assert attack["case"] == "one step on 17 images"
    assert attack["reason"] == "client 0 has only 16 images"
