"""The forms that a program can be migrated to, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from estimator_bridge import errors
from estimator_bridge.migrate import bridge_form, tf2_form, tf2_rules
from estimator_bridge.migrate.keras_form import form as keras_form
from estimator_bridge.migrate.modules import ALONE, Modules
from estimator_bridge.migrate.rewrite_report import Rewritten
from estimator_bridge.migrate.selection import ALL, Rule, Selection

Rewrite = Callable[[str, str, Selection, Modules], Rewritten]
"""Takes a source, its name for errors, the rules that are applied and the other modules."""


class Form(NamedTuple):
    """A form of migrated programs.

    Attributes:
        rewrite: returns the new source; raises `Refused` with all blockers.
        rules: returns the rules by id.
        verified_against: the side that `verify` compares the new program with.
        makes_steps: whether `--check-run` can limit its trainings to a step.
        takes_modules: whether it is for modules of packages too, and for some of its rules.
    """

    rewrite: Rewrite
    rules: Callable[[], Mapping[str, Rule]]
    verified_against: str
    makes_steps: bool
    takes_modules: bool = True


def _tf2_rules() -> Mapping[str, Rule]:
    return {
        name: Rule(rule.effect, tf2_rules.becomes(rule))
        for name, rule in tf2_rules.listed().items()
    }


def _keras(source: str, name: str, selected: Selection, modules: Modules) -> Rewritten:
    if selected != ALL or modules is not ALONE:
        raise errors.InvalidInput(
            "migrate: --form keras takes one file, and applies all of its rules. Give the program "
            "without --only and --skip, or migrate to --form tf2."
        )
    return keras_form.migrate_to_keras(source, name)


FORMS: Mapping[str, Form] = {
    "bridge": Form(bridge_form.adopt, lambda: bridge_form.RULES, "bridge", False),
    # A program in TensorFlow 2 trains its tables as on a TPU.
    "tf2": Form(tf2_form.migrate, _tf2_rules, "bridge-tpu", True),
    "keras": Form(_keras, dict, "bridge-tpu", True, takes_modules=False),
}


def rule_lines() -> list[str]:
    """Returns a line for each rule of each form: form, id, class, and what it does."""
    return [
        f"{form}  {name}  [{rule.effect}]  {rule.text}"
        for form, row in FORMS.items()
        for name, rule in sorted(row.rules().items())
    ]
