"""Every command on the pages runs: in the page's order, in a new folder, with tiny settings."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from factories import random_pixels
from PIL import Image
from test_docs import (
    BLOCKS,
    COMMANDS_BEFORE_PYTHON,
    PAGES,
    ROOT,
    TINY,
    TINY_DEMO,
    Block,
    execute,
)

import fedssl
from fedssl.core.user_modules import import_modules
from fedssl.experiment.experiment import load
from fedssl.paper_tables.sweep import split_values
from fedssl.probes import PROBES
from fedssl.runs.directories import default_dir

# Commands that cannot run everywhere, by reason.
CANNOT_RUN = {
    "CIFAR-10 is downloaded": [
        "fedssl run fedema-cifar10-noniid",
        "fedssl run fedbyol-cifar10-noniid-short --set seed=1",
        "fedssl run demo --set probe.on=cifar10",
        "fedssl evaluate runs/demo --probe linear --on cifar10",
        "fedssl evaluate runs/demo --probe semi --on cifar10 --set labels=1",
        "fedssl reproduce fedema-3",
        "fedssl reproduce fedema-3 --fresh",
        "fedssl reproduce fedema-5 --cells ResNet-18 --seeds 1",
        "fedssl reproduce fedema-5 --cells '*-cifar10-noniid' --cells 'FedU, ResNet-50'",
    ],
    "COCO is not on this machine; tests/downstream/object_detection fine-tunes on drawn shapes": [
        "fedssl finetune detection runs/fedema-cifar10-noniid --data coco",
        "fedssl finetune detection runs/fedema-cifar10-noniid --data coco --from random",
        "fedssl finetune detection backbone.safetensors --train-images photos "
        "--train-annotations train.json --val-images photos --val-annotations val.json",
        "fedssl finetune detection runs/mine --data shapes --iterations 500 --batch 4 "
        "--set size=96 --set width=32 --set regions=64",
    ],
    "Flower is an extra; tests/flower runs it": ["fedssl flower up --clients 2 demo"],
    "it runs until Ctrl-C; tests/pages/live/test_server.py runs it": [
        "fedssl watch runs/demo",
        "fedssl watch runs/demo --port 8800",
    ],
    "it takes minutes; tests/cli/test_combinations.py trains them": ["fedssl combinations --train"],
}
SHORT_TABLE = ["--cells", "{fedema-cifar10-noniid}"]  # one cell of the table, ten rounds

Cli = Callable[..., tuple[int, str, str]]


def steps_of(page: Path) -> Iterator[Block | list[str]]:
    """Yield the commands of a page, and its Python where that needs their results."""
    for block in BLOCKS:
        if block.page != page:
            continue
        if block.language == "sh":
            for line in block.text.splitlines():
                words = shlex.split(line, comments=True)
                if words[:1] == ["fedssl"]:
                    yield words
        elif page in COMMANDS_BEFORE_PYTHON and block.language == "python" and not block.info:
            yield block


PAGES_WITH_COMMANDS = [page for page in PAGES if any(isinstance(s, list) for s in steps_of(page))]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny run of the demo, measured in its only round, and its clients' own runs."""
    changes = TINY_DEMO | {"probe.every": 1, "probe.baselines": ["isolated"]}
    folder = tmp_path_factory.mktemp("commands") / "demo"
    return fedssl.run("demo", folder, "cpu", quiet=True, set=changes).dir


@pytest.fixture
def folder(own_modules: Path, trained: Path) -> Path:
    """Change to a new folder with a run of the demo, two clients' photos, labels and a query."""
    shutil.copytree(trained, own_modules / "runs" / "demo")
    for number, pixels in enumerate(random_pixels(200, size=32)):
        client = own_modules / "photos" / ("north" if number % 2 else "south")
        client.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(client / f"{number}.png")
    for name in ("labelled", "labelled-learn", "labelled-test"):  # one folder per class
        shutil.copytree(own_modules / "photos", own_modules / name)
    Image.open(own_modules / "photos" / "north" / "1.png").save(own_modules / "query.jpg")
    return own_modules


@pytest.mark.slow
@pytest.mark.timeout(1200)  # all pages together take a few minutes on two free cores
@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_run(page: Path, folder: Path, cli: Cli) -> None:
    left_out = {command for commands in CANNOT_RUN.values() for command in commands}
    write_files(page, folder)
    names: dict[str, Any] = {"__name__": "__main__"}
    for step in steps_of(page):
        if isinstance(step, Block):
            execute(step, names)
        elif shlex.join(step) not in left_out:
            code, _, errors = cli(*shrink(step[1:]))
            assert code == 0, f"{shlex.join(step)}: {errors}"
            if "--out" in step:
                assert (folder / step[step.index("--out") + 1]).stat().st_size > 0


def test_commands_left_out_are_on_a_page() -> None:
    on_pages = set()
    for page in PAGES_WITH_COMMANDS:
        for step in steps_of(page):
            if isinstance(step, list):
                on_pages.add(shlex.join(step))
    for commands in CANNOT_RUN.values():
        for command in commands:
            assert command in on_pages


def write_files(page: Path, folder: Path) -> None:
    """Write the files that the commands of a page name: mine.toml and modules to import.

    They are the first TOML block and the first Python block of the page.
    """
    first: dict[str, str] = {}
    for block in BLOCKS:
        if block.page == page and not block.info:
            first.setdefault(block.language, block.text)
    if "toml" in first:
        (folder / "mine.toml").write_text(first["toml"], "utf-8")
    for step in steps_of(page):
        if isinstance(step, list):
            for file in values_after(step, "--import"):
                (folder / file).write_text(first["python"], "utf-8")


def shrink(words: list[str]) -> list[str]:
    """Return a command with tiny settings and the results where the page expects them."""
    change = {
        "run": shrink_run,
        "evaluate": shrink_evaluate,
        "sweep": shrink_sweep,
        "reproduce": shrink_reproduce,
    }
    return change[words[0]](words) if words[0] in change else words


def shrink_run(words: list[str]) -> list[str]:
    tiny = assignments(tiny_settings(words[1]))
    shrunk = [*words, "--quiet", "--device", "cpu"]
    import_modules(values_after(words, "--import"))
    if "--dir" not in words and "--seeds" not in words:
        # Named after the page's own changes: earlier runs of the page are tiny, too.
        original = load(words[1], values_after(tiny, "--set"))
        changed = load(words[1], values_after([*tiny, *words], "--set"))
        title = Path(words[1]).name.removesuffix(".toml")
        directory = default_dir(title, changed, original, torch.device("cpu"))
        shrunk += ["--dir", str(directory)]
    return [*shrunk, *tiny]


def shrink_evaluate(words: list[str]) -> list[str]:
    probe = (values_after(words, "--probe") or ["linear"])[0]
    if "epochs" not in PROBES[probe].uses or "solver=lbfgs" in words:
        return words
    return [*words, "--set", "epochs=1"]


def shrink_sweep(words: list[str]) -> list[str]:
    """Keep the first value of every setting."""
    settings = tiny_settings(words[1])
    shrunk = [*words[:2], "--seeds", "1"]
    for axis in values_after(words, "--set"):
        key, _, values = axis.partition("=")
        if key not in settings:
            shrunk += ["--set", f"{key}={split_values(values)[0]}"]
    for probe in values_after(words, "--probe"):
        shrunk += ["--probe", probe]
    return [*shrunk, *assignments(settings)]


def shrink_reproduce(words: list[str]) -> list[str]:
    """Train one cell, with the seeds of the page."""
    return words if "--list" in words else [*words, *SHORT_TABLE]


def values_after(words: list[str], option: str) -> list[str]:
    return [words[i + 1] for i, word in enumerate(words) if word == option]


def tiny_settings(name: str) -> dict[str, Any]:
    """Return settings for one round, which is measured: `fedssl analyse` needs its accuracy."""
    tiny = TINY if name.endswith(".toml") else TINY_DEMO
    return tiny | {"probe.every": 1}


def assignments(settings: dict[str, Any]) -> list[str]:
    words = []
    for key, value in settings.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        words += ["--set", f"{key}={text}"]
    return words
