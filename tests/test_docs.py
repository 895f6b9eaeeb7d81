"""The documentation is true: its Python runs, its TOML loads, its commands exist, its tables are
complete.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import runpy
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest
import torch
import typer
from safetensors import safe_open

import fedssl
from fedssl import nets
from fedssl.algorithm import ALGORITHMS
from fedssl.analysis import ANALYSES
from fedssl.cli.main import app
from fedssl.cli.recipes import chosen, is_one
from fedssl.core import errors
from fedssl.core.settings import validate
from fedssl.core.user_modules import import_modules
from fedssl.data import PARTITIONS, SOURCES
from fedssl.downstream.object_detection.settings import DetectionSettings
from fedssl.engine.federate import Round
from fedssl.engine.means.mean_settings import MEANS
from fedssl.engine.privacy.merge import Spent
from fedssl.engine.uploads.records import Report
from fedssl.experiment.experiment import Experiment, load
from fedssl.experiment.plain_values import parse_assignment
from fedssl.method import METHODS
from fedssl.nets import BACKBONES
from fedssl.paper_tables.reproduce import Outcome, find_table, select_cells
from fedssl.paper_tables.sweep import sweep_table
from fedssl.probes import PROBES
from fedssl.runs.local import Interrupted
from fedssl.runs.rounds_log import record
from fedssl.topologies.topology import TOPOLOGIES
from fedssl.training.trainer import Metrics

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
SECURITY = ROOT / "SECURITY.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", SECURITY, *sorted((ROOT / "docs").rglob("*.md"))]
REGISTRIES = {
    "methods": METHODS,
    "algorithms": ALGORITHMS,
    "topologies": TOPOLOGIES,
    "partitions": PARTITIONS,
    "data sets": SOURCES,
    "backbones": BACKBONES,
    "means": MEANS,
}
# One step per client of the demo, and a short probe: enough to check that a line runs.
TINY = {
    "rounds": 1,
    "train.epochs": 1,
    "probe.epochs": 1,
    "probe.every": 0,
    "probe.picture": False,
    "probe.baselines": [],
}
TINY_DEMO = TINY | {"data.holdout": 4000}


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    info: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def read_blocks(page: Path) -> Iterator[Block]:
    text = page.read_text("utf-8")
    for found in re.finditer(r"^```(\w+)([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield Block(
            page, text[: found.start()].count("\n") + 2, found[1], found[2].strip(), found[3]
        )


BLOCKS = [block for page in PAGES for block in read_blocks(page)]
# Python on these pages uses results of the page's commands: test_docs_commands.py executes both.
COMMANDS_BEFORE_PYTHON = {ROOT / "docs" / "tutorial.md"}
PYTHON = [
    b
    for b in BLOCKS
    if b.language == "python" and not b.info and b.page not in COMMANDS_BEFORE_PYTHON
]
WITH_TORCHVISION = [b for b in PYTHON if "torchvision" in b.text]
WITH_TIMM = [b for b in PYTHON if "import timm" in b.text]


def marks(text: str) -> list[pytest.MarkDecorator]:
    """Return the marks of a test of this text: timm is an optional library."""
    return [pytest.mark.oracle] if "timm:" in text else []


def parametrized(blocks: list[Block]) -> Any:
    parameters = [pytest.param(block, marks=marks(block.text)) for block in blocks]
    return pytest.mark.parametrize("block", parameters, ids=str)


def execute(block: Block, names: dict[str, Any]) -> None:
    # Padded, so that a traceback shows the line of the page.
    exec(compile("\n" * (block.line - 1) + block.text, str(block.page), "exec"), names)


def saved_file(page: Path) -> str | None:
    """Return the name of the file that a page's first Python block is to be saved as, or None."""
    found = re.search(r"Save this file as `(\w+\.py)`", page.read_text("utf-8"))
    return None if found is None else found[1]


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a tiny run of the demo."""
    folder = tmp_path_factory.mktemp("docs") / "demo"
    return fedssl.run("demo", folder, "cpu", quiet=True, set=TINY_DEMO).dir


@pytest.fixture
def sandbox(own_modules: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty directory where every run is tiny, without network and without new
    names.
    """
    real = fedssl.run

    def run(experiment: Any, *args: Any, set: Any = None, **changes: Any) -> fedssl.Run:
        tiny = TINY_DEMO if experiment == "demo" else TINY
        flat = {key: changes.pop(key) for key in list(changes) if key in tiny}
        return real(experiment, *args, quiet=True, set={**flat, **(set or {}), **tiny}, **changes)

    def refuse(*args: object) -> NoReturn:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(fedssl, "run", run)
    monkeypatch.setattr(
        import_module("fedssl.paper_tables.reproduce"), "_missing_measures", lambda outcome: {}
    )  # no cell is trained,
    monkeypatch.setattr(Outcome, "failed", [])  # and none of them counts as failed
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return own_modules


@pytest.mark.parametrize(
    "page", sorted({b.page for b in PYTHON}), ids=lambda page: str(page.relative_to(ROOT))
)
def test_python_runs(
    page: Path, sandbox: Path, demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Execute all blocks of a page in one namespace, like a notebook.

    A block that is to be saved as a file is imported instead.
    """
    optional = [*WITH_TORCHVISION, *WITH_TIMM]
    blocks = [b for b in PYTHON if b.page == page and b not in optional]
    file = saved_file(page)
    if file is not None:
        (sandbox / file).write_text(blocks.pop(0).text)
        import_modules([file])
    if any('"runs/demo' in b.text for b in blocks):
        shutil.copytree(demo, sandbox / "runs" / "demo")
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        execute(block, names)
    if page == README:
        printed = capsys.readouterr().out
        assert "torch.Size([8, 512])" in printed
        assert re.search(r"\{'global': \d+\.\d+\}", printed)


def test_readme_opens_with_ten_lines_of_python() -> None:
    first = next(b for b in PYTHON if b.page == README)
    assert len([line for line in first.text.splitlines() if line]) <= 10
    assert first.line < 10


@parametrized(WITH_TORCHVISION)
def test_torchvision_blocks_compile(block: Block) -> None:
    compile(block.text, str(block), "exec")


@pytest.mark.oracle
@parametrized(WITH_TORCHVISION)
def test_torchvision_loads_the_backbone(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features of torchvision's model, loaded as the page describes, equal those of the
    backbone.
    """
    pytest.importorskip("torchvision")
    monkeypatch.chdir(tmp_path)
    stem = "cifar" if "maxpool" in block.text else "imagenet"
    backbone = nets.build("resnet18", 3, stem).eval()
    nets.save_backbone(backbone.state_dict(), "backbone.safetensors", {})
    names: dict[str, Any] = {}
    execute(block, names)
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(names["model"].eval()(images), backbone(images))


@pytest.mark.oracle
@parametrized(WITH_TIMM)
def test_timm_loads_the_backbone(block: Block, sandbox: Path) -> None:
    pytest.importorskip("timm")
    execute(block, {})


@parametrized([b for b in BLOCKS if b.language == "toml"])
def test_toml_loads(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values = tomllib.loads(block.text)
    if "project" in values:  # how a plugin is registered
        assert {registry.group for registry in REGISTRIES.values()} >= set(
            values["project"]["entry-points"]
        )
        return
    experiment = Experiment.from_toml(block.text)
    if experiment.method.init is not None:
        experiment.method.init.touch()
    experiment.check()


def commands() -> Iterator[tuple[Block, list[str]]]:
    for block in BLOCKS:
        if block.language == "sh":
            for line in block.text.splitlines():
                if words := shlex.split(line, comments=True):
                    yield block, words


@pytest.mark.parametrize(
    ("block", "words"),
    [pytest.param(*command, marks=marks(" ".join(command[1]))) for command in commands()],
    ids=lambda value: shlex.join(value) if isinstance(value, list) else str(value),
)
def test_command_exists(block: Block, words: list[str], own_modules: Path) -> None:
    program, *rest = words
    checks: dict[str, Callable[[list[str], Block, Path], None]] = {
        "fedssl": check_fedssl,
        "make": check_make,
        "pip": check_pip,
    }
    checks[program](rest, block, own_modules)


def check_fedssl(words: list[str], block: Block, folder: Path) -> None:
    """Check that the subcommand has these options and that the experiment and its changes are
    valid.
    """
    group: Any = typer.main.get_command(app)
    command = group.commands[words[0]]
    if hasattr(command, "commands"):  # a group of commands
        words = words[1:]
        command = command.commands[words[0]]
    with command.make_context(words[0], words[1:]) as context:
        given = context.params
    for file in given.get("imports") or []:  # the page's first Python block
        (folder / file).write_text(next(b.text for b in PYTHON if b.page == block.page))
        import_modules([file])
    changes = given.get("set") or []
    if words[0] == "detection":
        validate(
            DetectionSettings, {"start": given["start"]} | dict(map(parse_assignment, changes))
        )
        return
    if words[0] == "evaluate":
        assert given["probe"] in PROBES
        keys = {text.partition("=")[0] for text in changes}
        assert {key for key in keys if not key.startswith("data.")} <= {
            *PROBES[given["probe"]].uses
        }
        other = {key.removeprefix("data.") for key in keys if key.startswith("data.")}
        assert not other or other <= {*SOURCES[given["on"]].model_fields}
        return
    if words[0] == "reproduce":
        chosen_cells = given["table"] and select_cells(find_table(given["table"]), given["cells"])
        assert chosen_cells or given["list_"]
        return
    if words[0] == "sweep":
        for cell in sweep_table(given["name"], changes, given["probe"] or ["linear"]).cells:
            load(cell.recipe, cell.set)
        return
    if words[0] == "analyse":
        assert {text.partition("=")[0] for text in changes} <= set(
            ANALYSES[given["kind"]].model_fields
        )
        return
    if words[0] == "recipes" and not is_one(given["toml"] or given["pattern"] or ""):
        assert chosen(given["pattern"])
        return
    name = given.get("name") or given.get("toml") or given.get("pattern")
    if name is not None and name.endswith(".toml"):  # the page's first experiment
        experiments = [b for b in BLOCKS if b.page == block.page and b.language == "toml"]
        if not experiments:  # `fedssl new` writes it
            return
        (folder / name).write_text(experiments[0].text)
        name = str(folder / name)
    if name is not None:
        load(name, changes)


def check_make(words: list[str], block: Block, folder: Path) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert set(words) <= set(targets)


def check_pip(words: list[str], block: Block, folder: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    named = re.findall(r"\[(\w+)\]", " ".join(words))
    assert words[0] == "install"
    assert set(named) <= set(extras)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_quotes_are_up_to_date(page: Path) -> None:
    script = runpy.run_path(str(ROOT / "docs" / "quotes.py"))
    text = page.read_text("utf-8")
    assert text == script["refreshed"](text), "run: python docs/quotes.py"


@parametrized([b for b in BLOCKS if b.language == "python" and b.info and ": " not in b.info])
def test_quoted_code_is_where_the_page_says(block: Block) -> None:
    place = re.fullmatch(r'title="(.+):(\d+)-(\d+)"', block.info)
    assert place
    lines = (ROOT / place[1]).read_text("utf-8").splitlines(keepends=True)
    assert "".join(lines[int(place[2]) - 1 : int(place[3])]) == block.text, (
        f"{block} quotes {place[0]} wrongly"
    )


def own_names(registry: Any) -> set[str]:
    return {name for name in registry.names() if registry[name].__module__.startswith("fedssl.")}


def test_readme_lists_all_components() -> None:
    box = README.read_text("utf-8").partition("## Components")[2].partition("\n## ")[0]
    listed = {
        row[1]: set(re.findall(r"`([^`]+)`", row[2]))
        for row in re.finditer(r"^\| (\S.*?) \| (.*) \|$", box, re.M)
    }
    del listed["type"]
    assert listed == {kind: own_names(registry) for kind, registry in REGISTRIES.items()} | {
        "probes": set(PROBES)
    }


def test_reference_is_what_the_script_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages on the settings of an experiment and on the commands are up to date."""
    monkeypatch.syspath_prepend(ROOT / "docs")  # as Python has it for a script
    script = runpy.run_path(str(ROOT / "docs" / "make_reference.py"))
    pages = script["pages"]()
    assert set(pages) == {"experiment.md", "cli.md"}
    for name, text in pages.items():
        page = (ROOT / "docs" / "reference" / name).read_text("utf-8")
        assert page == text, "run: python docs/make_reference.py"


def test_security_lists_what_the_algorithms_send(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python docs/make_security.py` writes the table."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    make_security = import_module("make_security")
    text = SECURITY.read_text("utf-8")
    assert make_security.page(text) == text
    table = text.partition(make_security.BEGIN)[2].partition(make_security.END)[0]
    for name in ALGORITHMS.names():
        assert f"| `{name}` with" in table
    assert table.count("**unencrypted features") == 2  # FedCA and CCL


def test_command_reference_has_every_option_of_run() -> None:
    """A closed form for one command, so that an empty table cannot pass."""
    page = (ROOT / "docs" / "reference" / "cli.md").read_text("utf-8")
    part = page.partition("## `fedssl run`\n")[2].partition("\n## ")[0]
    group: Any = typer.main.get_command(app)
    spellings = {param.opts[0] for param in group.commands["run"].params} - {"name"}
    assert "fedssl run [OPTIONS] NAME_OR_FILE\n" in part
    assert spellings <= first_cells(part)


def test_results_are_what_the_script_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")  # as Python has it for a script
    script = runpy.run_path(str(ROOT / "docs" / "make_results.py"))
    page = (ROOT / "docs" / "results.md").read_text("utf-8")
    assert page == script["page"](), "run: python docs/make_results.py"
    for picture in re.findall(r"\]\((.+\.png)\)", page):
        assert (ROOT / "docs" / picture).is_file()


def section(title: str) -> str:
    text = (ROOT / "docs" / "reference" / "run-directory.md").read_text("utf-8")
    return text.partition(f"# {title}\n")[2].partition("\n## ")[0]


def first_cells(text: str) -> set[str]:
    """Return everything in backquotes in the first column of a page's tables."""
    cells = re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_rounds_log_is_documented(demo: Path) -> None:
    line = json.loads((demo / "rounds.jsonl").read_text("utf-8").splitlines()[0])
    dropped = record(Round(0, {}, [Report("a", "too few images")]), 10, 0.1, 1.0)["clients"][0]
    trained = Report(
        "a", None, Metrics(1.0, 2, 3, 4.0, 0.5, 6.0), clipped=0.1, dropped_rows_reason="all"
    )
    clipped = record(Round(0, {}, [trained]), 10, 0.1, 1.0)["clients"][0]
    accuracies: dict[str, Any] = {}
    for key in ("knn", "knn_on"):
        accuracies |= {key: 40.0, f"{key}_settings": {"k": 5}, f"{key}_images": "0123"}
    private = Round(0, {}, [], spent=Spent(1, 4.0, 1e-5, 1.0, 1.0))
    measured = record(private, 10, 0.1, 1.0, accuracies, warning="features are shared")
    keys = {*line, *measured, *line["clients"][0], *dropped, *clipped}
    assert first_cells(section("rounds.jsonl")) == keys


def test_results_are_documented(demo: Path) -> None:
    found = json.loads((demo / "results.json").read_text("utf-8"))
    assert {*found, *found["environment"]} <= set(re.findall(r"`([^`]+)`", section("results.json")))


def test_the_header_of_a_backbone_is_documented(demo: Path) -> None:
    # tests/data/test_fit.py and tests/runs/test_private_run.py have runs with these keys
    others = {"fit", "background", "norm", "privacy"}
    with safe_open(demo / "backbone.safetensors", "pt") as file:
        keys = set(file.metadata())
    assert not others & keys
    assert first_cells(section("The header of backbone.safetensors")) == others | keys


def _links(page: Path) -> set[str]:
    """Return the pages that a page links to, as paths below docs/."""
    names = re.findall(r"\]\(([\w/-]+\.md)\)", page.read_text("utf-8"))
    return {(page.parent / name).relative_to(ROOT / "docs").as_posix() for name in names}


def test_every_page_is_in_the_navigation_once() -> None:
    """site_hooks.py adds CONTRIBUTING.md and SECURITY.md to the site."""
    docs = ROOT / "docs"
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    navigation = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.M)
    added = {"maintainers/contributing.md", "explanation/security.md"}
    assert sorted(navigation) == sorted(pages | added)


def test_every_decision_is_listed_with_the_others() -> None:
    docs = ROOT / "docs"
    records = {path.relative_to(docs).as_posix() for path in docs.glob("decisions/[0-9]*.md")}
    assert _links(docs / "decisions/index.md") == records


def test_the_page_on_own_images_can_be_executed_twice(sandbox: Path) -> None:
    """The second time the same runs exist and are finished, because images and experiments are
    equal.
    """
    blocks = [b for b in PYTHON if b.page == ROOT / "docs" / "how-to" / "own-images.md"]
    hashes = []
    for _ in range(2):
        names: dict[str, Any] = {}
        for block in blocks:
            execute(block, names)
        hashes.append(
            [(sandbox / "runs" / run / "images.sha256").read_text() for run in ("given", "dealt")]
        )
    assert hashes[0] == hashes[1]


def test_run_directory_is_documented(demo: Path) -> None:
    documented = {name.partition("/")[0] for name in first_cells(section("A run directory"))}
    assert {path.name for path in demo.iterdir()} <= documented


def test_the_python_api_is_documented() -> None:
    """Every public name is on the page, with every parameter of its functions."""
    page = (ROOT / "docs/reference/api/running.md").read_text("utf-8")
    shown = {name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)$", page, re.M)}
    assert set(fedssl.__all__) - {"__version__"} <= shown
    described = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^- (.+?): ", page, re.M))))
    for function in (fedssl.run, fedssl.reproduce, fedssl.sweep):
        assert set(inspect.signature(function).parameters) <= described


def test_analyses_are_documented() -> None:
    """Every kind has a section, and every setting of each is named on the page."""
    page = (ROOT / "docs" / "how-to" / "analyse.md").read_text("utf-8")
    assert {*re.findall(r"^## `([\w-]+)`$", page, re.M)} == set(ANALYSES.names())
    named = first_cells(page)
    for kind in ANALYSES.names():
        assert kind in named
        assert set(ANALYSES[kind].model_fields) <= named, kind


def test_pictures_of_results_are_those_on_the_page() -> None:
    shown, made = ROOT / "docs/explanation/linear-theory.png", ROOT / "results/theory.png"
    assert shown.read_bytes() == made.read_bytes()


def _with_subclasses(kind: type[Exception]) -> Iterator[Any]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _with_subclasses(subclass)


def test_exit_codes_are_documented() -> None:
    kinds = list(_with_subclasses(errors.FedsslError))
    codes = {kind.exit_code for kind in kinds if kind.__module__.startswith("fedssl.")}
    assert Interrupted in kinds
    assert {
        int(code) for code in re.findall(r"^\| (\d+) \|", section("Exit codes"), re.M)
    } == codes | {0}


@pytest.mark.parametrize(
    "page", [README, ROOT / "CONTRIBUTING.md", SECURITY], ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text("utf-8"))
    assert links
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def test_site_builds_quietly_and_needs_no_other_host(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    build = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path),
    ]
    done = subprocess.run(build, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for page in tmp_path.rglob("*.html"):
        assert re.findall(r'(?:src|href)="(?:https?:)?//[^"]+"', page.read_text("utf-8")) == [], (
            page
        )
