"""Change single bytes of run directories and of a cache, and run the commands that read them.

`benchmarks.chaos` and tests/robustness/test_byte_flips.py use this. For each flip, three commands
are run as a user would: `fedssl evaluate`, loading the models and the exported backbone in Python,
and `fedssl run`. Each must give the same result as without the flip, or end with one line and a
specific exit code. Afterwards every file must be as it was, or a message must have named the
damage.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from PIL import Image

import fedssl
from fedssl.core.errors import FedsslError
from fedssl.nets import read_weights
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


def train(root: Path) -> Federation:
    """Return a federation with a finished run and one that was killed in the third round, and
    keep copies of both.
    """
    made = Federation(root)
    made.start("finished")
    real = Session.log_line
    lines: list[Any] = []

    def killed_in_the_third(self: Session, *arguments: Any) -> Any:
        lines.append(arguments)
        if len(lines) > 2:
            raise SystemExit(9)
        return real(self, *arguments)

    try:
        with mock.patch.object(Session, "log_line", killed_in_the_third):
            made.start("unfinished")
    except SystemExit:
        shutil.copytree(made.root, made.root.with_name(made.root.name + "-intact"))
        return made
    raise RuntimeError("the second run was not killed")


def all_files(root: Path) -> list[Path]:
    """Return every file of the two run directories, of their comparisons, and of the cache."""
    folders = [root / name for name in ("finished", "unfinished", "cache")]
    return sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())


def used(root: Path, path: Path) -> list[range]:
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


def flips(root: Path, count: int, seed: int) -> Iterator[tuple[Path, int, bytes]]:
    """Yield `count` flips, spread over all files in turn: a place in the file and the new byte."""
    draw = random.Random(seed)  # nosec B311 # places of flips, no secret
    files = [path for path in all_files(root) if used(root, path)]
    draw.shuffle(files)
    for number in range(count):
        path = files[number % len(files)]
        place = draw.choice(draw.choice(used(root, path)))
        old = path.read_bytes()[place]
        new = bytes([old ^ 1 << draw.randrange(8)])
        if number % 3 == 2:
            new = draw.choice([byte for byte in BYTES if byte[0] != old])
        yield path, place, new


def flip(path: Path, place: int, byte: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[place : place + 1] = byte
    path.write_bytes(bytes(data))


def restore(root: Path) -> None:
    intact = root.with_name(root.name + "-intact")
    for name in ("finished", "unfinished", "cache"):
        shutil.rmtree(root / name)
        shutil.copytree(intact / name, root / name)
    shutil.copy(intact / "experiment.toml", root / "experiment.toml")


def classify(
    federation: Federation, change: tuple[Path, int, bytes], expected: dict[str, Outcome]
) -> tuple[str, str]:
    """Make one flip and run the commands; return the outcome and a description.

    The outcome is "repaired", "reported" or "refused"; "used" and "unnoticed" are failures: a
    result differs, or a changed file stays without a message.
    """
    path, place, byte = change
    before = path.read_bytes()
    flip(path, place, byte)
    where = path.relative_to(federation.root)
    name = where.parts[0] if where.parts[0] != "cache" else "finished"
    found = federation.attempt(name)
    what = f"{where} at {place}: {before[place : place + 1]!r} → {byte!r}; {found.printed}"
    for kind in ("evaluated", "loaded", "finished", "files"):
        if kind in ("evaluated", "loaded") and "trying the previous one" in found.printed:
            continue  # the models are those of the older checkpoint, as the message states
        got = getattr(found, kind)
        if got is not None and got != getattr(expected[name], kind):
            return "used", f"{kind} differs: {what}"
    if found.finished is None:
        return "refused", what
    if not path.exists() or path.read_bytes() == before or where.parts[0] == "unfinished":
        return "repaired", what
    return ("reported" if "damaged" in found.printed else "unnoticed"), what


def expected_outcomes(federation: Federation) -> dict[str, Outcome]:
    expected = {name: federation.attempt(name) for name in ("finished", "unfinished")}
    assert all(None not in outcome for outcome in expected.values())
    restore(federation.root)
    return expected
