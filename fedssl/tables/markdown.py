"""A table as Markdown: the figures, then every training with its seed, folder and command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fedssl.tables.cell_result import CellResult, SeedResult
from fedssl.tables.comparability import INCOMPARABLE, provenance_notes, published_heading
from fedssl.tables.published import Cell
from fedssl.tables.table_results import Outcome


def markdown(outcome: Outcome) -> str:
    """Return the Markdown file of a table."""
    return "\n".join(_lines(outcome)) + "\n"


def measured_text(result: CellResult) -> str:
    """Return the measured figure, e.g. "82.10 ± 0.31 (3)", or the state of the cell."""
    if result.state == "cannot":
        return "not reproducible"
    if result.mean is not None:
        text = f"{result.mean:.2f}"
        if result.std is not None:
            text += f" ± {result.std:.2f}"
        return f"{text} ({len(result.values)})"
    if result.state == "failed":
        return "failed"
    if result.state == "missing":
        return ""
    if result.values:
        return f"{len(result.values)} of {len(result.seeds)} seeds"
    return "none"


def published_text(result: CellResult) -> str:
    """Return the published figure, e.g. "79.44 ± 0.99"; or an empty string."""
    return (result.cell.published or "").replace("±", " ± ")


def difference_text(result: CellResult, comparable: bool) -> str:
    """Return measured minus published, e.g. "−0.32"; empty if figures are not comparable."""
    if result.difference is None or not comparable:
        return ""
    return f"{result.difference:+.2f}".replace("-", "−")


def _lines(outcome: Outcome) -> Iterator[str]:
    results = outcome.results
    yield f"# {outcome.title}\n"
    yield f"Scale: {outcome.scale}. Measured: mean ± standard deviation over seeds (their number)."
    for remark in (INCOMPARABLE[outcome.scale], outcome.table.note):
        if remark:
            yield f"\n{remark}"
    heading = published_heading(outcome.comparable)
    yield f"\n| row | column | {heading} | measured | difference |\n|---|---|---|---|---|"
    for result in results:
        columns = [
            result.cell.row,
            result.cell.column,
            published_text(result),
            measured_text(result),
            difference_text(result, outcome.comparable),
        ]
        yield f"| {' | '.join(columns)} |"
    for sentence in provenance_notes(results):
        yield f"\n{sentence}"
    yield "\n## Trainings and commands"
    for result in results:
        yield from _details(result)


def _details(result: CellResult) -> Iterator[str]:
    cell = result.cell
    yield f"\n### {cell.row}, {cell.column}\n"
    yield f"{_method_text(cell)}."
    if cell.cannot:
        yield f"\nNot reproducible: {cell.cannot}."
        return
    for seed in result.seeds:
        yield from _seed_details(seed)


def _method_text(cell: Cell) -> str:
    text = f"Recipe `{cell.recipe}`"
    if cell.set:
        text += f" with {_quoted(cell.set)}"
    text += f"; probe `{cell.probe}`"
    if cell.settings:
        text += f" ({_quoted(cell.settings)})"
    if cell.on:
        text += f" on {cell.on}"
    return text


def _seed_details(seed: SeedResult) -> Iterator[str]:
    yield f"\n- seed {seed.seed}: {_seed_state(seed)}"
    if seed.dir is not None:
        yield _folder_text(seed)
    if seed.note:
        yield f"  Note: {seed.note}."
    if seed.command is not None:
        yield f"  ```sh\n  {seed.command}\n  ```"


def _folder_text(seed: SeedResult) -> str:
    text = f"  in `{seed.dir}`"
    if seed.done:
        environment = ", ".join(f"{key} {value}" for key, value in seed.environment.items())
        text += f" ({environment})"
    return text


def _seed_state(seed: SeedResult) -> str:
    if seed.problem:
        return f"failed: {seed.problem}"
    if not seed.done:
        return "not run"
    if seed.value is None:
        return "nothing to measure"
    return f"{seed.value:.2f}"


def _quoted(assignments: Iterable[str]) -> str:
    return ", ".join(f"`{assignment}`" for assignment in assignments)
