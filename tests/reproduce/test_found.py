"""Files that tables are read from, with a changed byte: measured again, never shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from pretended import GOOD, outcome, pretend

from fedssl.errors import RunError
from fedssl.report.checked_lines import append
from fedssl.reproduce import found


def test_a_damaged_measurement_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = outcome(tmp_path, GOOD, seeds=1)
    want = made.wanted[0]
    pretend(want, 80.25)
    assert want.training is not None
    assert want.measure is not None
    path = want.training.folder / found.MEASURES / want.measure.file
    intact = path.read_bytes()
    for place in range(0, len(intact), 2):
        for byte in (b"1", b"\n", b'"', b"\xff"):
            path.write_bytes(intact[:place] + byte + intact[place + 1 :])
            if path.read_bytes() == intact:
                continue
            capsys.readouterr()
            assert found.measured(want.training, want.measure) is None
            assert capsys.readouterr().err == f"{path} is damaged and is not used: it is measured again\n"
    path.write_bytes(intact)
    measured = found.measured(want.training, want.measure)
    assert measured is not None
    assert measured["value"] == 80.25


@pytest.mark.parametrize("text", ["5", "[1, 2]", "null", '{"a"'])
def test_results_of_an_earlier_version_that_are_no_table(text: str, tmp_path: Path) -> None:
    made = outcome(tmp_path, GOOD, seeds=1)
    training = made.wanted[0].training
    assert training is not None
    training.folder.mkdir()
    (training.folder / "results.json").write_text(text)
    assert found.results(training.folder, training.key) is None


def test_a_damaged_log_is_read_from_its_copy_or_refused(tmp_path: Path) -> None:
    training = outcome(tmp_path, GOOD, seeds=1).wanted[0].training
    assert training is not None
    training.folder.mkdir()
    path = training.folder / "rounds.jsonl"
    append(path, 0, b'{"round": 1, "code": "0123abcd"}\n')
    path.write_bytes(path.read_bytes().replace(b"0123", b"012\xff"))
    assert found.trained_by(training) == {"0123abcd"}
    path.with_name("rounds.jsonl.copy").unlink()
    with pytest.raises(RunError, match=r"line 1 of .* is damaged and has no intact copy"):
        found.trained_by(training)
