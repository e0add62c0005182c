"""Gives each model_fn its own copy of functions that several model_fns share.

The functions that build a spec become methods of the model's class. Methods that are equal in all
classes then move to a base class, so no copy remains.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from estimator_bridge.migrate.keras_form.model_class import optimizer_code
from estimator_bridge.migrate.keras_form.model_class.model_functions import model_functions
from estimator_bridge.migrate.keras_form.program_text.source import (
    COPY,
    Source,
    free_name,
    nodes_in,
)
from estimator_bridge.migrate.syntax.edits import lines_of

_OF_A_MODEL = {"mode", "params"}


def copy_shared_functions(source: Source) -> list[tuple[str, int]] | None:
    """Copies a shared function for its last caller, if it has several."""
    roots = model_functions(source)
    if len(roots) < 2:
        return None
    reached = {root: {*_reached(source, root)} for root in roots}
    for function in source.tree.body:
        if not isinstance(function, ast.FunctionDef) or not _is_of_a_model(source, function):
            continue
        models = [root for root in roots if function in reached[root]]
        if len(models) < 2:
            continue
        callers = [
            each
            for each in source.tree.body
            if isinstance(each, ast.FunctionDef)
            and each is not function
            and any(each in reached[root] for root in models)
            and source.uses(function.name, each)
        ]
        if len(callers) + (function in roots) > 1:
            return _with_copy(source, function, callers[-1])
    return None


def _reached(source: Source, root: ast.FunctionDef) -> Iterator[ast.FunctionDef]:
    known = {each.name: each for each in source.tree.body if isinstance(each, ast.FunctionDef)}
    queue, seen = [root], {root}
    while queue:
        each = queue.pop()
        yield each
        for node in nodes_in(each, ast.Name):
            inner = known.get(node.id)
            if inner is not None and inner not in seen:
                seen.add(inner)
                queue.append(inner)


def _is_of_a_model(source: Source, function: ast.FunctionDef) -> bool:
    if {each.arg for each in function.args.args} & _OF_A_MODEL:
        return True
    return any(
        source.called(node).startswith("metrics.")
        or source.called(node).endswith("EstimatorSpec")
        or optimizer_code.is_of_optimizer(source, node)
        for node in ast.walk(function)
    )


def _with_copy(
    source: Source, function: ast.FunctionDef, caller: ast.FunctionDef
) -> list[tuple[str, int]]:
    taken = {each.name for each in nodes_in(source.tree, ast.FunctionDef)}
    name = free_name(f"{function.name.partition(COPY)[0]}{COPY}", taken)
    rows = lines_of(source.text)
    first, last = function.lineno, function.end_lineno or function.lineno
    copied = [(rows[number - 1], number) for number in range(first, last + 1)]
    copied[0] = (copied[0][0].replace(f"def {function.name}", f"def {name}", 1), first)
    for use in source.uses(function.name, caller):
        source.replace(use, name)
    new = [(row, number) for number, row in enumerate(lines_of(source.rendered()), 1)]
    start, _ = source.lines(caller)
    at = source.text[:start].count("\n")
    blank = [("\n", first), ("\n", first)]
    return [*new[:at], *copied, *blank, *new[at:]]
