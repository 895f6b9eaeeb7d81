"""`fedssl flower init`: a Flower app for an experiment, in a folder of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

import fedssl
from fedssl.errors import ConfigError
from fedssl.experiment import Experiment
from fedssl.runtimes.flower.switches import QUIET_TEXT

SERVER = '''"""The server's half: see README.md."""

from pathlib import Path

from fedssl.runtimes.flower import server_app

app = server_app(Path(__file__).with_name("experiment.toml"))
'''

CLIENT = '''"""The clients' half: see README.md."""

from pathlib import Path

from fedssl.runtimes.flower import client_app

app = client_app(Path(__file__).with_name("experiment.toml"))
'''

README = """# {name}

A Flower app that `fedssl flower init` wrote. What is trained, and how, is in `experiment.toml`; where the server keeps
the run, how long it waits and how many clients it needs is in `pyproject.toml`, under `[tool.flwr.app.config]`.

Every machine needs fedssl {version} with its extra `flower` (in a clone of fedssl, `pip install ".[flower]"`), and
these in the environment of every Flower process:

```
export {quiet}
```

Try it on this machine, with Flower's simulation (`pip install "flwr[simulation]"`):

```
flwr run . --stream --federation-config "num-supernodes={clients} client-resources-num-cpus=1"
pkill -u "$USER" -f "flower-superlink --insecure --simulation"
```

The second line ends the SuperLink that Flower starts for this, without TLS, and leaves running.

For real, with images on other people's machines, each has a SuperNode with TLS and a key of its own. Started like this,
from a folder with this app in it, it runs this app and no other, whoever submits what:

```
fedssl flower only {folder} flower-supernode --superlink SERVER:PORT --root-certificates ca.crt \\
    --auth-supernode-private-key node.key --node-config "client-id='NAME' data-dir='/path/to/images'"
```

All images that `[data]` finds under `data-dir` are then that client's. What it remembers between rounds is kept in
`~/.local/state/fedssl/nodes`, or in the folder named by `memory-dir` beside the two. fedssl's guide "Run on several
machines" goes through it step by step.
"""


def write_app(folder: Path, name: str, experiment: Experiment, config: Mapping[str, Any]) -> None:
    """A ready Flower app in a new or empty folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already and not empty; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "pyproject.toml": tomli_w.dumps(project(name, config)),
        "experiment.toml": experiment.to_toml(),
        "server_app.py": SERVER,
        "client_app.py": CLIENT,
        "README.md": README.format(
            name=name,
            version=fedssl.__version__,
            quiet=QUIET_TEXT,
            clients=experiment.clients or "NUMBER",
            folder=folder.name,
        ),
    }
    for file, text in files.items():
        (folder / file).write_text(text, "utf-8")


def project(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """pyproject.toml of an app. Flower lets a run change those keys of `config` only that are there."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "experiment"
    usual = {
        "run-dir": f"~/fedssl-runs/{slug}",
        "data-dir": "",
        "memory-dir": "",
        "device": "auto",
        "clients": 0,
        "join-timeout": 600.0,
        "round-timeout": 3600.0,
        "quorum": 0.5,
    }
    return {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
        "project": {
            "name": slug,
            "version": "1.0.0",
            "description": "A fedssl experiment as a Flower app",
            "dependencies": ["flwr>=1.41,<1.43"],  # fedssl is on every machine; no index has it
        },
        "tool": {
            "hatch": {"build": {"targets": {"wheel": {"packages": ["."]}}}},
            "flwr": {
                "app": {
                    "publisher": "unpublished",  # Flower wants one, and asks no more
                    "components": {"serverapp": "server_app:app", "clientapp": "client_app:app"},
                    "config": {**usual, **config},
                }
            },
        },
    }
