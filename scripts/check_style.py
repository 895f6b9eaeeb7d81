"""Check limits on the style of the code. The limits in style_limits.json only decrease.

    python scripts/check_style.py           exit with an error if a limit is exceeded
    python scripts/check_style.py --update  lower the limits to the current counts

Counts are totals over the package; phrases are also counted in tests, benchmarks and documentation.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIMITS = Path(__file__).parent / "style_limits.json"
MAX_FUNCTION_LINES = 40
MAX_FILE_LINES = 300
MAX_POSITIONAL = 6

# Phrases of an earlier style: code stores, returns and raises; it does not say or know.
PHRASES = re.compile(
    r"\b(says|said|told|tells|lies|goes on|gone on|going on|of its own|nobody|somebody|whoever|"
    r"is none|cannot be had|to be had|what is to be|as it were|by itself|beside|the more|the less|"
    r"stands)\b"
)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Limited per 1,000 lines of the package: new features need some of them.
DENSITIES = ("comprehensions", "conditional expressions", "parallel assignments")


def count_file(path: Path) -> Counter[str]:
    """Count violations in one file of the package."""
    source = path.read_text("utf-8")
    counts: Counter[str] = Counter()
    counts["files over 300 lines"] += len(source.splitlines()) > MAX_FILE_LINES
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign):
            target = node.targets[0]
            counts["parallel assignments"] += isinstance(target, ast.Tuple) and isinstance(
                node.value, ast.Tuple
            )
        counts["conditional expressions"] += isinstance(node, ast.IfExp)
        counts["comprehensions"] += isinstance(node, COMPREHENSIONS)
        if isinstance(node, FUNCTIONS):
            counts.update(count_function(node, path))
    return counts


def count_function(node: ast.FunctionDef | ast.AsyncFunctionDef, path: Path) -> Counter[str]:
    """Count violations of one function."""
    counts: Counter[str] = Counter()
    length = (node.end_lineno or node.lineno) - node.lineno + 1
    counts["functions over 40 lines"] += length > MAX_FUNCTION_LINES
    positional = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    if positional[:1] in (["self"], ["cls"]):
        positional = positional[1:]
    exempt = {"cli", "kernels"} & set(path.parts)
    counts["functions over 6 positional parameters"] += (
        len(positional) > MAX_POSITIONAL and not exempt
    )
    return counts


def missing_docstrings(path: Path) -> int:
    """Count public classes and functions at the top of a module that have no docstring."""
    missing = 0
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and not node.name.startswith("_"):
            missing += ast.get_docstring(node) is None
    return missing


def phrases_in(path: Path) -> int:
    """Count phrases of the earlier style in comments, docstrings, strings, or a whole page."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        words = []
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                words.append(token.string)
        text = " ".join(words)
    return len(PHRASES.findall(text))


def measure() -> dict[str, float]:
    """Return everything that has a limit."""
    counts: Counter[str] = Counter()
    lines = 0
    for path in sorted((ROOT / "fedssl").rglob("*.py")):
        counts.update(count_file(path))
        lines += len(path.read_text("utf-8").splitlines())
        counts["public names without a docstring"] += missing_docstrings(path)
        counts["phrases in fedssl"] += phrases_in(path)
    for folder, pattern in (("tests", "*.py"), ("benchmarks", "*.py"), ("docs", "*.md")):
        for path in sorted((ROOT / folder).rglob(pattern)):
            counts[f"phrases in {folder}"] += phrases_in(path)
    for page in ("README.md", "CONTRIBUTING.md"):
        counts["phrases in docs"] += phrases_in(ROOT / page)
    measured: dict[str, float] = dict(counts)
    for name in DENSITIES:
        measured[f"{name} per 1,000 lines"] = round(1000 * measured.pop(name) / lines, 1)
    return measured


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    counts = measure()
    if options.update:
        LIMITS.write_text(json.dumps(dict(sorted(counts.items())), indent=1) + "\n", "utf-8")
        return 0
    limits = json.loads(LIMITS.read_text("utf-8"))
    exceeded = {name: count for name, count in counts.items() if count > limits.get(name, 0)}
    for name, count in exceeded.items():
        print(f"{name}: {count}, the limit is {limits.get(name, 0)}")
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
