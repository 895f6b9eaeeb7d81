"""A table as Markdown: the figures, then every training with its seed, folder and command."""

from __future__ import annotations

from collections.abc import Iterator

from fedssl.reproduce.caveat import INCOMPARABLE, published_heading
from fedssl.reproduce.made import made_by
from fedssl.reproduce.outcome import Outcome, Result


def markdown(outcome: Outcome) -> str:
    return "\n".join(_lines(outcome)) + "\n"


def figure(result: Result) -> str:
    """What was measured, in few letters: "82.10 ± 0.31 (3)"; or what became of it."""
    if result.state == "cannot":
        return "cannot be had"
    if result.mean is None:
        some = f"{len(result.values)} of {len(result.seeds)} seeds" if result.values else "none"
        return {"failed": "failed", "missing": "", "done": some}[result.state]
    spread = "" if result.std is None else f" ± {result.std:.2f}"
    return f"{result.mean:.2f}{spread} ({len(result.values)})"


def against(result: Result, comparable: bool) -> str:
    """Measured less published: "−0.32"; empty where they are not to be compared."""
    if result.difference is None or not comparable:
        return ""
    return f"{result.difference:+.2f}".replace("-", "−")


def _lines(outcome: Outcome) -> Iterator[str]:
    table, results = outcome.table, outcome.results
    yield f"# {outcome.title}\n"
    yield f"Scale: {outcome.scale}. Measured: mean ± standard deviation over seeds (their number)."
    for remark in (INCOMPARABLE[outcome.scale], table.note):
        if remark:
            yield f"\n{remark}"
    heading = published_heading(outcome.comparable)
    yield f"\n| row | column | {heading} | measured | difference |\n|---|---|---|---|---|"
    for each in results:
        words = (each.cell.row, each.cell.column, (each.cell.published or "").replace("±", " ± "), figure(each))
        yield "| " + " | ".join([*words, against(each, outcome.comparable)]) + " |"
    for sentence in made_by(outcome):
        yield f"\n{sentence}"
    yield "\n## How each came about"
    for each in results:
        yield from _how(each)


def _how(result: Result) -> Iterator[str]:
    cell = result.cell
    yield f"\n### {cell.row}, {cell.column}\n"
    changed = f" with {', '.join(f'`{each}`' for each in cell.set)}" if cell.set else ""
    settings = f" ({', '.join(f'`{each}`' for each in cell.settings)})" if cell.settings else ""
    onto = f" on {cell.on}" if cell.on else ""
    yield f"Recipe `{cell.recipe}`{changed}; probe `{cell.probe}`{settings}{onto}."
    if cell.cannot:
        yield f"\nCannot be had: {cell.cannot}."
        return
    for each in result.seeds:
        came = "not run" if not each.done else "nothing to measure" if each.value is None else f"{each.value:.2f}"
        yield f"\n- seed {each.seed}: {f'failed: {each.problem}' if each.problem else came}"
        if each.dir is not None:
            yield f"  in `{each.dir}`" + (
                f" ({', '.join(map(' '.join, each.environment.items()))})" if each.done else ""
            )
        if each.note:
            yield f"  Note: {each.note}."
        if each.command is not None:
            yield f"  ```sh\n  {each.command}\n  ```"
