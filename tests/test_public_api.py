"""The public names of `import fedssl`, and what the import must not do."""

from __future__ import annotations

import json
import subprocess
import sys

import fedssl

IMPORT = """
import json, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(event) if event.startswith("socket.") else None)
import fedssl
heavy = ("torchvision", "timm", "matplotlib", "sklearn", "flwr", "lightly", "pandas", "scipy")
print(json.dumps([opened, [name for name in heavy if name in sys.modules]]))
"""


def test_the_public_names() -> None:
    assert fedssl.__all__ == [
        "Callback",
        "Experiment",
        "FedsslError",
        "Run",
        "__version__",
        "load_backbone",
        "load_classifier",
        "reproduce",
        "run",
        "sweep",
    ]
    assert all(hasattr(fedssl, name) for name in fedssl.__all__)


def test_importing_opens_no_socket_and_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True
    )
    opened, heavy = json.loads(done.stdout)
    assert opened == []
    assert heavy == []
