"""A table as Markdown: the figures, then every training with its seed, folder and command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fedssl.paper_tables.cell_result import CellResult, SeedResult
from fedssl.paper_tables.columns import arrange, measured_text
from fedssl.paper_tables.comparability import INCOMPARABLE, provenance_notes
from fedssl.paper_tables.published import Cell
from fedssl.paper_tables.table_results import Outcome


def markdown(outcome: Outcome) -> str:
    """Return the Markdown file of a table."""
    return "\n".join(_lines(outcome)) + "\n"


def _lines(outcome: Outcome) -> Iterator[str]:
    results = outcome.results
    yield f"# {outcome.title}\n"
    yield f"Scale: {outcome.scale}. Measured: mean ± standard deviation over seeds (their number)."
    for remark in (INCOMPARABLE[outcome.scale], outcome.table.note):
        if remark:
            yield f"\n{remark}"
    columns = arrange(outcome, results, measured_text)
    yield f"\n| {' | '.join(columns.headings)} |\n|{'---|' * len(columns.headings)}"
    for row in columns.rows:
        yield f"| {' | '.join(row)} |"
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
