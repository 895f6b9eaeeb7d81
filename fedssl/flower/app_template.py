"""`fedssl flower init`: write a Flower app for an experiment to a new folder."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from fedssl.core.errors import ConfigError
from fedssl.core.user_modules import imported_modules
from fedssl.core.version import __version__
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.init_file import init_changes
from fedssl.flower.telemetry import TELEMETRY_OFF_TEXT

SERVER = '''"""The server's half: see README.md."""

from pathlib import Path

from fedssl.flower import server_app

app = server_app(Path(__file__).with_name("experiment.toml"){imports})
'''

CLIENT = '''"""The clients' half: see README.md."""

from pathlib import Path

from fedssl.flower import client_app

app = client_app(Path(__file__).with_name("experiment.toml"){imports})
'''

APP_FILES = ("server_app.py", "client_app.py")
README = """# {name}

A Flower app that `fedssl flower init` wrote. The experiment is in `experiment.toml`. The server's
run directory, its timeouts and the number of clients are in `pyproject.toml`, under
`[tool.flwr.app.config]`.

Every machine needs fedssl {version} with its extra `flower` (in a clone of fedssl,
`pip install ".[flower]"`), and these variables in the environment of every Flower process:

```
export {quiet}
```

Try it on this machine, with Flower's simulation (`pip install "flwr[simulation]"`):

```
flwr run . --stream --federation-config "num-supernodes={clients} client-resources-num-cpus=1"
pkill -u "$USER" -f "flower-superlink --insecure --simulation"
```

The second line ends the SuperLink that Flower starts for this, without TLS, and leaves running.

With images on other machines, each machine has a SuperNode with TLS and its own key. Started like
this, from a folder that contains this app, it runs this app and refuses any other:

```
fedssl flower pinned {folder} flower-supernode --superlink SERVER:PORT --root-certificates ca.crt \\
    --auth-supernode-private-key node.key \\
    --node-config "client-id='NAME' data-dir='/path/to/images'"
```

All images that `[data]` finds under `data-dir` belong to that client. Its state between rounds is
stored in `~/.local/state/fedssl/nodes`, or in the folder named by `memory-dir` in `--node-config`.
The guide "Run on several machines" of fedssl describes each step.
"""


def write_app(folder: Path, name: str, experiment: Experiment, config: Mapping[str, Any]) -> None:
    """Write a Flower app to a new or empty folder.

    Files that were imported with --import become a part of the app, which imports them everywhere.
    Modules that were imported by a dotted name must be installed on every machine. With adapters,
    the app has the SHA-256 of `method.init`, which every machine must have.
    """
    experiment = experiment.with_changes(init_changes(experiment.method))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} already exists and is not empty; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    readme = README.format(
        name=name,
        version=__version__,
        quiet=TELEMETRY_OFF_TEXT,
        clients=experiment.clients or "NUMBER",
        folder=folder.name,
    )
    imports = _copy_modules(folder)
    argument = ""
    if imports:
        argument = f", imports={json.dumps(imports)}"
    files = {
        "pyproject.toml": tomli_w.dumps(_project(name, config)),
        "experiment.toml": experiment.to_toml(),
        "server_app.py": SERVER.format(imports=argument),
        "client_app.py": CLIENT.format(imports=argument),
        "README.md": readme,
    }
    for file, text in files.items():
        (folder / file).write_text(text, "utf-8")


def _copy_modules(folder: Path) -> list[str]:
    """Copy the user's files to the app; return the names under which the app imports modules."""
    names = []
    for name, module in imported_modules().items():
        if module.file is None:
            names.append(name)
            continue
        if module.file.name in APP_FILES:
            raise ConfigError(f"{name} has the name of a file of the app: rename it")
        (folder / module.file.name).write_bytes(module.sources[0])
        names.append(module.file.name)
    return names


def _project(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return pyproject.toml of an app. A run can override only keys that `config` lists here."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "experiment"
    defaults = {
        "run-dir": f"~/fedssl-runs/{slug}",
        "data-dir": "",
        "memory-dir": "",
        "device": "auto",
        "clients": 0,
        "join-timeout": 600.0,
        "round-timeout": 3600.0,
        "quorum": 0.5,
        "track": "",
        "secure-aggregation": False,
        "secure-threshold": 0.67,
    }
    return {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
        "project": {
            "name": slug,
            "version": "1.0.0",
            "description": "A fedssl experiment as a Flower app",
            # fedssl is installed on every machine; it is not on a package index.
            "dependencies": ["flwr>=1.41,<1.43"],
        },
        "tool": {
            "hatch": {"build": {"targets": {"wheel": {"packages": ["."]}}}},
            "flwr": {
                "app": {
                    "publisher": "unpublished",  # required by Flower, but not checked
                    "components": {"serverapp": "server_app:app", "clientapp": "client_app:app"},
                    "config": {**defaults, **config},
                }
            },
        },
    }
