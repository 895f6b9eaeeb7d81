"""`fedssl views`: draw augmented views of images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedssl.cli.options import DataDir, Imports, Name, Sets, Views, check_output_file, with_views
from fedssl.core.errors import FedsslError
from fedssl.core.user_modules import import_modules

if TYPE_CHECKING:
    from fedssl.experiment.experiment import Experiment

IMAGES = 8  # rows of the sheet


def views(
    name: Name,
    set: Sets = [],  # noqa: B006
    views: Views = None,
    data_dir: DataDir = Path("data"),
    imports: Imports = [],  # noqa: B006
    out: Annotated[Path, typer.Option(help="PNG file to write.")] = Path("views.png"),
) -> None:
    """Draw some training images of an experiment with their augmented views."""
    check_output_file(out, ".png")
    import_modules(imports)

    from fedssl.experiment.experiment import load

    _draw_views(load(name, with_views(set, views)), data_dir, out)
    print(f"wrote {out}")


def _draw_views(experiment: Experiment, data_dir: Path, out: Path) -> None:
    import torch

    from fedssl import federation, nets
    from fedssl.core.console import print_to_stderr
    from fedssl.core.seeds import generator
    from fedssl.experiment.client_data import read_data
    from fedssl.plots.contact_sheet import draw_sheet

    images = read_data(experiment, data_dir, None, print_to_stderr).train.held
    with nets.uninitialized():
        backbone = federation.build_backbone(experiment, images.image[0])
        method = experiment.method.method(experiment.method, backbone, images.image[-1])
    if not method.views:
        raise FedsslError("this method trains on unchanged images: there are no views to draw")
    order = torch.randperm(len(images), generator=generator(experiment.seed, "sheet"))
    draw_sheet(images[order[:IMAGES]], method.views[0], experiment.seed, out)
