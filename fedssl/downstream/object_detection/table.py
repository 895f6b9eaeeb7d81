"""Print the results of a fine-tuning for detection."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from fedssl.core.rich_console import Console

COLUMNS = ("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large")


def print_metrics(metrics: dict[str, Any]) -> None:
    """Print average precision as a table, and the paths of the results."""
    table = Table()
    table.add_column("")
    for column in COLUMNS:
        table.add_column(column.replace("_", ", "), justify="right")
    for kind in ("boxes", "masks"):
        table.add_row(kind, *(_cell(metrics[kind][column]) for column in COLUMNS))
    start = "a pretrained" if metrics["start"] == "pretrained" else "an untrained"
    print(f"Mask R-CNN from {start} backbone, {metrics['iterations']:,} iterations: precision in %")
    Console().print(table)
    print(f"directory  {metrics['dir']}")  # not with rich, which breaks long paths
    print(f"detector   {metrics['dir']}/model.safetensors")


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
