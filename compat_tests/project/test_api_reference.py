"""Every public name has an entry and an example in the API reference, and the examples run."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import pathlib
import re

import pytest

from compat_tests.support import fresh
from compat_tests.support.paths import ROOT, ci_module

PAGES = ROOT / "docs" / "api"


api = ci_module("api_pages")


def examples(package: str) -> list[tuple[list[str], str]]:
    """Returns the names and the example of each section of a page."""
    text = (PAGES / f"{package}.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    return [
        (
            [name.strip() for name in section.splitlines()[0].split(",")],
            "".join(re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)),
        )
        for section in sections
    ]


def used_in(code: str) -> set[str]:
    """Returns the names and attributes that code uses, and the names in its comments."""
    nodes = list(ast.walk(ast.parse(code)))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    for comment in re.findall(r"^# (.*)$", code, re.MULTILINE):
        names |= set(re.findall(r"\w+", comment))
    return names


@pytest.mark.parametrize("package", api.PACKAGES)
def test_every_public_name_has_an_entry_and_an_example(package: str) -> None:
    """The headings of a page are the public names; each example uses those it is for."""
    sections = examples(package)

    listed = [name for names, _ in sections for name in names]
    assert sorted(listed) == sorted(api.public_names(package))
    for names, code in sections:
        assert code, f"{names} have no example"
        missing = set(names) - used_in(code)
        assert not missing, f"the example does not use {missing}"


@pytest.mark.parametrize("package", api.PACKAGES)
def test_every_public_name_is_described(package: str) -> None:
    """Each public name has a docstring that begins with a sentence; callables have a signature."""
    for name in api.public_names(package):
        entry = api.reference(package, name, 3)
        code, text = re.match(r"```python\n(.*?)\n```\n\n(.*)", entry, re.DOTALL).groups()
        assert code.startswith(f"{package}.{name}")
        first = " ".join(text.split("\n\n")[0].split())
        assert re.match(r"[A-Z`\[].*[.:]$", first), f"{package}.{name}: {first!r}"


def test_every_lazy_package_of_public_names_has_a_page() -> None:
    """A package that offers names has a page, and its names at run time are those of the page."""
    from compat_tests.project.test_names import LAZY

    assert set(LAZY) <= set(api.PACKAGES)
    for package in LAZY:
        assert set(importlib.import_module(package).__all__) == set(api.public_names(package))
    assert {path.stem for path in PAGES.glob("*.md")} == set(api.PACKAGES)


def test_docstrings_become_markdown() -> None:
    """Sections become lists, code stays code, and nothing of a text is HTML or emphasis."""
    doc = """Looks up <rows> of *a.

        code <- *as it is*

Args:
    ids: of `<rows>`, with
        more to say.
    first, second: both.

Raises:
    WrongType: never.

The end."""

    assert api.markdown(doc).splitlines() == [
        *(r"Looks up \<rows> of \*a.", "", "        code <- *as it is*", ""),
        *("", "**Args**", "", "- `ids`: of `<rows>`, with", "    more to say."),
        *("- `first, second`: both.", "", "", "**Raises**", "", "- `WrongType`: never."),
        *("", "The end."),
    ]


@pytest.mark.full
@pytest.mark.parametrize("package", api.PACKAGES)
def test_examples_run(package: str, tmp_path: pathlib.Path) -> None:
    program = "".join(code + "\n\n" for _, code in examples(package))
    (tmp_path / "page.py").write_text(program)
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}

    ran = fresh.python("page.py", cwd=tmp_path, env=environment)

    assert ran.returncode == 0, ran.stderr[-4000:]
