"""Finds the model_fns of a program: the functions from which it creates TPUEstimators."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from estimator_bridge.migrate.keras_form.call_sites.sites import ESTIMATOR
from estimator_bridge.migrate.keras_form.program_text.source import (
    Source,
    arguments,
    nodes_in,
    parameters_of,
)


def passed(source: Source, value: ast.expr) -> list[ast.expr]:
    """Returns the possible values of an argument.

    For a parameter of the enclosing function, these are the values that its callers pass; the list
    is empty if one of them is unknown.
    """
    function = source.function_of(value)
    if not isinstance(value, ast.Name) or not isinstance(function, ast.FunctionDef):
        return [value]
    names = parameters_of(function)
    if value.id not in names:
        return [value]
    values: list[ast.expr] = []
    for use in source.uses(function.name, source.tree):
        call = source.parent(use)
        if not isinstance(call, ast.Call) or call.func is not use:
            return []
        by_name, _ = arguments(call, names)
        if value.id not in by_name:
            return []
        values.append(by_name[value.id])
    return values


def function_of(source: Source, value: ast.expr) -> ast.FunctionDef | None:
    name = value.func if isinstance(value, ast.Call) else value
    return source.function(name.id) if isinstance(name, ast.Name) else None


def model_functions(source: Source) -> list[ast.FunctionDef]:
    functions = (function_of(source, each) for each in _arguments(source))
    return list(dict.fromkeys(each for each in functions if each is not None))


def _arguments(source: Source) -> Iterator[ast.expr]:
    for node in nodes_in(source.tree, ast.Call):
        if source.called(node) in ("estimator.TPUEstimator", "estimator.Estimator"):
            by_name, _ = arguments(node, ESTIMATOR.split())
            if "model_fn" in by_name:
                yield from passed(source, by_name["model_fn"])
