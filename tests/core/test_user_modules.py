"""Modules of users: how they are found, hashed and recorded, and errors in them."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest
from error_messages import raises

from fedssl.core import provenance, user_modules
from fedssl.core.errors import ConfigError
from fedssl.core.user_modules import import_modules, imported_hashes


def test_a_file_is_imported_once_whatever_its_spelling(own_modules: Path) -> None:
    (own_modules / "lab").mkdir()
    (own_modules / "lab/own_code.py").write_text("import own_helper\nvalue = own_helper.value\n")
    (own_modules / "lab/own_helper.py").write_text("value = object()\n")
    import_modules(["lab/own_code.py", "./lab/own_code.py", "lab/own_helper.py"])
    assert list(imported_hashes()) == ["lab/own_code.py", "lab/own_helper.py"]
    assert sys.modules["own_code"].value is sys.modules["own_helper"].value


def test_the_hash_is_that_of_the_file(own_modules: Path) -> None:
    text = b"x = 1  # one\n"
    (own_modules / "own_code.py").write_bytes(text)
    import_modules(["own_code.py"])
    assert imported_hashes() == {"own_code.py": hashlib.sha256(text).hexdigest()}


def test_the_hash_of_a_package_covers_its_files(own_modules: Path) -> None:
    package = own_modules / "own_package"
    package.mkdir()
    (package / "__init__.py").write_text("a = 1\n")
    (package / "methods.py").write_text("b = 2\n")
    import_modules(["own_package", "own_package.methods"])
    both = hashlib.sha256(b"a = 1\nb = 2\n").hexdigest()
    one = hashlib.sha256(b"b = 2\n").hexdigest()
    assert imported_hashes() == {"own_package": both, "own_package.methods": one}


def test_statements_of_users_change_the_code_of_figures(own_modules: Path) -> None:
    """Comments do not, and without such modules the code is that of fedssl."""
    own = provenance.code()
    codes = []
    for name, text in (("a", "x = 1\n"), ("b", "x = 1  # one\n"), ("c", "x = 2\n")):
        (own_modules / f"own_{name}.py").write_text(text)
        user_modules._imported.clear()
        import_modules([f"own_{name}.py"])
        codes.append(provenance.code())
    assert len(own) == 8
    assert [code.partition("+")[0] for code in codes] == [own] * 3
    assert codes[0] == codes[1] != codes[2]


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\n\ny = undefined\n",
        "def f(:\n    pass\n",
        "def fail():\n    raise ValueError('two\\nlines')\n\nfail()\n",
        "import own_missing\n",
        "import sys\nsys.exit(3)\n",
        "import torch\ntorch.zeros(2) + torch.zeros(3)\n",
        "from .other import x\n",
        "from fedssl.algorithm import ALGORITHMS\nfrom fedssl.algorithms import FedProx\n\n\n"
        "@ALGORITHMS.register('fedavg')\nclass Mine(FedProx):\n    pass\n",
    ],
    ids=["name", "syntax", "lines", "missing", "exit", "torch", "relative", "clash"],
)
def test_an_error_names_the_line_of_the_users_file(text: str, own_modules: Path) -> None:
    (own_modules / "own_code.py").write_text(text)
    with raises(ConfigError):
        import_modules(["own_code.py"])
    assert imported_hashes() == {}


@pytest.mark.parametrize(
    "name",
    [
        "nowhere.py",
        "no/where",
        "no_such_module",
        "no_such.module",
        "own.code.py",
    ],
)
def test_a_module_that_cannot_be_meant(name: str, own_modules: Path) -> None:
    (own_modules / "own.code.py").touch()
    with raises(ConfigError) as raised:
        import_modules([name])
    assert str(raised.value).startswith(f"cannot import {name}: ")


def test_a_file_named_like_another_module(own_modules: Path) -> None:
    for folder in ("first", "second"):
        (own_modules / folder).mkdir()
        (own_modules / folder / "own_code.py").touch()
    import_modules(["first/own_code.py"])
    with raises(ConfigError):
        import_modules(["second/own_code.py"])


def test_compiled_modules_have_no_statements_to_hash(own_modules: Path) -> None:
    with raises(ConfigError):
        import_modules(["sys"])


def test_the_record_of_a_run_directory(own_modules: Path) -> None:
    run = own_modules / "run"
    run.mkdir()
    user_modules.write_record(run)
    assert user_modules.read_record(run) == {}
    (own_modules / "own_code.py").write_text("x = 1\n")
    import_modules(["own_code.py"])
    user_modules.write_record(run)
    assert user_modules.read_record(run) == imported_hashes()
    assert (user_modules.missing_options(run), user_modules.changed_modules(run)) == ("", [])
    user_modules._imported.clear()
    assert user_modules.missing_options(run) == "--import own_code.py"
    (own_modules / "own_code.py").write_text("x = 2\n")
    import_modules(["own_code.py"])
    assert user_modules.changed_modules(run) == ["own_code.py"]


@pytest.mark.parametrize(
    "text", ["{", "[1]", '{"a\\u001b[2J.py": "0"}'], ids=["damaged", "list", "escape"]
)
def test_a_record_is_only_shown_if_it_can_be(text: str, tmp_path: Path) -> None:
    (tmp_path / user_modules.RECORD).write_text(text)
    assert user_modules.missing_options(tmp_path) == ""
