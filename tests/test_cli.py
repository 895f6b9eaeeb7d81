"""The command line, as a newcomer meets it."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open

import fedssl
from fedssl import integrity
from fedssl.experiment import Experiment
from fedssl.recipes import families, recipes

Cli = Callable[..., tuple[int, str, str]]
MINE = """
rounds = 2
clients = 3
[data]
name = "npz"
path = "mine.npz"
[method]
name = "simclr"
backbone = "cnn"
hidden = 32
dim = 16
[train]
batch = 4
[probe]
every = 1
epochs = 5
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder but for mine.toml and its images, and the current one."""
    monkeypatch.chdir(tmp_path)
    labels = np.arange(36) % 3
    noise = np.random.default_rng(0).integers(0, 80, (36, 10, 10, 3))
    images = (noise + 80 * labels[:, None, None, None]).astype(np.uint8)
    Path("data").mkdir()
    np.savez("data/mine.npz", x_train=images, y_train=labels, x_test=images[:12], y_test=labels[:12])
    Path("mine.toml").write_text(MINE)
    return tmp_path


@pytest.mark.parametrize(
    "command", ["", "run", "recipes", "evaluate", "finetune", "finetune detection", "partition", "views", "doctor"]
)
def test_help(command: str, cli: Cli) -> None:
    code, out, err = cli(*command.split(), "--help")
    assert (code, err) == (0, "")
    assert f"Usage: fedssl {command}".strip() in out


def test_help_loses_no_words(cli: Cli) -> None:
    """What stands in brackets is taken for colours."""
    assert "--set labels=100 changes a setting under probe." in " ".join(cli("evaluate", "--help")[1].split())


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


def test_recipes(cli: Cli) -> None:
    """Off a terminal, a line for each, with all there is to say about it; on one, as wide as it is."""
    code, out, _ = cli("recipes")
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in out.splitlines() if line.strip()}
    assert code == 0
    for name, recipe in recipes().items():
        assert lines[name] == f"{recipe.about} {recipe.source}".strip()
    assert [out.index(paper) for paper in families().values()] == sorted(out.index(p) for p in families().values())
    listed = json.loads(cli("recipes", "--json")[1])
    assert listed.keys() == recipes().keys()
    assert listed["fedu-ablation"]["source"] == "FedU, Figures 5 and 6"


@pytest.mark.parametrize(
    ("pattern", "first", "count"),
    [
        ("FedEMA, Table 11", "fedema-cifar10-noniid", 4),
        ("FedEMA, Table 1", "fedsimclr-cifar10-noniid", 5 * 2 + 1),  # not Tables 10 to 12; one has two names
        ("Table 11", "fedema-cifar10-noniid", 4),
        ("table 4", "fedbyol-cifar10-noniid", 13 + 12 + 5),  # of FedEMA (one has two names), FedU and Dec-SSL
        ("mocov1", "fedmocov1-cifar10-iid", 8),
        ("fedema-cifar10-noniid-{tau,batch}#", "fedema-cifar10-noniid-tau0.1", 14),
        ("demo*", "demo", 1),
    ],
)
def test_some_recipes(pattern: str, first: str, count: int, cli: Cli) -> None:
    code, out, _ = cli("recipes", pattern)
    names = [line.split()[0] for line in out.splitlines() if line.strip() and line.split()[0] in recipes()]
    assert (code, names[0], len(names)) == (0, first, count)
    assert list(json.loads(cli("recipes", pattern, "--json")[1])) == names


def test_no_recipe(cli: Cli) -> None:
    for args in (("recipes", "nonsense"), ("recipes", "*-nonsense"), ("recipes", "--toml", "demos")):
        code, out, err = cli(*args)
        assert (code, out, err.count("\n")) == (2, "", 1)
    assert 'did you mean "demo"?' in err


@pytest.mark.parametrize(
    "name", ["demo", "fedbyol-cifar10", "fedema-cifar10-noniid-tau0.5-short", "fedu-cifar10-iid-mini"]
)
def test_a_recipe_is_shown_whole_and_can_be_run_from_a_file(name: str, cli: Cli, tmp_path: Path) -> None:
    code, out, _ = cli("recipes", name)
    assert code == 0
    values = tomllib.loads(out)
    assert Experiment.from_dict(values).to_dict() == values
    assert cli("recipes", "--toml", name)[1] == out
    assert json.loads(cli("recipes", name, "--json")[1]) == values
    (tmp_path / "copy.toml").write_text(out)
    assert tomllib.loads(cli("recipes", str(tmp_path / "copy.toml"))[1]) == values


def test_run(here: Path, cli: Cli) -> None:
    code, out, err = cli("run", "mine.toml")
    assert code == 0
    title, top = out.splitlines()[:2]
    assert title == "simclr × fedavg × star: accuracy in %"
    assert set(top) <= set("┏━┳┓")
    assert "run directory  runs/mine\n" in out
    assert "backbone       runs/mine/backbone.safetensors\n" in out
    assert re.search(r"^mine: round 2/2  3/3 clients  loss [\d.]+  [\d,]+ images/s  kNN [\d.]+%$", err, re.M)
    rounds = Path("runs/mine/rounds.jsonl").read_text()
    code, out, err = cli("run", "mine.toml", "--json", "--quiet")  # again: nothing but the results
    assert (code, err) == (0, "")
    assert json.loads(out) == {"dir": "runs/mine"} | json.loads(Path("runs/mine/results.json").read_text())
    assert Path("runs/mine/rounds.jsonl").read_text() == rounds


def test_a_changed_recipe_gets_a_directory_of_its_own(here: Path, cli: Cli) -> None:
    folders = set()
    for sets in ([], ["--set", "seed=1"], ["-s", "seed=1", "-s", "train.lr=0.01"], ["--set", "method=byol"]):
        code, out, _ = cli("run", "mine.toml", *sets, "--set", "rounds=1", "--quiet", "--json")
        assert code == 0
        folders.add(json.loads(out)["dir"])
    assert len(folders) == 4
    assert all(re.fullmatch(r"runs/mine-[0-9a-f]{8}", folder) for folder in folders)
    methods = [Experiment.from_file(Path(f) / "experiment.toml").to_dict()["method"] for f in folders]
    assert [m["hidden"] for m in methods if m["name"] == "byol"] == [32]  # the rest of the table is kept


def test_a_long_path_is_printed_in_one_piece(here: Path, cli: Cli) -> None:
    folder = "a folder [bold]" + 90 * "x"
    code, out, _ = cli("run", "mine.toml", "--set", "rounds=1", "--quiet", "--dir", folder)
    assert code == 0
    assert f"backbone       {folder}/backbone.safetensors\n" in out


def test_evaluate(here: Path, cli: Cli) -> None:
    code, out, _ = cli("run", "mine.toml", "--quiet")
    assert code == 0
    assert "k = 200 is more than the 36 labelled images there are: all of them vote\n" in out
    with safe_open("runs/mine/backbone.safetensors", "pt") as file:
        assert file.metadata()["notes"] == "; ".join(json.loads(Path("runs/mine/results.json").read_text())["notes"])
    code, out, _ = cli("evaluate", "runs/mine", "--probe", "knn", "--set", "k=3")
    assert code == 0
    heading = "knn on mine.npz: accuracy on 12 test images, learned from 36 labelled images\n"
    assert re.fullmatch(re.escape(heading) + r"global: [\d.]+%\n", out)
    path = Path("runs/mine/experiment.toml")
    as_it_was = path.read_text()
    longer = as_it_was.replace("rounds = 2", "rounds = 3")  # prolonged, and killed before it went on
    integrity.write_copied(path.parent, path.name, longer)
    code, out, _ = cli("evaluate", "runs/mine", "--probe", "knn", "--set", "k=3")
    assert out.splitlines()[-1] == "the run is not finished: this is its newest checkpoint"
    integrity.write_copied(path.parent, path.name, as_it_was)
    code, out, _ = cli("evaluate", "runs/mine", "--set", "labels=6", "--set", "probe.epochs=2", "--json")
    assert code == 0
    assert json.loads(out).keys() == {
        "probe",
        "note",
        "labelled",
        "tested",
        "mean",
        "models",
        "per_class",
        "confusion",
    }
    assert cli("run", "mine.toml", "--quiet", "--set", "topology.name=isolated", "--dir", "alone")[0] == 0
    code, out, _ = cli("evaluate", "alone", "--probe", "knn", "--set", "k=37")
    assert [line.partition(":")[0] for line in out.splitlines()[1:-1]] == ["0", "1", "2", "on average"]
    assert out.splitlines()[-1] == "k = 37 is more than the 36 labelled images there are: all of them vote"
    code, out, _ = cli("evaluate", "alone", "--probe", "per-client", "--set", "epochs=2")
    assert re.fullmatch(r"per.*\n(\d: [\d.]+%  \(in its own mix of classes: [\d.]+%\)\n){3}on average: .*\n", out)
    assert cli("run", "mine.toml", "--quiet", "--set", "topology=cycle", "--dir", "peers")[0] == 0
    code, out, _ = cli("evaluate", "peers", "--probe", "knn", "--set", "k=3")
    lines = out.splitlines()[1:]
    assert [line.partition(":")[0] for line in lines] == ["0", "1", "2", "mean", "on average"]
    assert [line.endswith("(not in the average)") for line in lines] == [False, False, False, True, False]
    assert "mean of the peers' models" in cli("run", "mine.toml", "--set", "topology=cycle", "--dir", "peers")[1]
    for args, sentence in (
        (["nowhere"], "nowhere is not a run directory"),
        (["runs/mine", "--probe", "knnn"], 'unknown probe "knnn", did you mean "knn"?'),
        (["runs/mine", "--probe", "transfer"], "another data set, --on NAME"),
        (["runs/mine", "--on", "cifar1"], 'unknown data set "cifar1", did you mean "cifar10"?'),
        (["runs/mine", "--on", "cifar10", "--set", "data.hold=3"], 'unknown key "data.hold"'),
        (["runs/mine", "--set", "data.size=3"], "name it with --on"),
        (["runs/mine", "--set", "data={size=3}"], "name it with --on"),
        (["runs/mine", "--set", "probe={label=3}"], 'unknown key "probe.label", did you mean "labels"?'),
        (["runs/mine", "--on", "data"], "data is a folder: --on folder --set data.path=data --set data.layout=classes"),
        (["runs/mine", "--probe", "knn", "--set", "labels=100"], 'probe "knn" does not use labels; it uses k, temp'),
        (["runs/mine", "--set", "label=3"], 'unknown key "probe.label", did you mean "labels"?'),
    ):
        code, _, err = cli("evaluate", *args)
        assert (code, err.count("\n")) == (2, 1)
        assert sentence in err


def test_partition_saved_and_run_from(here: Path, cli: Cli) -> None:
    dealt = ["--set", "partition.name=dirichlet", "--set", "partition.alpha=1.0"]
    dealt += ["--set", "partition.balanced=true"]
    code, out, _ = cli("partition", "mine.toml", *dealt, "--picture", "who.png", "--save", "lists.json")
    assert code == 0
    assert "earth mover's distance of clients from the whole" in out
    assert Path("who.png").read_bytes().startswith(b"\x89PNG")
    lists = json.loads(Path("lists.json").read_text())
    assert sorted(k for index in lists.values() for k in index) == list(range(36))
    code, out, _ = cli("partition", "mine.toml", *dealt, "--json")
    assert json.loads(out)["images"] == {client: len(index) for client, index in lists.items()}
    listed = ["--set", "partition.name=listed", "--set", "partition.path=lists.json"]
    for name, sets in (("dealt", dealt), ("listed", listed)):
        assert cli("run", "mine.toml", *sets, "--dir", name, "--quiet")[0] == 0
    both = [Path(name, "backbone.safetensors").read_bytes()[-4096:] for name in ("dealt", "listed")]
    assert both[0] == both[1]


def test_views(here: Path, cli: Cli) -> None:
    code, out, _ = cli("views", "mine.toml", "--out", "sheet.png")
    assert (code, out) == (0, "wrote sheet.png\n")
    with Image.open("sheet.png") as sheet:
        assert sheet.size[0] > 8 * 96


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["views", "mine.toml", "--out", "no/where.png"], "no/where.png cannot be written: there is no"),
        (["views", "mine.toml", "--out", "sheet.doc"], "the name must end in .png"),
        (["views", "mine.toml", "--out", "data"], "data cannot be written: it is a folder"),
        (["partition", "mine.toml", "--save", "no/where.json"], "no/where.json cannot be written: there is no"),
        (["partition", "mine.toml", "--picture", "who.doc"], "the name must end in .png"),
    ],
)
def test_places_that_cannot_be_written(args: list[str], sentence: str, here: Path, cli: Cli) -> None:
    code, out, err = cli(*args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert sentence in err


def test_doctor(cli: Cli) -> None:
    code, out, _ = cli("doctor", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["packages"]["torch"]
    assert found.keys() == {"python", "packages", "extras", "cpu_threads", "cuda", "problems"}
    code, out, _ = cli("doctor")
    assert code == 0
    assert f"torch {found['packages']['torch']}" in out


@pytest.fixture
def ward(here: Path) -> list[str]:
    """A folder of two clients without classes; the settings to read it."""
    for client in ("north [a]", "[red] south"):
        folder = here / "data/ward" / client
        folder.mkdir(parents=True)
        for n in range(6):
            Image.effect_noise((12, 12), 40 + n).save(folder / f"{n}.png")
    sets = ["data.name=folder", "data.path=ward", "data.layout=clients", "data.size=10", "partition.name=natural"]
    return [word for text in [*sets, "clients=2"] for word in ("--set", text)]


def test_a_folder_without_labels(ward: list[str], cli: Cli) -> None:
    code, out, _ = cli("run", "mine.toml", *ward, "--dir", "run", "--set", "data.channels=1")
    assert code == 0
    assert "No labelled test images, so no accuracy was measured." in out
    assert json.loads(Path("run/results.json").read_text())["table"] == {}
    code, _, err = cli("evaluate", "run")
    assert code == 2
    assert "there are neither test images nor labels here: measure on others with --on" in err.splitlines()[-1]
    code, out, _ = cli("partition", "mine.toml", *ward)
    assert code == 0
    assert "The images have no labels, so only their number is known." in out
    assert "north [a]" in out  # not taken for colours
    assert "[red] south" in out
    code, _, err = cli("partition", "mine.toml", *ward, "--picture", "who.png")
    assert code == 2
    assert "the images have no labels" in err.splitlines()[-1]
    classes = ["--set", "partition.name=classes", "--set", "partition.per_client=1"]
    code, _, err = cli("run", "mine.toml", *ward, *classes, "--dir", "other")
    assert code in (2, 3)
    assert "label" in err.splitlines()[-1]
    assert "Traceback" not in err


def test_a_folder_whose_test_images_alone_have_labels(ward: list[str], here: Path, cli: Cli) -> None:
    for kind in ("cat", "dog"):
        folder = here / "elsewhere" / kind
        folder.mkdir(parents=True)
        for n in range(4):
            Image.effect_noise((12, 12), 40 + n).save(folder / f"{n}.png")
    note = "the training images have no labels: probes learn from one half of the labelled test images"
    code, out, err = cli("run", "mine.toml", *ward, "--set", "data.test=elsewhere", "--dir", "run")
    assert code == 0
    assert (out.count(note), err.count(note)) == (1, 1)
    results = json.loads(Path("run/results.json").read_text())
    assert results["notes"][0].startswith(note)
    assert results["table"]["this run"].keys() == {"knn", "linear"}


def test_on_a_terminal(here: Path) -> None:
    """Bars instead of lines; a client named like a colour and dropped every round must not end the run."""
    lists = {"[/b]": [0], "one": list(range(1, 18)), "other": list(range(18, 36))}
    Path("lists.json").write_text(json.dumps(lists))
    sets = ["partition.name=listed", "partition.path=lists.json", "clients=3"]
    command = [sys.executable, "-m", "fedssl.cli", "run", "mine.toml", "--dir", "run"]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*command, *(word for text in sets for word in ("--set", text))], stdout=subprocess.DEVNULL, stderr=theirs
    )
    os.close(theirs)
    told = b""
    with contextlib.suppress(OSError):  # how a terminal says that nobody writes any more
        while block := os.read(ours, 65536):
            told += block
    os.close(ours)
    assert process.wait() == 0, told.decode()
    plain = " ".join(re.sub(r"\x1b\[[\d;?]*\w", "", told.decode()).split())
    assert "mine: round 1/2 2/3 clients" in plain
    assert "client [/b] dropped: too few images" in plain
