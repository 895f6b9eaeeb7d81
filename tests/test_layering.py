"""Layers import downwards only, no modules import each other in a circle, and optional packages
stay optional.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import fedssl
import fedssl.algorithms
import fedssl.methods
from fedssl.algorithm import ALGORITHMS
from fedssl.method import METHODS

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
import import_graph

FILES = import_graph.module_files()
GRAPH = import_graph.module_graph()

# Lowest first: an entry of fedssl/ imports only entries listed before it. Deferred imports count.
LAYERS = [
    "core",
    "views",
    "nets",
    "plots",
    "topologies",
    "data",
    "method",
    "methods",
    "training",
    "algorithm",
    "algorithms",
    "engine",
    "probes",
    "experiment",
    "evaluation",
    "runs",
    "analysis",
    "paper_tables",
    "downstream",
    "pages",
    "flower",
    "fedssl",  # fedssl/__init__.py
    "cli",
    "__main__",
]
INDEPENDENT = {"analysis", "paper_tables", "downstream", "pages", "flower"}  # of each other


def test_layers_import_downwards_only() -> None:
    for layer, imported in import_graph.package_graph(GRAPH).items():
        allowed = set(LAYERS[: LAYERS.index(layer)])
        if layer in INDEPENDENT:
            allowed -= INDEPENDENT
        assert imported <= allowed, f"{layer} must not import {sorted(imported - allowed)}"


def test_every_entry_of_the_package_is_a_layer() -> None:
    assert {import_graph.layer_of(module) for module in GRAPH} == set(LAYERS)


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert import_graph.cycles(GRAPH) == []


def test_cycles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d2"}, "d2": {"a"}}
    assert import_graph.cycles(graph) == [["b", "c"]]


def test_every_package_describes_itself() -> None:
    for module, path in FILES.items():
        assert (path.parent / "__init__.py").is_file(), f"{path.parent} has no __init__.py"
        assert ast.get_docstring(_tree(path)), f"{module} has no docstring"


def test_no_public_name_is_a_module() -> None:
    """`fedssl.run` must be the function on the second access too."""
    for name in fedssl.__all__:
        assert f"fedssl.{name}" not in FILES
    first = fedssl.run
    assert callable(first)
    assert fedssl.run is first
    assert callable(fedssl.reproduce)
    assert callable(fedssl.sweep)


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def _imported(path: Path) -> Iterator[str]:
    """Yield the dotted names of all modules that a file imports, anywhere in it."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            assert node.module is not None
            yield node.module


def test_only_the_flower_package_imports_flower() -> None:
    for module, path in FILES.items():
        if import_graph.layer_of(module) != "flower":
            assert not {name for name in _imported(path) if name.split(".")[0] == "flwr"}, module


def test_extras_are_imported_where_they_are_used() -> None:
    """Optional packages only inside a function: `import fedssl` must do without them."""
    extras = {
        "matplotlib",
        "scipy",
        "sklearn",
        "umap",
        "torchvision",
        "timm",
        "lightly",
        "pycocotools",
    }
    for name, path in FILES.items():
        for node in _tree(path).body:
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {m.split(".")[0] for m in modules} & extras, f"{name}:{node.lineno}"


def test_nothing_is_pickled() -> None:
    """torch.load and torch.save are pickle too."""
    for name, path in FILES.items():
        imported = {i.split(".")[0] for i in _imported(path)}
        assert not imported & {"pickle", "dill", "cloudpickle", "joblib", "shelve"}, name
        for node in ast.walk(_tree(path)):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "torch"
            ):
                assert node.attr not in ("load", "save"), f"{name}:{node.lineno}"


def _compared(tree: ast.Module) -> Iterator[tuple[int, set[str]]]:
    """Yield every comparison and `match` case, with its strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare | ast.MatchValue):
            parts = (
                [node.left, *node.comparators] if isinstance(node, ast.Compare) else [node.value]
            )
            found = {
                c.value for part in parts for c in ast.walk(part) if isinstance(c, ast.Constant)
            }
            yield node.lineno, {value for value in found if isinstance(value, str)}


def test_no_comparison_with_a_methods_or_algorithms_name() -> None:
    registered = {*METHODS.names(), *ALGORITHMS.names()}
    registered |= {METHODS[name].__name__ for name in METHODS.names()}
    registered |= {ALGORITHMS[name].__name__ for name in ALGORITHMS.names()}
    for name, path in FILES.items():
        for line, words in _compared(_tree(path)):
            assert not words & registered, f"{name}:{line} compares with {words & registered}"


def test_the_search_finds_what_it_looks_for() -> None:
    source = 'if method.name == "byol": pass\nx = name in ("fedavg", "b")\nmatch name:\n    case "byol": pass\n'
    assert [words for _, words in _compared(ast.parse(source))] == [
        {"byol"},
        {"fedavg", "b"},
        {"byol"},
    ]
