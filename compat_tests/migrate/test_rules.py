"""Each rule of `migrate` has an example, which the rules page shows, and can be skipped by id."""

from __future__ import annotations

import itertools

import pytest

from compat_tests.migrate import rule_program
from compat_tests.support import migrate_rules
from compat_tests.support.migrate_rules import Example
from estimator_bridge import errors
from estimator_bridge.migrate import rewrite_report, selection
from estimator_bridge.migrate.blockers import Blocker, Refused
from estimator_bridge.migrate.forms import LISTED
from estimator_bridge.migrate.selection import ALL, REFUSED, Selection

EXAMPLES = migrate_rules.examples()

OF_PROGRAMS = (
    "imports-legacy-module",
    "no-estimator",
    "no-training",
    "keep-estimator",
    "trainer-model",
)
"""Rules for whole programs, which `test_packages` and others test."""

ONES = [each for each in EXAMPLES if each.rule not in OF_PROGRAMS]
BY_OTHERS = ("depends-on-left-out", "install-at-start")
"""Rules that only apply together with another rule, or only without it."""

APPLIED = [
    each
    for each in ONES
    if LISTED[each.form].rules()[each.rule].effect != REFUSED and each.rule not in BY_OTHERS
]


def ids(example: Example, selected: Selection = ALL) -> set[str]:
    try:
        new = rule_program.rewritten(example.form, example.before, selected)
    except Refused as refused:
        return {each.rule for each in refused.blockers}
    marks = {each.split(": ")[1] for each in rewrite_report.left_to_do({"it": new})}
    return marks | {each.rule for each in new.lines if each.kind != "skipped"}


@pytest.mark.parametrize("form", LISTED)
def test_every_rule_has_an_example(form: str) -> None:
    named = [each.rule for each in EXAMPLES if each.form == form]

    assert sorted(named) == sorted(LISTED[form].rules())
    for name, rule in LISTED[form].rules().items():
        assert rule.effect in selection.CLASSES, name
        assert rule.text, name


@pytest.mark.parametrize("example", ONES, ids=lambda each: f"{each.form}-{each.rule}")
def test_a_rule_does_what_its_entry_says(example: Example) -> None:
    """The rule applies to its example, with the result that the page shows."""
    assert example.rule in ids(example)
    assert rule_program.after(example.form, example.before) == example.after


@pytest.mark.full
@pytest.mark.parametrize("example", APPLIED, ids=lambda each: f"{each.form}-{each.rule}")
def test_a_rule_that_is_skipped_is_not_applied(example: Example) -> None:
    """`--skip` leaves out this rule; `--only` leaves out all other rules except refusals."""
    assert example.rule not in ids(example, Selection(skip={example.rule}))
    assert ids(example, Selection(only={example.rule})) <= {"", example.rule}


@pytest.mark.parametrize(
    "only, skip, words",
    [
        ("no-rule", None, "unknown rule or class: no-rule"),
        (None, "safe,nothing", "unknown rule or class: nothing"),
        (None, "refused", "cannot name the class `refused`"),
    ],
)
def test_unknown_rules_are_errors(only: str | None, skip: str | None, words: str) -> None:
    """An unknown rule in `--only` or `--skip` is named in the error."""
    with pytest.raises(errors.InvalidInput, match=words):
        selection.of_names(only, skip, LISTED["tf2"].rules())


def test_refusals_have_one_order() -> None:
    """Refusals are sorted, even within a line, whatever the order of collection."""
    refusals = [Blocker(7, "rule", code, "why") for code in ("one", "two", "three", "four")]
    texts = {str(Refused("it", order)) for order in itertools.permutations(refusals)}

    assert len(texts) == 1


def test_classes_select_all_their_rules() -> None:
    """A class of rules selects all of its rules; its name may have hyphens."""
    selected = selection.of_names("needs-a-look,minimize", None, LISTED["tf2"].rules())

    assert selected.takes("other-stock", selection.NEEDS_A_LOOK)
    assert selected.takes("minimize", selection.SAFE)
    assert not selected.takes("tpu-estimator", selection.SAFE)
    assert selected.takes("gradient-tape", REFUSED)
