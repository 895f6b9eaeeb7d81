"""What may import what, read off the source; and nobody asks a method or an algorithm for its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import fedssl
import fedssl.algorithms
import fedssl.methods
from fedssl.algorithm import ALGORITHMS
from fedssl.method import METHODS

PACKAGE = Path(fedssl.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
NAMES = {".".join(p.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): p for p in FILES}

# module or package: all of fedssl it may see; a package may always see itself
MAY_SEE = {
    "errors": set(),
    "seeds": set(),
    "settings": {"errors"},
    "recycle": set(),
    "rows": {"recycle"},
    "layout": {"tree"},
    "tree": {"layout", "recycle", "rows"},
    "resident": {"layout", "tree"},
    "optim": {"kernels"},
    "pixels": {"room"},
    "views": {"errors", "settings"},
    "nets": {"errors", "extents", "kernels", "settings"},
    "batch": set(),
    "method": {"batch", "kernels", "layout", "tree", "resident", "settings", "views", "seeds", "errors"},
    "methods": {"errors", "method", "nets", "views", "settings"},
    "kernels": set(),
    "turns": set(),
    "step": {"layout", "method", "optim", "turns", "views"},
    "capture": {"errors", "method", "step", "turns"},
    "train": {
        "capture",
        "errors",
        "health",
        "kernels",
        "layout",
        "method",
        "optim",
        "pixels",
        "rows",
        "settings",
        "step",
        "turns",
        "views",
    },
    "client": {"errors", "method", "pixels", "seeds", "step", "train", "tree"},
    "algorithm": {"client", "layout", "method", "settings", "tree"},
    "algorithms": {"algorithm", "client", "errors", "layout", "method", "seeds", "settings", "train", "tree"},
    "topology": {"seeds", "settings"},
    "graphs": {"errors", "seeds", "topology"},
    "running_statistics": {"layout", "tree"},
    "bound": {"layout", "running_statistics", "settings", "tree"},
    "upload_weights": {"topology"},
    "admission": {"bound", "guard", "topology", "tree", "upload_weights"},
    "soundness": {"algorithm", "layout", "rows", "tree"},
    "guard": {"algorithm", "bound", "running_statistics", "soundness", "train", "tree", "upload_weights"},
    "delivery": {"algorithm", "topology", "upload_weights"},
    "federate": {
        "admission",
        "algorithm",
        "bound",
        "delivery",
        "errors",
        "guard",
        "topology",
        "tree",
        "upload_weights",
    },
    "extents": set(),
    "room": set(),
    "tiers": {"room", "tree"},
    "memory": {"errors", "extents", "tiers", "tree"},
    "runtimes": {"client", "federate", "guard", "memory", "pixels", "tiers", "train", "algorithm", "tree", "errors"},
    "store": {"bound", "errors", "extents", "federate", "memory", "tree"},
    "integrity": {"errors", "store"},
    "lock": {"errors"},
    "probes": {"method", "optim", "pixels", "seeds", "settings", "errors"},
    "finetune": {
        "assemble",
        "data",
        "drive",
        "errors",
        "integrity",
        "lock",
        "nets",
        "provenance",
        "report",
        "seeds",
        "settings",
        "store",
    },
    "lacking": {"data"},
    "recipes": set(),
    "tables": set(),
    "reproduce": {
        "assemble",
        "changes",
        "data",
        "drive",
        "errors",
        "evaluate",
        "experiment",
        "integrity",
        "lacking",
        "lock",
        "probes",
        "provenance",
        "recipes",
        "report",
        "run",
        "score",
        "settings",
        "store",
        "tables",
        "topology",
        "train",
        "variants",
    },
    "analysis": {
        "assemble",
        "data",
        "errors",
        "evaluate",
        "integrity",
        "layout",
        "method",
        "numerics",
        "probes",
        "report",
        "run",
        "runtimes",
        "settings",
        "store",
        "train",
        "tree",
    },
    "variants": {"changes", "errors", "nets", "recipes", "settings"},
}
# and, for those not listed there or for good measure, what they must not see
MUST_NOT_SEE = {
    "data": {"algorithm", "algorithms", "federate", "method", "methods", "client", "train", "runtimes", "topology"},
    "views": {"algorithm", "algorithms", "federate"},
    "nets": {"algorithm", "algorithms", "federate"},
    "probes": {"algorithm", "algorithms", "federate"},
    "methods": {"algorithm", "algorithms", "client", "train", "federate", "runtimes", "data"},
    "algorithms": {"methods", "nets", "data", "runtimes"},
    "capture": {"algorithm", "algorithms", "federate", "runtimes", "data", "methods"},
}


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def _imported(path: Path) -> Iterator[str]:
    """Dotted names of everything a file imports, wherever in it; `from fedssl import nets` counts as fedssl.nets."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            assert node.module is not None
            if node.module == "fedssl":
                yield from (f"fedssl.{alias.name}" for alias in node.names)
            else:
                yield node.module


def _sees(name: str) -> set[str]:
    """First words of the parts of fedssl that a file imports, other than its own."""
    words = {parts[1] for i in _imported(NAMES[name]) if (parts := i.split("."))[0] == "fedssl" and len(parts) > 1}
    return words - {name.split(".")[0]}


def test_a_module_sees_what_it_may() -> None:
    for name in NAMES:
        first, seen = name.split(".")[0], _sees(name)
        if name.startswith("runtimes.flower"):  # the top of a program of its own, as cli is: it may see all but that
            seen -= {*NAMES} - {"cli", "run"}
        refused = seen - MAY_SEE.get(first, seen) | seen & MUST_NOT_SEE.get(first, set())
        assert not refused, f"{name} must not import {sorted(refused)}"


def test_the_rules_speak_of_modules_that_exist() -> None:
    known = {name.split(".")[0] for name in NAMES}
    assert set(MAY_SEE) | set(MUST_NOT_SEE) | set().union(*MAY_SEE.values(), *MUST_NOT_SEE.values()) <= known


def test_only_runtimes_know_flower() -> None:
    for name, path in NAMES.items():
        if name.split(".")[0] != "runtimes":
            assert not {i for i in _imported(path) if i.split(".")[0] == "flwr"}, name


def test_extras_are_imported_where_they_are_used() -> None:
    """Optional packages only inside a function: `import fedssl` must do without them."""
    extras = {"matplotlib", "scipy", "sklearn", "umap", "torchvision", "timm", "lightly", "pycocotools"}
    for name, path in NAMES.items():
        for node in _tree(path).body:
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {m.split(".")[0] for m in modules} & extras, f"{name}:{node.lineno}"


def test_nothing_is_pickled() -> None:
    """torch.load and torch.save are pickle too."""
    for name, path in NAMES.items():
        imported = {i.split(".")[0] for i in _imported(path)}
        assert not imported & {"pickle", "dill", "cloudpickle", "joblib", "shelve"}, name
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
                assert node.attr not in ("load", "save"), f"{name}:{node.lineno}"


def _compared(tree: ast.Module) -> Iterator[tuple[int, set[str]]]:
    """Every comparison and `match` case, with the strings in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare | ast.MatchValue):
            parts = [node.left, *node.comparators] if isinstance(node, ast.Compare) else [node.value]
            found = {c.value for part in parts for c in ast.walk(part) if isinstance(c, ast.Constant)}
            yield node.lineno, {value for value in found if isinstance(value, str)}


def test_no_comparison_with_a_methods_or_algorithms_name() -> None:
    registered = {*METHODS.names(), *ALGORITHMS.names()}
    registered |= {METHODS[name].__name__ for name in METHODS.names()}
    registered |= {ALGORITHMS[name].__name__ for name in ALGORITHMS.names()}
    for name, path in NAMES.items():
        for line, words in _compared(_tree(path)):
            assert not words & registered, f"{name}:{line} compares with {words & registered}"


def test_the_search_finds_what_it_looks_for() -> None:
    source = 'if method.name == "byol": pass\nx = name in ("fedavg", "b")\nmatch name:\n    case "byol": pass\n'
    assert [words for _, words in _compared(ast.parse(source))] == [{"byol"}, {"fedavg", "b"}, {"byol"}]
