"""Migrates the corpus of programs, and writes the page with the results.

`python -m compat_tests.support.migrate_corpus` updates the page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from compat_tests.support.paths import ROOT
from estimator_bridge.migrate import forms, verdicts

FOLDER = ROOT / "compat_tests" / "migrate" / "corpus"
PAGE = ROOT / "docs" / "migrate_corpus.md"

FORMS = ("bridge", "tf2", "keras")
"""The forms to which the corpus is migrated."""

RUNS = "runs"

_HEAD = """\
# What `migrate` makes of programs

We wrote these small programs; they make the calls that TPUEstimator programs make. The table shows
the result of `migrate` for each. "runs" means that the new program trains, and does everything else
that the old one does, without an edit; a test proves it. [At the end](#reasons) are the reasons
that `migrate` and `audit` give if an edit is needed, each with what to do about it. If a program
has no counterpart in Keras, [the Keras form](migrate.md#the-keras-form) keeps the
estimators, and a comment marks each place that is a reason.

"""


class Program(NamedTuple):
    """A program of the corpus: its title and its source."""

    title: str
    source: str


def programs() -> dict[str, Program]:
    """Maps names to programs. Each is `base.txt` with some sections replaced."""
    base = _sections((FOLDER / "base.txt").read_text(encoding="utf-8"))
    by_name = {}
    text = (FOLDER / "programs.txt").read_text(encoding="utf-8")
    for entry in re.split(r"^== ", text, flags=re.MULTILINE)[1:]:
        head, _, rest = entry.partition("\n")
        name, title = head.split(": ", 1)
        changed = _sections(rest)
        assert changed.keys() <= base.keys(), name
        parts = {**base, **changed}
        by_name[name] = Program(
            title, "\n\n".join(each.strip("\n") + "\n" for each in parts.values())
        )
    return by_name


def _sections(text: str) -> Mapping[str, str]:
    parts = re.split(r"^@ (\w+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def verdict(form: str, source: str) -> verdicts.Verdict:
    return verdicts.of_source(form, forms.FORMS[form], source)


def cell(answer: verdicts.Verdict) -> str:
    if not answer.possible:
        return "refused"
    count = 0 if answer.keeps_estimators else len(answer.reasons)
    return f"needs {count} change{'s'[: count > 1]} by hand" if count else RUNS


def page() -> str:
    rows = [f"| program | {' | '.join(FORMS)} |\n|---|{'---|' * len(FORMS)}\n"]
    reasons: list[str] = []
    answers = {name: _answers(program) for name, program in programs().items()}
    for name, program in programs().items():
        cells = " | ".join(cell(each) for each in answers[name].values())
        rows.append(f"| `{name}`: {program.title} | {cells} |\n")
        for form, answer in answers[name].items():
            reasons += [f"- `{name}`, {form}: {each}\n" for each in answer.reasons]
    counts = ", ".join(
        f"{form} {sum(cell(each[form]) == RUNS for each in answers.values())} of {len(answers)}"
        for form in FORMS
    )
    foreign = (FOLDER / "foreign.txt").read_text(encoding="utf-8")
    own = f"Without an edit: {counts}.\n\n{''.join(rows)}\n{foreign}"
    return f"{_HEAD}{own}\n## Reasons\n\n{''.join(reasons)}"


def _answers(program: Program) -> dict[str, verdicts.Verdict]:
    return {form: verdict(form, program.source) for form in FORMS}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
