"""Defines the forms to which a program can be migrated, such as "tf2" and "keras"."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

from estimator_bridge import errors
from estimator_bridge.migrate import bridge_form, selection
from estimator_bridge.migrate.blockers import Refused
from estimator_bridge.migrate.keras_form import form as keras_form
from estimator_bridge.migrate.keras_form import refusals
from estimator_bridge.migrate.rewrite_report import Line, Rewritten
from estimator_bridge.migrate.selection import Rule, Selection
from estimator_bridge.migrate.syntax.modules import Modules
from estimator_bridge.migrate.tf2 import sparse_core_rules, tf2_form, tf2_rules

Rewrite = Callable[[str, str, Selection, Modules], Rewritten]
"""Rewrites a source, given its name in errors, the rules to apply and the other modules."""


class Form(NamedTuple):
    """A form of migrated programs.

    Attributes:
        rewrite: returns the new source; raises `Refused` with all blockers.
        verified_against: what `verify` compares the new program with, such as "bridge-tpu".
        keeps_estimators: whether a program keeps its estimators if a new program without them would
            need edits by hand.
        marks_kept: whether a comment in the program gives each reason for keeping estimators.
        model: the class that replaces estimators, as messages call it.
        otherwise: the function that rewrites folders, and programs that `rewrite` refuses.
    """

    rewrite: Rewrite
    rules: Callable[[], Mapping[str, Rule]]
    verified_against: str
    keeps_estimators: bool = False
    marks_kept: bool = False
    model: str = "Trainer"
    otherwise: Rewrite | None = None
    takes_folders: bool = True


def _tf2_rules() -> Mapping[str, Rule]:
    return _as_listed(tf2_rules.listed())


def _sparse_core_rules() -> Mapping[str, Rule]:
    return _as_listed(sparse_core_rules.RULES)


def _keras_rules() -> Mapping[str, Rule]:
    kept = Rule(
        selection.SAFE,
        "where a Keras model cannot replace the estimators without an edit, the bridge's "
        f"estimators replace them, with a mark for each reason; with `--skip {tf2_rules.KEEP}` the "
        "program is refused",
    )
    stays = Rule(
        selection.SAFE,
        "a model_fn that does not become a class stays; a `TrainerModel`, which Keras drives, "
        "replaces its estimator, and the rules of the tf2 form apply to the rest",
    )
    return {**refusals.RULES, tf2_rules.KEEP: kept, "trainer-model": stays}


def _as_listed(rules: Mapping[str, tf2_rules.NameRule]) -> Mapping[str, Rule]:
    return {name: Rule(rule.effect, tf2_rules.becomes(rule)) for name, rule in rules.items()}


def _keras(
    source: str, name: str, selected: Selection, modules: Modules, target: str | None = None
) -> Rewritten:
    del modules
    _check_selection(selected)
    lines = _lines_of_target(source, name, target) if target is not None else ()
    result = keras_form.migrate_to_keras(source, name, target)
    return dataclasses.replace(result, lines=(*result.lines, *lines))


def _check_selection(selected: Selection) -> None:
    if selected.only is not None or {*selected.skip} - {tf2_rules.KEEP}:
        raise errors.InvalidInput(
            "migrate: --form keras applies all of its rules. Remove --only; --skip may only name "
            f"{tf2_rules.KEEP}. Or use --form tf2."
        )


def _lines_of_target(source: str, name: str, target: str) -> tuple[Line, ...]:
    """Returns the tf2 form's lines about the target; raises Refused if training would differ."""
    try:
        lines = tf2_form.migrate(source, name, target=target).lines
    except Refused as refused:
        # Other blockers of the tf2 form do not matter in the Keras form.
        lacking = [each for each in refused.blockers if each.rule in sparse_core_rules.RULES]
        if lacking:
            raise Refused(refused.subject, lacking) from None
        lines = ()
    return tuple(
        dataclasses.replace(
            each,
            new=each.new.replace("Trainer", "ColumnEmbedding"),
            why=each.why.replace("Trainer", "ColumnEmbedding"),
        )
        for each in lines
        if each.rule in sparse_core_rules.RULES
    )


FORMS: Mapping[str, Form] = {
    "bridge": Form(bridge_form.adopt, lambda: bridge_form.RULES, "bridge"),
    # A program in TensorFlow 2 trains its tables as on a TPU.
    "tf2": Form(tf2_form.migrate, _tf2_rules, "bridge-tpu", keeps_estimators=True),
    "keras": Form(
        *(_keras, _keras_rules, "bridge-tpu"),
        keeps_estimators=True,
        marks_kept=True,
        model="Keras model",
        otherwise=functools.partial(tf2_form.migrate, keras=True),
    ),
}


ON_SPARSE_CORES: Mapping[str, Form] = {
    "tf2": FORMS["tf2"]._replace(
        rewrite=functools.partial(tf2_form.migrate, target=sparse_core_rules.TARGET),
        rules=lambda: {**_tf2_rules(), **_sparse_core_rules()},
        verified_against="bridge-sparsecore",
        keeps_estimators=False,
    ),
    "keras": FORMS["keras"]._replace(
        rewrite=functools.partial(_keras, target=sparse_core_rules.TARGET),
        otherwise=None,
        takes_folders=False,
        rules=lambda: {**refusals.RULES, **_sparse_core_rules()},
        verified_against="bridge-sparsecore",
        keeps_estimators=False,
    ),
}

LISTED: Mapping[str, Form] = {
    **FORMS,
    "tf2-sparsecore": ON_SPARSE_CORES["tf2"]._replace(rules=_sparse_core_rules),
}
"""The forms that `--list-rules` shows; "tf2-sparsecore" has only the rules for SparseCores."""


def of_name(form: str, target: str | None = None) -> Form:
    if target is None:
        return FORMS[form]
    if form not in ON_SPARSE_CORES:
        names = " or ".join(f"--form {each}" for each in ON_SPARSE_CORES)
        raise errors.InvalidInput(
            f"migrate: --target {target} is for {names}, not for --form {form}. Use one of those "
            "forms, or try the legacy program with "
            f"`estimator-bridge run --arithmetic {target}`."
        )
    return ON_SPARSE_CORES[form]


def rules_of_marks(form: str) -> Mapping[str, Rule]:
    of_others = _as_listed(tf2_rules.listed(keras=form == "keras"))
    return {**of_others, **FORMS[form].rules()}


def rule_lines() -> list[str]:
    return [
        f"{form}  {name}  [{rule.effect}]  {rule.text}"
        for form, row in LISTED.items()
        for name, rule in sorted(row.rules().items())
    ]
