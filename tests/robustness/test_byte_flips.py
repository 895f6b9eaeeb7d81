"""P11: one changed byte in any file of a run directory or of the cache of decoded images.

For each flip, three commands are run as a user would: `fedssl evaluate`, loading the models and the
exported backbone in Python, and `fedssl run`. Each must give the same result as without the flip,
or end with one line and a specific exit code. Afterwards every file must be as it was, or a message
must have named the damage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from error_messages import raises

import fedssl
from benchmarks.byte_flips import (
    Federation,
    classify,
    expected_outcomes,
    flip,
    flips,
    restore,
    train,
)
from benchmarks.run_accuracies import final_accuracies
from fedssl.core.errors import ConfigError, RunError
from fedssl.runs.resume_checks import read_experiment

pytestmark = pytest.mark.rows("P11")

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """Return a federation with a finished run and an unfinished one, and copies."""
    return train(tmp_path_factory.mktemp("flips"))


@pytest.fixture
def federation(trained: Federation, cli: Cli) -> Federation:
    restore(trained.root)
    trained.cli = cli
    return trained


def _sweep(
    federation: Federation, changes: list[tuple[Path, int, bytes]]
) -> Counter[tuple[str, str]]:
    expected = expected_outcomes(federation)
    counts: Counter[tuple[str, str]] = Counter()
    for change in changes:
        outcome, what = classify(federation, change, expected)
        assert outcome in ("repaired", "reported", "refused"), what
        counts[change[0].name.lstrip("0123456789"), outcome] += 1
        restore(federation.root)
    return counts


def test_some_flips(federation: Federation) -> None:
    """One flip in each file that a run writes next to its checkpoints, and one in each file of the
    cache.
    """
    root = federation.root
    names = (
        "results.json",
        "backbone.safetensors",
        "experiment.toml",
        "rounds.jsonl",
        "integrity.jsonl",
    )
    files = [root / "finished" / name for name in names] + [root / "unfinished/rounds.jsonl"]
    files += [next((root / "cache").rglob(name)) for name in ("index", "pixels")]
    changes = [(path, path.stat().st_size // 2, b"\x07") for path in files]
    assert sum(_sweep(federation, changes).values()) == len(files)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_flips(federation: Federation, capfd: pytest.CaptureFixture[str]) -> None:
    counts = _sweep(federation, list(flips(federation.root, 100, seed=1)))
    assert sum(counts.values()) == 100
    with capfd.disabled():
        for (file, outcome), count in sorted(counts.items()):
            print(f"{file:28} {outcome:10} {count}")


def test_the_number_in_a_lock_file_does_not_matter(federation: Federation) -> None:
    for path in federation.root.rglob("run.lock"):
        path.write_bytes(b"\xff\n")
    assert federation.run("finished")[0] == 0
    assert federation.evaluate("finished")[0] == 0


def test_an_edited_experiment_is_refused_with_the_difference(federation: Federation) -> None:
    path = federation.root / "finished/experiment.toml"
    path.write_text(path.read_text().replace("rounds = 3", "rounds = 4"))
    for command in (federation.run, federation.evaluate):
        code, _, err = command("finished")
        assert code == 2
        assert "rounds: 3 when the run was started, 4 in the file now" in err.splitlines()[-1]


def test_any_changed_byte_of_an_experiment_is_detected(federation: Federation) -> None:
    folder = federation.root / "finished"
    path = folder / "experiment.toml"
    intact = path.read_bytes()
    expected = read_experiment(folder, print)
    for place in range(0, len(intact), 5):
        for byte in (bytes([intact[place] ^ 1]), b"\n"):
            flip(path, place, byte)
            messages: list[str] = []
            try:
                assert read_experiment(folder, messages.append) == expected
            except ConfigError as problem:
                messages.append(str(problem))
            assert len(messages) == 1 or intact[place : place + 1] == byte
            assert (
                not messages
                or "is damaged; its copy in" in messages[0]
                or "was changed after" in messages[0]
            )
            path.write_bytes(intact)


@pytest.mark.parametrize(
    "name", ["rounds.jsonl", "rounds.jsonl.copy", "experiment.toml", "integrity.jsonl"]
)
def test_analyses_read_intact_files(name: str, federation: Federation, cli: Cli) -> None:
    folder = federation.root / "finished"
    arguments = (
        "analyse",
        "divergence",
        str(folder),
        "--out",
        str(federation.root / "out"),
        "--json",
    )
    code, expected, _ = cli(*arguments)
    assert code == 0
    path = folder / name
    intact = path.read_bytes()
    for place in range(1, len(intact), len(intact) // 2):
        flip(path, place, b"\x07")
        code, out, err = cli(*arguments)
        assert (code, out) == (0, expected)
        assert "damaged" in err or name == "integrity.jsonl"
        path.write_bytes(intact)


def test_damaged_results_are_not_compared(federation: Federation) -> None:
    path = federation.root / "finished/results.json"
    flip(path, 60, b"8" if path.read_bytes()[60:61] == b"9" else b"9")
    with raises(RunError):
        final_accuracies(fedssl.Run(federation.root / "finished", device="cpu"))


def test_a_picture_that_is_switched_off_is_removed(federation: Federation) -> None:
    """The run is measured again, and the picture would show the earlier results."""
    toml = federation.root / "experiment.toml"
    toml.write_text(toml.read_text().replace("picture = true", "picture = false"))
    assert "measuring the run again" in federation.run("finished")[2]
    assert not (federation.root / "finished/picture.png").exists()
    assert "was finished already" in federation.run("finished")[2]


def test_a_comparison_that_cannot_be_repaired_is_reported(federation: Federation) -> None:
    """The finished run has its results, which are printed as usual."""
    expected = federation.run("finished")[1]
    for path in (federation.root / "finished/isolated/checkpoints").glob("*.safetensors"):
        flip(path, 1000, b"\x07\x08")
    code, out, err = federation.run("finished")
    assert (code, out) == (0, expected)
    assert "isolated is damaged and could not be repaired: no checkpoint in" in err


def test_directories_of_an_earlier_version_are_used(federation: Federation) -> None:
    """Without hashes, a finished run is not measured again, and a stopped run resumes to the same
    result.
    """
    expected = expected_outcomes(federation)
    for name in ("finished", "unfinished"):
        for path in [
            *(federation.root / name).rglob("integrity.jsonl"),
            *(federation.root / name).rglob("*.copy"),
        ]:
            path.unlink()
        found = federation.attempt(name)
        assert found._replace(printed="") == expected[name]._replace(printed="")
        assert "was written by an earlier version without hashes" in found.printed
        assert "damaged" not in federation.attempt(name).printed
        assert (federation.root / name / "integrity.jsonl").is_file()
