"""Moves metric functions that are nested in a model_fn to the module, where the rules look."""

from __future__ import annotations

import ast

from estimator_bridge.migrate.keras_form.program_text.source import (
    Source,
    bound_in,
    names_in,
    nodes_in,
    parameters_of,
    shifted,
)
from estimator_bridge.migrate.syntax.edits import lines_of


def lift_metric_functions(source: Source) -> list[tuple[str, int]] | None:
    """Moves one nested metric function to the module; returns the lines of the program.

    Each variable that it captures becomes a parameter, and the spec passes the variable as a
    further argument.
    """
    functions = [*nodes_in(source.tree, ast.FunctionDef)]
    for function in functions:
        around = source.function_of(function)
        alone = [each.name for each in functions].count(function.name) == 1
        if isinstance(around, ast.FunctionDef) and alone and _has_metrics(source, function):
            if source.function_of(around) is source.tree and _takes_more(source, function, around):
                return _lifted(source, function, around)
    return None


def _has_metrics(source: Source, function: ast.FunctionDef) -> bool:
    others = (*function.args.defaults, function.args.vararg, function.args.kwarg)
    block = getattr(source.parent(function), "body", [])
    is_plain = not any(others) and not function.decorator_list and len(block) > 1
    calls = (source.called(each) for each in nodes_in(function, ast.Call))
    return is_plain and any(each.startswith("metrics.") for each in calls)


def _takes_more(source: Source, function: ast.FunctionDef, around: ast.FunctionDef) -> bool:
    bound_here = {
        *parameters_of(function),
        *(name for each in function.body for name in bound_in(each)),
    }
    captured = sorted({*parameters_of(around), *bound_in(around)} & names_in(function) - bound_here)
    uses = [source.parent(use) for use in source.uses(function.name, around)]
    if not captured:
        return bool(uses)
    if len(uses) != 1 or not function.args.args:
        return False
    (use,) = uses
    arguments = use.elts[-1] if isinstance(use, ast.Tuple) else use
    if isinstance(arguments, ast.Dict):
        passed, form = arguments.values, "{0!r}: {0}"
    elif isinstance(arguments, (ast.List, ast.Tuple)):
        passed, form = arguments.elts, "{0}"
    elif isinstance(arguments, ast.Call) and not arguments.keywords:
        passed, form = arguments.args, "{0}"
    else:
        return False
    if not passed:
        return False
    _append(source, passed[-1], [form.format(each) for each in captured])
    _append(source, function.args.args[-1], captured)
    return True


def _append(source: Source, last: ast.AST, more: list[str]) -> None:
    code = source.text[slice(*source.span(last))]
    source.replace(last, ", ".join([code, *more]))


def _lifted(
    source: Source, function: ast.FunctionDef, around: ast.FunctionDef
) -> list[tuple[str, int]]:
    new = [(row, number) for number, row in enumerate(lines_of(source.rendered()), 1)]
    first, last = function.lineno - 1, function.end_lineno or function.lineno
    moved = [(shifted(row, function.col_offset, 0), number) for row, number in new[first:last]]
    at = source.text[: source.lines(around)[0]].count("\n")
    blank = [("\n", first + 1)] * 2
    return [*new[:at], *moved, *blank, *new[at:first], *new[last:]]
