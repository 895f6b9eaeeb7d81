"""Files that tables are read from, with a changed byte: measured again, never shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from error_messages import raises
from fake_results import GOOD, fake_result, make_outcome

from fedssl.core.errors import RunError
from fedssl.core.files.checked_lines import append
from fedssl.paper_tables import results_on_disk


def test_a_damaged_measurement_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = make_outcome(tmp_path, GOOD, seeds=1)
    plan = outcome.requested_seeds[0]
    fake_result(plan, 80.25)
    assert plan.training is not None
    assert plan.measure is not None
    path = plan.training.folder / results_on_disk.MEASURES / plan.measure.file
    intact = path.read_bytes()
    for place in range(0, len(intact), 2):
        for byte in (b"1", b"\n", b'"', b"\xff"):
            path.write_bytes(intact[:place] + byte + intact[place + 1 :])
            if path.read_bytes() == intact:
                continue
            capsys.readouterr()
            assert results_on_disk.find_measurement(plan.training, plan.measure) is None
            assert (
                capsys.readouterr().err == f"{path} is damaged and is ignored: it is made again\n"
            )
    path.write_bytes(intact)
    measured = results_on_disk.find_measurement(plan.training, plan.measure)
    assert measured is not None
    assert measured["value"] == 80.25


@pytest.mark.parametrize("text", ["5", "[1, 2]", "null", '{"a"'])
def test_results_of_an_earlier_version_that_are_no_table(text: str, tmp_path: Path) -> None:
    outcome = make_outcome(tmp_path, GOOD, seeds=1)
    training = outcome.requested_seeds[0].training
    assert training is not None
    training.folder.mkdir()
    (training.folder / "results.json").write_text(text)
    assert results_on_disk.read_results(training.folder, training.key) is None


def test_a_damaged_log_is_read_from_its_copy_or_refused(tmp_path: Path) -> None:
    training = make_outcome(tmp_path, GOOD, seeds=1).requested_seeds[0].training
    assert training is not None
    training.folder.mkdir()
    path = training.folder / "rounds.jsonl"
    append(path, 0, b'{"round": 1, "code": "0123abcd"}\n')
    path.write_bytes(path.read_bytes().replace(b"0123", b"012\xff"))
    assert results_on_disk.training_codes(training) == {"0123abcd"}
    path.with_name("rounds.jsonl.copy").unlink()
    with raises(RunError):
        results_on_disk.training_codes(training)
