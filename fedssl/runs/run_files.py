"""List the files of clients in a run directory, without reading images or models.

What a checkpoint and an exported backbone contain depends on the topology, on the algorithm and on
the names of the clients, which are in experiment.toml and in the rounds log. Files for which these
cannot be read are in a group of their own.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from fedssl.core.errors import FedsslError
from fedssl.core.files import integrity
from fedssl.core.files.removal import list_files
from fedssl.core.files.sealed import unseal
from fedssl.runs.live_file import NAME as LIVE
from fedssl.runs.node_files import EXPERIMENT

Group = Literal["memory", "models", "cache", "audit", "report", "checkpoints", "unclassified"]
LOGS = ("rounds.jsonl", "rounds.jsonl.copy")
REPORT = "report.html"  # of `fedssl report`
AUDIT = ("audit.json", "audit.png", ".*.tmp")  # in the folder audit
OF_THE_SERVER = {"star", "centralized"}  # topologies with one site, of no client
OF_CLIENTS = {"isolated", "cycle", "complete", "tree", "random", "edges"}
SHARES_FEATURES = {"fedca", "ccl"}
MEAN = "backbone-mean"


class Facts(NamedTuple):
    """What the files of a run directory state about it."""

    topology: str | None  # None if experiment.toml cannot be read
    clients: set[str]
    all_clients: bool  # False if the rounds log is damaged
    shares_features: bool  # unencrypted


def run_files(folder: Path) -> Iterator[tuple[Group, Path]]:
    """Yield the files of clients in a run directory, relative to it, and their group."""
    facts = _facts_of(folder)
    for path in list_files(folder, Path("memory")).files:
        yield "memory", path
    if (folder / LIVE).is_file() and not (folder / LIVE).is_symlink():
        yield "memory", Path(LIVE)  # what clients did in a round that was not finished
    for path in list_files(folder, Path("audit")).files:
        if len(path.parts) == 2 and any(path.match(pattern) for pattern in AUDIT):
            yield "audit", path
    checkpoints = _checkpoint_group(folder, facts)
    for path in list_files(folder, Path("checkpoints")).files:
        yield checkpoints, path
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or not path.is_file():
            continue
        if path.name == REPORT:
            yield "report", Path(REPORT)
        elif path.match("backbone-*.safetensors"):
            if _is_personal(path.stem, facts.clients):
                yield "models", Path(path.name)
            elif not facts.all_clients and path.stem != MEAN:
                yield "unclassified", Path(path.name)
        elif path.name.startswith(".") and path.name.endswith(".tmp"):
            yield "memory", Path(path.name)  # of a write that was killed; it may be a model


def _facts_of(folder: Path) -> Facts:
    experiment = _read_experiment(folder)
    topology = None
    algorithm = None
    if experiment is not None:
        topology = _name(experiment, "topology", "star")
        algorithm = _name(experiment, "algorithm", "fedavg")
    clients: set[str] = set()
    intact = []
    warned = False  # that features are shared
    for name in LOGS:
        log = folder / name
        if log.is_file():
            records, is_intact = _records(log)
            intact.append(is_intact)
            for record in records:
                warned = warned or bool(record.get("warning"))
                clients.update(client["client"] for client in record["clients"])
    return Facts(topology, clients, any(intact), warned or algorithm in SHARES_FEATURES)


def _read_experiment(folder: Path) -> dict[str, Any] | None:
    """Return the tables of experiment.toml, or of its recorded copy; None if both are damaged."""
    copy = None
    with suppress(FedsslError, OSError, ValueError):
        copy = integrity.copy_of(folder, EXPERIMENT)
    with suppress(OSError, ValueError):
        if copy is None:
            copy = (folder / EXPERIMENT).read_text("utf-8")
        return tomllib.loads(copy)
    return None


def _name(experiment: dict[str, Any], table: str, default: str) -> str | None:
    """Return the name in a table of an experiment; None if it is no text."""
    value = experiment.get(table, default)
    if isinstance(value, dict):
        value = value.get("name", default)
    return value if isinstance(value, str) else None


def _records(log: Path) -> tuple[list[dict[str, Any]], bool]:
    """Return the records of a rounds log that can be read, and whether these are all.

    The last line may be incomplete, since a kill interrupts it.
    """
    records: list[dict[str, Any]] = []
    text = log.read_text("utf-8", "replace")
    complete = text.splitlines(keepends=True)
    if complete and not complete[-1].endswith("\n"):
        complete.pop()
    for line in complete:
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            record = json.loads(line[max(0, line.find('{"round"')) :])
            if all(isinstance(client["client"], str) for client in record["clients"]):
                records.append(record)
    return records, bool(complete) and len(records) == len(complete)


def _checkpoint_group(folder: Path, facts: Facts) -> Group:
    """Return "models" if the sites of a run are its clients, as with peers."""
    if facts.topology in OF_CLIENTS:
        return "models"
    of_server: Group = "memory" if facts.shares_features else "checkpoints"
    if facts.topology in OF_THE_SERVER:
        return of_server
    sites = _sites(folder)
    if not sites.isdisjoint(facts.clients):
        return "models"
    return of_server if sites and facts.all_clients else "unclassified"


def _sites(folder: Path) -> set[str]:
    """Return the names of the sites in the checkpoints that can be read."""
    sites: set[str] = set()
    for path in (folder / "checkpoints").glob("*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            sites.update(unseal(path.read_bytes())["sites"])
    return sites


def _is_personal(stem: str, clients: Collection[str]) -> bool:
    """True if the file of a backbone is named after a client."""
    name = stem.removeprefix("backbone-")
    for client in clients:
        quoted = quote(client, safe="")
        if name == quoted or name.startswith(f"{quoted}%2F"):
            return True
        if len(quoted) > 200 and name.startswith(quoted[:180]):  # cut by nets.backbone_file
            return True
    return False
