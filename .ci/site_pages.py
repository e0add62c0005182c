"""Hands MkDocs the pages of the repository, each at its own place, so that it checks all links.

README, the guides and the examples link to one another as files do; by itself MkDocs takes the
pages of one folder.
"""

from __future__ import annotations

import pathlib
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).parent.parent
PAGES = ("*.md", "docs/*.md", "docs/api/*.md", "examples/*.md", "examples/*/*.md")
LINKED = ("LICENSE", "docs/*.css", "examples/*.py", "examples/*/*.py")
"""Files that pages link to."""


def on_files(files: Files, *, config: Any) -> Files:
    """Returns the files of the theme and those of the repository."""
    of_theme = [file for file in files if file.src_dir != config.docs_dir]
    paths = sorted(path for pattern in (*PAGES, *LINKED) for path in ROOT.glob(pattern))
    return Files([*of_theme, *(_file(path, config) for path in paths)])


def _file(path: pathlib.Path, config: Any) -> File:
    inside = path.relative_to(ROOT).as_posix()
    return File(inside, str(ROOT), config.site_dir, config.use_directory_urls)
