"""Writes the line that has a Keras model start with the variables of another checkpoint."""

from __future__ import annotations

import ast
from collections.abc import Callable

from estimator_bridge.migrate.keras_form.call_sites.sites import Site, all_arguments, followed
from estimator_bridge.migrate.keras_form.program_text.source import Source

_SETTINGS = (
    "ckpt_to_initialize_from vars_to_warm_start var_name_to_vocab_info var_name_to_prev_var_name"
)
_NAMES = {"vars_to_warm_start": "names", "var_name_to_prev_var_name": "old_names"}
"""The arguments of WarmStartSettings that are carried, and what a model calls them."""


def lines(source: Source, site: Site) -> Callable[[], list[str]]:
    """Returns the statement that has a model start so, or none; adds a problem if it cannot."""
    node = site.arguments.pop("warm_start_from", None)
    if node is None or (isinstance(node, ast.Constant) and node.value is None):
        return list
    value = source.value_of(node) if isinstance(node, ast.Name) else node
    if value is None or source.called(value) != "estimator.WarmStartSettings":
        return lambda: [f"{site.name}.warm_start_from({source.code(node)})"]
    settings = followed(source, node)
    assert isinstance(settings, ast.Call)
    source.done.update(ast.walk(settings.func))
    by_name = all_arguments(source, settings, _SETTINGS.split())
    are_carried = [_check(source, key, by_name[key]) for key in by_name]
    if not all(are_carried):
        source.done.update(ast.walk(settings))  # Its rule would refuse them once more.

    def write() -> list[str]:
        parts = [source.code(by_name[key]) for key in by_name if key not in _NAMES]
        parts += [f"{_NAMES[key]}={source.code(by_name[key])}" for key in _NAMES if key in by_name]
        return [f"{site.name}.warm_start_from({', '.join(parts)})"]

    return write


def _check(source: Source, key: str, value: ast.expr) -> bool:
    """Returns whether an argument is carried; adds a problem if it is not.

    Vocabularies are not, nor variables that are chosen in another way than by a pattern.
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
