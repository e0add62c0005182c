"""Writes the line that makes a Keras model start from the variables of another checkpoint."""

from __future__ import annotations

import ast
from collections.abc import Callable

from estimator_bridge.migrate.keras_form import rules
from estimator_bridge.migrate.keras_form.call_sites.sites import Site, all_arguments, followed
from estimator_bridge.migrate.keras_form.program_text.source import Source, is_none


def lines(source: Source, site: Site) -> Callable[[], list[str]]:
    """Returns a function that writes the statement of the warm start, if there is a warm start.

    Reports arguments that cannot be carried over.
    """
    node = site.arguments.pop("warm_start_from", ast.Constant(None))
    if is_none(node):
        return list
    if source.called(source.value_of(node)) != "estimator.WarmStartSettings":
        return lambda: [f"{site.name}.warm_start_from({source.code(node)})"]
    settings = followed(source, node)
    assert isinstance(settings, ast.Call)
    source.done.update(ast.walk(settings.func))
    by_name = all_arguments(source, settings, rules.WARM_START.split())
    are_carried = [_check(source, key, by_name[key]) for key in by_name]
    if not all(are_carried):
        # Otherwise the rule for WarmStartSettings would refuse these nodes again.
        source.done.update(ast.walk(settings))

    def write() -> list[str]:
        parts = source.keywords(by_name, rules.WARM_CARRIED)
        return [f"{site.name}.warm_start_from({', '.join(parts)})"]

    return write


def _check(source: Source, key: str, value: ast.expr) -> bool:
    """Whether an argument can be carried over; reports a problem if not.

    Vocabularies, and variables that are not chosen by a pattern, cannot be carried over.
    """
    is_other = key == "vars_to_warm_start" and isinstance(
        value, (ast.List, ast.Tuple, ast.Constant)
    )
    is_pattern = isinstance(value, ast.Constant) and isinstance(value.value, str)
    is_carried = key != "var_name_to_vocab_info" and (is_pattern or not is_other)
    if not is_carried:
        source.problem(
            *(value, "keras-estimator-argument", f"{key} has no counterpart here"),
            "Choose the trained variables by a pattern, and move rows of a vocabulary in the "
            "checkpoint before, or migrate to the bridge form",
        )
    return is_carried
