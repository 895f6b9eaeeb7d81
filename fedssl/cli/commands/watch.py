"""`fedssl watch`: a live page about a run."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from fedssl.cli.completion import complete_run

Port = Annotated[
    int,
    typer.Option(
        min=0,
        max=65535,
        help="Port on 127.0.0.1; the URL of a port stays the same when the command is restarted. 0 "
        "selects a free port, with a new URL each time.",
    ),
]
Open = Annotated[bool, typer.Option("--open/--no-browser", help="Also open the page in a browser.")]


def watch(
    dir: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Run directory; it may not exist yet.",
            autocompletion=complete_run,
        ),
    ],
    port: Port = 0,
    open_browser: Open = False,
) -> None:
    """Show a run in the browser while it is trained: rounds, metrics, warnings and all clients.

    Runs of `fedssl run` and of Flower servers can be watched, also finished ones. The page is
    served on this machine only, needs the token in the printed URL, and changes nothing. Ctrl-C
    stops the page, not the run.
    """
    from fedssl.core.console import print_to_stderr
    from fedssl.pages.live.browser import open_in_browser
    from fedssl.pages.live.server import HOST, need_dashboard, open_port, serve
    from fedssl.pages.live.tokens import kept_token, new_token

    need_dashboard()
    _check_folder(dir)
    with open_port(port) as opened:
        token = kept_token(port) if port else new_token()
        url = f"http://{HOST}:{opened.getsockname()[1]}/?token={token}"

        def ready() -> None:
            print(url, flush=True)
            print_to_stderr(f"watching {dir}; Ctrl-C stops the page, not the run")
            if open_browser:
                open_in_browser(url)

        with contextlib.suppress(KeyboardInterrupt):
            serve(dir, opened, token, ready)


def _check_folder(folder: Path) -> None:
    """Raise ConfigError for a file and for a folder of runs; print a line if there is no folder."""
    from fedssl.core.console import print_to_stderr
    from fedssl.core.errors import ConfigError
    from fedssl.core.similar_paths import suggest_path

    if folder.is_dir():
        _raise_if_runs_inside(folder)
        return
    if folder.exists():
        raise ConfigError(f"{folder} is a file: name a run directory, such as runs/demo")
    suggestion = suggest_path(folder, Path.is_dir)
    print_to_stderr(f"{folder} does not exist yet{suggestion or ''}; the page waits for it")


def _raise_if_runs_inside(folder: Path) -> None:
    """Raise ConfigError for a folder of runs, such as that of several seeds."""
    from fedssl.core.errors import ConfigError

    if (folder / "experiment.toml").exists():
        return
    runs = sorted(path.parent for path in folder.glob("*/experiment.toml"))
    if runs:
        raise ConfigError(
            f"{folder} is not a run directory, but contains {len(runs)}: name one, such as "
            f"{runs[0]}"
        )
