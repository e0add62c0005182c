"""Writes the page that `migrate --brief` prints: what a person or assistant still has to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from estimator_bridge.migrate import forms


def lines(form: str, left: Sequence[str], script: str, new: str) -> Iterator[str]:
    """Yields the lines of the page, in Markdown.

    `script` and `new` are the paths of the old and the new program.
    """
    rules, side = forms.rules_of_marks(form), forms.of_name(form).verified_against
    yield f"# Finish {new}, the {form} form of {script}"
    yield ""
    yield "## What is left to do"
    yield ""
    yield from (f"- {each}" for each in left)
    if not left:
        yield "Nothing: compare the two programs, as below."
    yield ""
    yield "## The rules that apply"
    yield ""
    ids = sorted({each.split(": ")[1] for each in left} & {*rules})
    yield from (f"- `{each}` ({rules[each].effect}): {rules[each].text}" for each in ids)
    yield ""
    yield "## How to check it"
    yield ""
    yield f"    estimator-bridge migrate --form {form} --check-run {script} ARGUMENTS"
    yield f"    estimator-bridge verify --a {side} --against {new} {script} ARGUMENTS"
    yield ""
    yield "## What must not change"
    yield ""
    yield "Losses, optimizers and their rates, names of layers and variables, the order of inputs,"
    yield "seeds, and what is evaluated and exported. Remove a TODO once its place is done. The two"
    yield "programs are the same when `verify` says EQUAL, and not before."
