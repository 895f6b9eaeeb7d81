"""The command line: help, wrong usage, run, doctor."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.main import get_command

import fedssl
from fedssl.cli.command_help import EXAMPLES, EXTEND, PROGRAM_EXAMPLES, as_epilog
from fedssl.cli.main import COMMANDS, app
from fedssl.experiment.experiment import Experiment

Cli = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    "command",
    [
        "",
        "run",
        "recipes",
        "evaluate",
        "finetune",
        "finetune detection",
        "partition",
        "views",
        "doctor",
    ],
)
def test_help(command: str, cli: Cli) -> None:
    code, out, err = cli(*command.split(), "--help")
    assert (code, err) == (0, "")
    assert f"Usage: fedssl {command}".strip() in out


def test_every_command_has_a_group_and_examples(cli: Cli) -> None:
    groups = {**COMMANDS, EXTEND: ()}
    out = cli("--help")[1]
    places = [out.index(f" {group} ") for group in groups]
    assert places == sorted(places)
    names = [function.__name__ for functions in COMMANDS.values() for function in functions]
    assert sorted(names) == sorted(EXAMPLES)


@pytest.mark.parametrize("name", ["", *EXAMPLES])
def test_examples_are_valid_and_fit_into_80_columns(name: str) -> None:
    """Typer leaves one column empty at each side."""
    examples = EXAMPLES.get(name, PROGRAM_EXAMPLES)
    assert max(map(len, as_epilog(examples).splitlines())) <= 78
    program = get_command(app)
    for line, _ in examples:
        _, command, *args = shlex.split(line)
        assert name in ("", command)
        context = program.commands[command].make_context(command, args)  # raises if it is wrong
        assert context.params


@pytest.mark.parametrize("name", EXAMPLES)
def test_help_has_the_whole_docstring(name: str, cli: Cli) -> None:
    """Rich reads some text in brackets as colours and omits it."""
    docstring = inspect.getdoc(get_command(app).commands[name].callback)
    words = cli(name, "--help")[1].split()
    assert " ".join(docstring.split()) in " ".join(words)


def test_no_command_shows_the_help(cli: Cli) -> None:
    code, out, err = cli()
    assert code in (0, 2)
    assert "Usage: fedssl" in out + err


@pytest.mark.parametrize("args", [("rum",), ("run",), ("run", "demo", "--nonsense"), ("evaluate",)])
def test_wrong_usage(args: tuple[str, ...], cli: Cli) -> None:
    code, _, err = cli(*args)
    assert code == 2
    assert "Traceback" not in err


def test_version(cli: Cli) -> None:
    assert cli("--version") == (0, f"{fedssl.__version__}\n", "")


def test_doctor(cli: Cli) -> None:
    code, out, _ = cli("doctor", "--json")
    assert code == 0
    report = json.loads(out)
    assert report["packages"]["torch"]
    assert report.keys() == {"python", "packages", "extras", "cpu_threads", "cuda", "problems"}
    code, out, _ = cli("doctor")
    assert code == 0
    assert f"torch {report['packages']['torch']}" in out


@pytest.mark.parametrize(("cuda", "problems"), [(None, 0), ("13.0", 1)])
def test_doctor_reports_a_build_for_cuda_without_a_device(
    cuda: str | None, problems: int, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build without CUDA need not have "+cpu" in its version: those for macOS do not."""
    monkeypatch.setattr(torch, "__version__", "2.13.0")
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    report = json.loads(cli("doctor", "--json")[1])
    assert len([one for one in report["problems"] if "built for CUDA" in one]) == problems


def test_run(here: Path, cli: Cli) -> None:
    code, out, err = cli("run", "mine.toml")
    assert code == 0
    title, top = out.splitlines()[:2]
    assert title == (
        "simclr × fedavg × star: accuracy in % ± std over clients (95% interval, 12 test images)"
    )
    assert set(top) <= set("┏━┳┓")
    assert max(map(len, out.split("verdict:")[0].splitlines()[1:])) <= 80
    assert re.search(
        r"│ gain over clients alone +│ +[+-]?[\d.]+ \([+-]?[\d.]+…[+-]?[\d.]+\) │", out
    )
    assert re.search(r"^verdict: .* clients that train alone: \S+ points by the linear", out, re.M)
    assert "run directory  runs/mine\n" in out
    assert "backbone       runs/mine/backbone.safetensors\n" in out
    assert re.search(
        r"^mine: round 2/2  3/3 clients  loss [\d.]+  [\d,]+ images/s  kNN [\d.]+%  "
        r"\d+ s elapsed(, \d+ s left)?$",
        err,
        re.M,
    )
    rounds = Path("runs/mine/rounds.jsonl").read_text()
    code, out, err = cli("run", "mine.toml", "--json", "--quiet")  # again: only the results
    assert (code, err) == (0, "")
    assert json.loads(out) == {"dir": "runs/mine"} | json.loads(
        Path("runs/mine/results.json").read_text()
    )
    assert Path("runs/mine/rounds.jsonl").read_text() == rounds


def test_no_baselines(here: Path, cli: Cli) -> None:
    code, out, _ = cli("run", "mine.toml", "--no-baselines", "--quiet", "--json")
    assert code == 0
    assert list(json.loads(out)["table"]) == ["this run"]
    rounds = Path("runs/mine/rounds.jsonl").read_text()
    code, out, _ = cli("run", "mine.toml", "--baselines", "random,centralized", "--quiet", "--json")
    assert list(json.loads(out)["table"]) == ["this run", "random", "centralized"]
    assert Path("runs/mine/rounds.jsonl").read_text() == rounds  # not trained again
    code, _, err = cli("run", "mine.toml", "--baselines", "random", "--no-baselines")
    assert code == 2
    assert "exclude each other" in err


def test_seeds(here: Path, cli: Cli) -> None:
    code, out, _ = cli("run", "mine.toml", "--seeds", "2", "--baselines", "random", "--quiet")
    assert code == 0
    assert out.startswith("simclr × fedavg × star: accuracy in % ± std over seeds (95% interval,")
    assert "(mean of 2 seeds, std " in out
    assert "seed 1: runs/mine-seed1\n" in out


def test_a_changed_recipe_gets_another_directory(here: Path, cli: Cli) -> None:
    folders = set()
    for sets in (
        [],
        ["--set", "seed=1"],
        ["-s", "seed=1", "-s", "train.lr=0.01"],
        ["--set", "method=byol"],
    ):
        code, out, _ = cli("run", "mine.toml", *sets, "--set", "rounds=1", "--quiet", "--json")
        assert code == 0
        folders.add(json.loads(out)["dir"])
    assert folders == {
        "runs/mine-rounds1",
        "runs/mine-seed1-rounds1",
        "runs/mine-seed1-rounds1-lr0.01",
        "runs/mine-byol-rounds1",
    }
    methods = [
        Experiment.from_file(Path(f) / "experiment.toml").to_dict()["method"] for f in folders
    ]
    # Other settings of the method are kept.
    assert [m["hidden"] for m in methods if m["name"] == "byol"] == [32]


def test_a_long_path_is_printed_in_one_piece(here: Path, cli: Cli) -> None:
    folder = "a folder [bold]" + 90 * "x"
    code, out, _ = cli("run", "mine.toml", "--set", "rounds=1", "--quiet", "--dir", folder)
    assert code == 0
    assert f"backbone       {folder}/backbone.safetensors\n" in out


def test_a_folder_without_labels(ward: list[str], cli: Cli) -> None:
    code, out, _ = cli("run", "mine.toml", *ward, "--dir", "run", "--set", "data.channels=1")
    assert code == 0
    assert "No labelled test images, so no accuracy was measured." in out
    assert json.loads(Path("run/results.json").read_text())["table"] == {}
    code, _, err = cli("evaluate", "run")
    assert code == 2
    assert (
        "this data set has neither test images nor labels: measure on another data set with --on"
        in err.splitlines()[-1]
    )
    code, out, _ = cli("partition", "mine.toml", *ward)
    assert code == 0
    assert "The images have no labels, so only their number is known." in out
    assert "north [a]" in out  # not read as colours
    assert "[red] south" in out
    code, _, err = cli("partition", "mine.toml", *ward, "--picture", "who.png")
    assert code == 2
    assert "the images have no labels" in err.splitlines()[-1]
    classes = ["--set", "partition.name=classes", "--set", "partition.per_client=1"]
    code, _, err = cli("run", "mine.toml", *ward, *classes, "--dir", "other")
    assert code in (2, 3)
    assert "label" in err.splitlines()[-1]
    assert "Traceback" not in err


def test_a_folder_whose_test_images_alone_have_labels(
    ward: list[str], here: Path, cli: Cli
) -> None:
    for kind in ("cat", "dog"):
        folder = here / "elsewhere" / kind
        folder.mkdir(parents=True)
        for n in range(4):
            Image.effect_noise((12, 12), 40 + n).save(folder / f"{n}.png")
    note = (
        "the training images have no labels: probes learn from one half of the labelled test images"
    )
    code, out, err = cli("run", "mine.toml", *ward, "--set", "data.test=elsewhere", "--dir", "run")
    assert code == 0
    assert (out.count(note), err.count(note)) == (0, 1)
    assert (
        "probes learned from 4 of the 8 labelled test images and were tested on the other 4: the "
        "training images have no labels\n"
    ) in out
    code, out, _ = cli("evaluate", "run", "--probe", "knn")
    assert (
        out.splitlines()[0].split(": ")[1]
        == "accuracy on 4 test images, learned from 4 other labelled test images"
    )
    results = json.loads(Path("run/results.json").read_text())
    assert results["notes"][0].startswith(note)
    assert results["table"]["this run"].keys() == {"knn", "linear"}


def test_on_a_terminal(here: Path) -> None:
    """Bars instead of lines.

    A client that is named like a colour and dropped in every round must not end the run.
    """
    lists = {"[/b]": [0], "one": list(range(1, 18)), "other": list(range(18, 36))}
    Path("lists.json").write_text(json.dumps(lists))
    sets = ["partition.name=listed", "partition.path=lists.json", "clients=3"]
    command = [sys.executable, "-m", "fedssl", "run", "mine.toml", "--dir", "run"]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*command, *(word for text in sets for word in ("--set", text))],
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    output = b""
    with contextlib.suppress(OSError):  # raised when the other end is closed
        while block := os.read(ours, 65536):
            output += block
    os.close(ours)
    assert process.wait() == 0, output.decode()
    plain = " ".join(re.sub(r"\x1b\[[\d;?]*\w", "", output.decode()).split())
    assert "mine: round 1/2 2/3 clients" in plain
    assert "client [/b] dropped: too few images" in plain
