"""Add CONTRIBUTING.md of the repository to the site, with links that work there."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

SOURCE = Path(__file__).parents[1] / "CONTRIBUTING.md"
PAGE = "maintainers/contributing.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page; mkdocs calls this before it reads the navigation."""
    text = SOURCE.read_text("utf-8").replace("](docs/", "](../")
    files.append(File.generated(config, PAGE, content=text))
    return files
