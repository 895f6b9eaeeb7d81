"""Describe every command of the program in Markdown, for docs/reference/cli.md."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from fedssl.cli.main import app

INTRO = """\
# Command line

This page is generated from the program. `fedssl COMMAND --help` prints the same.

- An experiment is named by a recipe (`fedssl recipes` lists them) or by a TOML file.
- `--set KEY=VALUE` changes any [setting of an experiment](experiment.md): `--set rounds=10`, \
`--set train.lr=0.01`, `--set method=byol`. Put values with brackets or spaces in quotes. An empty \
value removes a setting, so that its default applies: `--set data.test=`. So does `none` for a \
setting whose default is none: `--set probe.k=none`.
- Results are printed to standard output, progress and messages to standard error. `--json` prints \
results for other programs.
- [Exit codes](run-directory.md#exit-codes) distinguish wrong settings, unusable data and failed \
runs."""


def command_page() -> str:
    """Return the whole page."""
    program: Any = typer.main.get_command(app)
    commands = list(find_commands(program, "fedssl"))
    sections = [INTRO, overview(commands), "## `fedssl`", options_table(program)]
    for name, command in commands:
        sections += command_sections(name, command)
    return "\n\n".join(section for section in sections if section) + "\n"


def find_commands(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the commands of a group with their full names, in the order of --help."""
    for name, command in group.commands.items():
        full_name = f"{prefix} {name}"
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from find_commands(command, full_name)
        else:
            yield full_name, command


def overview(commands: list[tuple[str, Any]]) -> str:
    """Return a table of all commands with the first sentence of their help."""
    lines = ["| command | purpose |", "|---|---|"]
    for name, command in commands:
        anchor = name.replace(" ", "-")
        first_paragraph = help_text(command).partition("\n\n")[0]
        purpose = " ".join(first_paragraph.split())
        lines.append(f"| [`{name}`](#{anchor}) | {cell(purpose)} |")
    return "\n".join(lines)


def command_sections(name: str, command: Any) -> Iterator[str]:
    """Yield the heading, usage, help and options of a command."""
    yield f"## `{name}`"
    yield f"```text\n{usage(name, command)}\n```"
    yield from format_text(help_text(command))
    yield from format_text(command.epilog or "")
    yield options_table(command)


def usage(name: str, command: Any) -> str:
    """Return the form of a command: optional arguments are in brackets."""
    pieces = [name, "[OPTIONS]"]
    for param in command.params:
        if param.param_type_name == "argument":
            word = value_name(param)
            pieces.append(word if param.required else f"[{word}]")
    return " ".join(pieces)


def help_text(command: Any) -> str:
    """Return the help of a command without indentation."""
    return inspect.cleandoc(command.help or "")


def format_text(text: str) -> Iterator[str]:
    """Yield the paragraphs of a text; successive paragraphs that are commands form one block."""
    commands: list[str] = []
    for paragraph in text.split("\n\n"):
        lines = [line.strip() for line in paragraph.splitlines() if line.strip() != "\b"]
        if lines and lines[0].startswith("fedssl "):
            commands += lines
            continue
        yield code_block(commands)
        commands = []
        yield escape(" ".join(lines))
    yield code_block(commands)


def code_block(lines: list[str]) -> str:
    """Return lines as a block; empty if there are none."""
    if not lines:
        return ""
    code = "\n".join(lines)
    return f"```text\n{code}\n```"


def options_table(command: Any) -> str:
    """Return a table of the arguments and options of a command, arguments first."""
    rows = []
    for param in command.params:
        if not getattr(param, "hidden", False):
            rows.append((param.param_type_name != "argument", parameter_row(param)))
    if not rows:
        return "No arguments or options."
    rows.sort(key=lambda row: row[0])
    head = ["| argument or option | default | meaning |", "|---|---|---|"]
    return "\n".join([*head, *(text for _, text in rows)])


def parameter_row(param: Any) -> str:
    """Return the table row of one argument or option."""
    metavar = value_name(param)
    if param.param_type_name == "argument":
        names = f"`{metavar}`"
    else:
        spellings = [*param.opts, *param.secondary_opts]
        names = ", ".join(f"`{spelling}`" for spelling in spellings)
        if metavar:
            names += f" `{metavar}`"
    return f"| {cell(names)} | {default_text(param)} | {cell(param.help or '')} |"


def value_name(param: Any) -> str:
    """Return the placeholder of a parameter's value; empty for a flag."""
    if getattr(param, "is_flag", False):
        return ""
    if param.metavar:
        return str(param.metavar)
    return str(param.opts[0]).lstrip("-").replace("-", "_").upper()


def default_text(param: Any) -> str:
    """Return the default of a parameter for a table."""
    if param.required:
        return "**required**"
    if param.default in (None, False, [], ()):
        return ""
    value = param.default
    if isinstance(value, Path):
        value = str(value)
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


def cell(text: str) -> str:
    """Return text for a cell of a table."""
    return escape(text).replace("|", "\\|")


def escape(text: str) -> str:
    """Return text in which Markdown keeps patterns such as "*-cifar10-*"."""
    return text.replace("*", "\\*")
