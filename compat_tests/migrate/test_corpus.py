"""`migrate` treats the programs of the corpus as docs/migrate_corpus.md says."""

from __future__ import annotations

import json
import pathlib

import pytest

from compat_tests.support import fresh, migrate_corpus
from compat_tests.support.migrate_corpus import RUNS

PROGRAMS = migrate_corpus.programs()


def rows() -> dict[str, list[str]]:
    """Returns the cells of the page's table, by program."""
    lines = migrate_corpus.PAGE.read_text(encoding="utf-8").splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| `")]
    return {first.split("`")[1]: rest for first, *rest in cells}


RUNNING = [
    (number, form)
    for number, form in enumerate(migrate_corpus.FORMS)
    if any(cells[number] == RUNS for cells in rows().values())
]
"""The forms in which programs run, with their column numbers in the table."""


@pytest.mark.full
def test_the_page_of_the_corpus_is_up_to_date() -> None:
    """docs/migrate_corpus.md is the output of `python -m compat_tests.support.migrate_corpus`."""
    assert migrate_corpus.PAGE.read_text(encoding="utf-8") == migrate_corpus.page()


@pytest.mark.full
@pytest.mark.parametrize("number, form", RUNNING)
def test_what_is_said_to_run_runs(number: int, form: str, tmp_path: pathlib.Path) -> None:
    names = [name for name, cells in rows().items() if cells[number] == RUNS]
    command = ("-W", "ignore", "-m", "compat_tests.programs.running_corpus")
    ran = fresh.python(*command, form, tmp_path, *names)
    results = dict(json.loads(line) for line in ran.stdout.splitlines() if line.startswith('["'))

    failed = {name: error for name, error in results.items() if error is not None}
    assert not failed, "\n".join(f"{name}:\n{error}" for name, error in failed.items())
    assert [*results] == names, ran.stderr[-4000:]
