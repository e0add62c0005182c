"""Hands MkDocs the pages of the repository, each at its own place, so that it checks all links.

README, the guides and the examples link to one another as files do; by itself MkDocs takes the
pages of one folder. The page of migrate's rules is made here, from the rules. The site also gets
llms.txt (https://llmstxt.org): a list of its pages, with what each is about, for programs that read
documentation.
"""

from __future__ import annotations

import functools
import os
import pathlib
import re
import subprocess
from collections.abc import Iterator
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).parent.parent
PAGES = ("*.md", "docs/*.md", "docs/api/*.md", "examples/*.md", "examples/*/*.md")
LINKED = ("LICENSE", "docs/*.css", "examples/*.py", "examples/*/*.py")
"""Files that pages link to."""

RULES = "docs/migrate_rules.md"
PYTHON = os.environ.get("RULES_PYTHON") or ROOT / ".envs" / "tf221" / "bin" / "python"
"""The interpreter that has LibCST, with which rules are written; `make docs` sets the variable."""


def on_files(files: Files, *, config: Any) -> Files:
    """Returns the files of the theme and those of the repository."""
    of_theme = [file for file in files if file.src_dir != config.docs_dir]
    paths = sorted(path for pattern in (*PAGES, *LINKED) for path in ROOT.glob(pattern))
    rules = File.generated(config, RULES, content=_rules())
    return Files([*of_theme, *(_file(path, config) for path in paths), rules])


@functools.cache
def _rules() -> str:
    """Returns the page of migrate's rules."""
    command = [str(PYTHON), "-m", "compat_tests.support.migrate_rules"]
    made = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return made.stdout


def _file(path: pathlib.Path, config: Any) -> File:
    inside = path.relative_to(ROOT).as_posix()
    return File(inside, str(ROOT), config.site_dir, config.use_directory_urls)


def on_post_build(*, config: Any) -> None:
    """Writes llms.txt: the pages in the order of the navigation, each with its first sentence."""
    lines = [f"# {config.site_name}", "", f"> {_about(ROOT / 'README.md')[1]}", ""]
    pathlib.Path(config.site_dir, "llms.txt").write_text("\n".join([*lines, *_listed(config.nav)]))


def _listed(entries: list[Any], heading: str = "Docs") -> Iterator[str]:
    pages = [entry for entry in entries if isinstance(entry, str)]
    yield from (f"## {heading}", "")
    for page in pages:
        title, sentence = _about(ROOT / page)
        yield f"- [{title}]({page.removesuffix('.md')}.html): {sentence}"
    yield ""
    for section in (entry for entry in entries if isinstance(entry, dict)):
        for name, inside in section.items():
            yield from _listed(inside, name)


def _about(path: pathlib.Path) -> tuple[str, str]:
    """Returns the title of a page and the first sentence of its text, without links and markup."""
    text = _rules() if path == ROOT / RULES else path.read_text(encoding="utf-8")
    source = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    title, *paragraphs = re.sub(r"\[([^\]]*)\]\([^)]*\)|[*`]", r"\1", source).split("\n\n")
    text = next(part for part in paragraphs if part.strip() and part[0] not in "|#- ")
    sentence = re.split(r"(?<=[.:]) ", " ".join(text.split()))[0]
    return title.removeprefix("# "), sentence.rstrip(":.") + "."
