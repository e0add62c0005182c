"""Writes a page of migrate's rules, from the rules and the examples in their tests.

`python -m compat_tests.support.migrate_rules` prints the page for the site.
"""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

from compat_tests.support.paths import ROOT
from estimator_bridge.migrate.forms import LISTED
from estimator_bridge.migrate.selection import CLASSES, REFUSED, Rule

EXAMPLES = ROOT / "compat_tests" / "migrate" / "rules.txt"

_HEAD = """\
# The rules of `migrate`

Each change that `estimator-bridge migrate` makes has a rule, whose id is at the end of the change's
line in the report. `--list-rules` prints this list without examples; `--only` and `--skip` take ids
and classes (`--skip changes-numbers,keep-quirks`). Where a rule is not applied, the code stays as
it is, and the report says so: the program may not run then. [The guide](migrate.md) describes the
command.

| class | what it means |
|---|---|
"""


class Example(NamedTuple):
    """An example of a rule: code before and after; for a refusal, the message instead."""

    form: str
    rule: str
    before: str
    after: str


def examples() -> list[Example]:
    """Reads the examples of all rules, in the order of the file."""
    parsed = []
    for entry in re.split(r"^== ", EXAMPLES.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        head, _, rest = entry.partition("\n")
        before, _, after = rest.partition("\n--\n")
        parsed.append(Example(*head.split(), before, after.rstrip("\n")))
    return parsed


def page() -> str:
    known = {(each.form, each.rule): each for each in examples()}
    parts = [_HEAD, *(f"| {name} | {text} |\n" for name, text in CLASSES.items())]
    for form, row in LISTED.items():
        if row.rules():
            name, _, target = form.partition("-")
            parts.append(f"\n## The {name} form{f' with --target {target}' * bool(target)}\n")
        for name, rule in sorted(row.rules().items()):
            parts.append(_entry(name, rule, known[form, name]))
    return "".join(parts)


def _entry(name: str, rule: Rule, example: Example) -> str:
    text = f"{rule.text[:1].upper()}{rule.text[1:]}"
    if rule.effect == REFUSED:
        shown = f"```text\n{example.before}\n```\n\n```text\n{example.after}\n```\n"
    else:
        shown = f"```diff\n{_marked('-', example.before)}{_marked('+', example.after)}```\n"
    return f"\n### {name} ({rule.effect})\n\n{text}.\n\n{shown}"


def _marked(sign: str, code: str) -> str:
    return "".join(f"{sign}{line}\n" for line in code.splitlines())


if __name__ == "__main__":
    sys.stdout.write(page())
