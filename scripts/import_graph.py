"""Print the imports between packages of fedssl, and all cycles of modules, with deferred imports.

python scripts/import_graph.py [--modules]
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent / "fedssl"

Graph = Mapping[str, set[str]]


def module_files(root: Path = ROOT) -> dict[str, Path]:
    """Return the file of each module by its dotted name; the package itself is "fedssl"."""
    files = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        files[".".join(parts)] = path
    return files


def imports_of(path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    """Yield the modules of the package that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from fedssl.core import seeds` imports the module fedssl.core.seeds.
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules else node.module for name in submodules]
        else:
            continue
        yield from (name for name in names if name in modules)


def module_graph(root: Path = ROOT) -> Graph:
    """Return the modules that each module imports, other than itself."""
    modules = module_files(root)
    return {name: set(imports_of(path, modules)) - {name} for name, path in modules.items()}


def layer_of(module: str) -> str:
    """Return the entry of fedssl/ that a module belongs to: "core" for fedssl.core.seeds."""
    _, _, rest = module.partition(".")
    return rest.partition(".")[0] or "fedssl"


def package_graph(graph: Graph) -> dict[str, set[str]]:
    """Return the entries of fedssl/ that each entry imports, other than itself."""
    packages: dict[str, set[str]] = {}
    for module, imported in graph.items():
        layer = layer_of(module)
        packages.setdefault(layer, set()).update(layer_of(name) for name in imported)
    for layer, imported in packages.items():
        imported.discard(layer)
    return packages


def cycles(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components with more than one module (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for imported in sorted(graph[module]):
            if imported not in index:
                visit(imported)
                low[module] = min(low[module], low[imported])
            elif imported in stack:
                low[module] = min(low[module], index[imported])
        if low[module] == index[module]:
            component = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(component) > 1:
                found.append(sorted(component))

    for module in graph:
        if module not in index:
            visit(module)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--modules", action="store_true", help="print every module, not only packages"
    )
    options = parser.parse_args()
    graph = module_graph()
    printed = graph if options.modules else package_graph(graph)
    for name in sorted(printed):
        print(f"{name:14} -> {', '.join(sorted(printed[name])) or '(nothing)'}")
    circular = cycles(graph)
    print(f"{len(graph)} modules, {sum(map(len, graph.values()))} imports, {len(circular)} cycles")
    for component in circular:
        print("cycle:", ", ".join(component))
    return 1 if circular else 0


if __name__ == "__main__":
    sys.exit(main())
