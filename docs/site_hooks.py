"""Add CONTRIBUTING.md and SECURITY.md of the repository to the site, with links that work there."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {
    "maintainers/contributing.md": "CONTRIBUTING.md",
    "explanation/security.md": "SECURITY.md",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages; mkdocs calls this before it reads the navigation."""
    for page, source in PAGES.items():
        text = (ROOT / source).read_text("utf-8").replace("](docs/", "](../")
        files.append(File.generated(config, page, content=text))
    return files
