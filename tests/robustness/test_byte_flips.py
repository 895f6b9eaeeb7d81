"""P11: one changed byte in any file of a run directory or of the cache of decoded images.

For each flip, three commands are run as a user would: `fedssl evaluate`, loading the models and the
exported backbone in Python, and `fedssl run`. Each must give the same result as without the flip,
or end with one line and a specific exit code. Afterwards every file must be as it was, or a message
must have named the damage.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from error_messages import raises
from PIL import Image

import fedssl
from benchmarks.run_accuracies import final_accuracies
from fedssl.core.errors import ConfigError, FedsslError, RunError
from fedssl.nets import read_weights
from fedssl.runs.resume_checks import read_experiment
from fedssl.runs.session import Session

Cli = Callable[..., tuple[int, str, str]]

EXIT_CODES = (2, 3, 4)  # of errors that name what is wrong: configuration, images, run directory
BYTES = (b"\n", b'"', b"0", b"\x00", b"\xff")  # in addition to flipped bits

EXPERIMENT = """
rounds = 3
clients = 2
[data]
name = "folder"
path = "images"
layout = "classes"
size = 12
cache = "{root}/cache"
[method]
name = "byol"
backbone = "cnn"
hidden = 16
dim = 8
[method.augment]
jitter = [0.4, 0.4, 0.4, 0.1]
[train]
batch = 8
checkpoint_every = 0
[probe]
every = 1
linear = false
k = 3
picture = true
baselines = ["random", "isolated"]
"""


class Outcome(NamedTuple):
    """Results of the commands (None for an error), and the files they left."""

    printed: str
    evaluated: Any
    loaded: Any
    finished: Any
    files: Any


class Federation:
    """Images in folders, their cache, a finished run and one stopped after two of three rounds."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cli: Cli
        generator = np.random.default_rng(0)
        for part, count in (("train", 12), ("test", 6)):
            for number in range(count):
                pixels = generator.integers(0, 90, (12, 12, 3)) + number % 2 * 150
                path = root / "data/images" / part / f"class{number % 2}" / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.astype(np.uint8)).save(path)
        (root / "experiment.toml").write_text(EXPERIMENT.format(root=root))

    def start(self, name: str) -> None:
        fedssl.run(
            self.root / "experiment.toml", self.root / name, "cpu", self.root / "data", quiet=True
        )

    def run(self, name: str) -> tuple[int, str, str]:
        arguments = ("--data-dir", str(self.root / "data"), "--device", "cpu", "--json")
        return self.cli(
            "run", str(self.root / "experiment.toml"), "--dir", str(self.root / name), *arguments
        )

    def evaluate(self, name: str) -> tuple[int, str, str]:
        arguments = (
            "--probe",
            "knn",
            "--data-dir",
            str(self.root / "data"),
            "--device",
            "cpu",
            "--json",
        )
        return self.cli("evaluate", str(self.root / name), *arguments)

    def attempt(self, name: str) -> Outcome:
        """Run every command; a traceback fails the test."""
        outputs = []
        errors = []
        for command in (self.evaluate, self.run):
            code, out, err = command(name)
            assert "Traceback" not in err
            assert code == 0 or code in EXIT_CODES, (command, code, err)
            assert code == 0 or [line.startswith("fedssl: ") for line in err.splitlines()[-1:]] == [
                True
            ]
            outputs.append(json.loads(out) if code == 0 else None)
            errors.append(err)
            if command == self.evaluate:
                loaded, message = _load(self.root / name)
                errors.append(message)
        evaluated, finished = outputs
        if finished is not None:
            del finished["environment"]
        return Outcome(
            "".join(errors),
            evaluated,
            loaded,
            finished,
            None if finished is None else self.left(name),
        )

    def left(self, name: str) -> dict[str, Any]:
        """Return the reproducible files of a finished run; of its log, all but durations."""
        folder = self.root / name
        names = (
            "experiment.toml",
            "images.sha256",
            "backbone.safetensors",
            "results.json",
            "classes.json",
        )
        files: dict[str, Any] = {each: (folder / each).read_bytes() for each in names}
        for log in ("rounds.jsonl", "isolated/rounds.jsonl"):
            lines = [json.loads(line) for line in (folder / log).read_text().splitlines()]
            files[log] = [(line["round"], line["of"], line["loss"], line["knn"]) for line in lines]
        return files


def _load(folder: Path) -> tuple[Any, str]:
    """Load the models from the checkpoint, and the exported backbone from its file if there is
    one.
    """
    try:
        weights = fedssl.Run(folder, device="cpu").backbone().state_dict()
        exported = folder / "backbone.safetensors"
        stored = read_weights(exported)[1] if exported.is_file() else None
    except FedsslError as problem:
        return None, f"{problem}\n"
    return [
        {name: tensor.tolist() for name, tensor in (each or {}).items()}
        for each in (weights, stored)
    ], ""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """Return a federation with a finished run and one that was killed in the third round, and
    copies.
    """
    made = Federation(tmp_path_factory.mktemp("flips"))
    made.start("finished")
    real = Session.log_line
    lines: list[Any] = []

    def killed_in_the_third(self: Session, *arguments: Any) -> Any:
        lines.append(arguments)
        if len(lines) > 2:
            raise SystemExit(9)
        return real(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "log_line", killed_in_the_third)
        with pytest.raises(SystemExit):
            made.start("unfinished")
    shutil.copytree(made.root, made.root.with_name(made.root.name + "-intact"))
    return made


@pytest.fixture
def federation(trained: Federation, cli: Cli) -> Federation:
    _restore(trained.root)
    trained.cli = cli
    return trained


def _files(root: Path) -> list[Path]:
    """Return every file of the two run directories, of their comparisons, and of the cache."""
    folders = [root / name for name in ("finished", "unfinished", "cache")]
    return sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())


def _used(root: Path, path: Path) -> list[range]:
    """Return the bytes of a file that matter. Unreferenced bytes of memory/rows and of pixels do
    not, nor does the number of an ended process in run.lock.
    """
    if path.name == "run.lock":
        return []
    if path.name == "rows":
        manifests = [
            json.loads(file.read_bytes())
            for file in (path.parents[1] / "checkpoints").glob("*.json")
        ]
        places = [
            place for file in manifests for place in json.loads(file["body"])["memory"].values()
        ]
        return [range(offset, offset + length) for _, offset, length, _ in places]
    return [range(path.stat().st_size)]


def _flips(root: Path, count: int, seed: int) -> Iterator[tuple[Path, int, bytes]]:
    """Yield `count` flips, spread over all files in turn: a place in the file and the new byte."""
    draw = random.Random(seed)
    files = [path for path in _files(root) if _used(root, path)]
    draw.shuffle(files)
    for number in range(count):
        path = files[number % len(files)]
        place = draw.choice(draw.choice(_used(root, path)))
        old = path.read_bytes()[place]
        new = bytes([old ^ 1 << draw.randrange(8)])
        if number % 3 == 2:
            new = draw.choice([byte for byte in BYTES if byte[0] != old])
        yield path, place, new


def _flip(path: Path, place: int, byte: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[place : place + 1] = byte
    path.write_bytes(bytes(data))


def _restore(root: Path) -> None:
    intact = root.with_name(root.name + "-intact")
    for name in ("finished", "unfinished", "cache"):
        shutil.rmtree(root / name)
        shutil.copytree(intact / name, root / name)
    shutil.copy(intact / "experiment.toml", root / "experiment.toml")


def _classify(
    federation: Federation, flip: tuple[Path, int, bytes], expected: dict[str, Outcome]
) -> str:
    """Make one flip, run the commands, and return "repaired", "reported" or "refused"."""
    path, place, byte = flip
    before = path.read_bytes()
    _flip(path, place, byte)
    where = path.relative_to(federation.root)
    name = where.parts[0] if where.parts[0] != "cache" else "finished"
    found = federation.attempt(name)
    what = f"{where} at {place}: {before[place : place + 1]!r} → {byte!r}; {found.printed}"
    for kind in ("evaluated", "loaded", "finished", "files"):
        if kind in ("evaluated", "loaded") and "trying the previous one" in found.printed:
            continue  # the models are those of the older checkpoint, as the message states
        got = getattr(found, kind)
        assert got is None or got == getattr(expected[name], kind), f"{kind} differs: {what}"
    if found.finished is None:
        return "refused"
    mended = not path.exists() or path.read_bytes() == before or where.parts[0] == "unfinished"
    assert mended or "damaged" in found.printed, f"unnoticed: {what}"
    return "repaired" if mended else "reported"


def _expected(federation: Federation) -> dict[str, Outcome]:
    expected = {name: federation.attempt(name) for name in ("finished", "unfinished")}
    assert all(None not in outcome for outcome in expected.values())
    _restore(federation.root)
    return expected


def _sweep(
    federation: Federation, flips: list[tuple[Path, int, bytes]]
) -> Counter[tuple[str, str]]:
    expected = _expected(federation)
    counts: Counter[tuple[str, str]] = Counter()
    for flip in flips:
        outcome = _classify(federation, flip, expected)
        counts[flip[0].name.lstrip("0123456789"), outcome] += 1
        _restore(federation.root)
    return counts


def test_some_flips(federation: Federation) -> None:
    """One in each of the files that a run leaves next to its checkpoints, and one in each file of
    the cache.
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
    flips = [(path, path.stat().st_size // 2, b"\x07") for path in files]
    assert sum(_sweep(federation, flips).values()) == len(files)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_flips(federation: Federation, capfd: pytest.CaptureFixture[str]) -> None:
    counts = _sweep(federation, list(_flips(federation.root, 100, seed=1)))
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
            _flip(path, place, byte)
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
        _flip(path, place, b"\x07")
        code, out, err = cli(*arguments)
        assert (code, out) == (0, expected)
        assert "damaged" in err or name == "integrity.jsonl"
        path.write_bytes(intact)


def test_damaged_results_are_not_compared(federation: Federation) -> None:
    _flip(federation.root / "finished/results.json", 60, b"9")
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
        _flip(path, 1000, b"\x07\x08")
    code, out, err = federation.run("finished")
    assert (code, out) == (0, expected)
    assert "isolated is damaged and could not be repaired: no checkpoint in" in err


def test_directories_of_an_earlier_version_are_used(federation: Federation) -> None:
    """Without hashes, a finished run is not measured again, and a stopped run resumes to the same
    result.
    """
    expected = _expected(federation)
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
