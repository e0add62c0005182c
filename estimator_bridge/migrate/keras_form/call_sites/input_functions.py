"""Writes the calls with which the new program gets datasets from its input functions."""

from __future__ import annotations

import ast

from estimator_bridge.migrate.keras_form.call_sites import array_inputs
from estimator_bridge.migrate.keras_form.call_sites.sites import Site
from estimator_bridge.migrate.keras_form.program_text.source import (
    NotSimple,
    Source,
    Text,
    returned_by,
)


def dataset(source: Source, site: Site, input_fn: ast.expr, size: str) -> Text:
    """Writes the call to an input function.

    `size` names the estimator's argument for the batch size, such as "train_batch_size".
    """
    made_by = _followed(source, input_fn)
    of_arrays = array_inputs.dataset(source, input_fn, made_by)
    if of_arrays is not None:
        return of_arrays
    if isinstance(made_by, ast.Lambda) and not made_by.args.args:
        if made_by is not input_fn:
            return lambda: f"{source.code(input_fn)}()"
        return lambda: source.code(made_by.body)
    is_canned = site.canned is not None
    if is_canned and _is_partial(source, made_by):
        return _of_partial(source, made_by)  # type: ignore[arg-type]
    function = function_of(source, made_by)
    if function is not None and not function.args.args:
        _check_returns(source, function)
        return lambda: f"{source.code(input_fn)}()"
    batch = site.arguments.get(size) or site.arguments.get("train_batch_size")
    is_known = batch is not None and not source.changed_names(batch, input_fn)
    if not is_canned and (not is_known or not _takes_batch_size(source, function)):
        raise NotSimple(
            input_fn,
            "its input_fn reads more than a batch size, or the batch size is not known",
        )
    if batch is None:
        source.problem(
            *(input_fn, "keras-input-fn", "migrate cannot see what it takes"),
            "Pass a function without parameters, which returns a tf.data.Dataset",
        )
        return lambda: ""
    return lambda: f"{source.code(input_fn)}({source.code(batch)})"


def function_of(source: Source, node: ast.expr) -> ast.FunctionDef | None:
    name = node.func if isinstance(node, ast.Call) else node
    function = source.function(name.id) if isinstance(name, ast.Name) else None
    if function is None or not isinstance(node, ast.Call):
        return function
    returned = returned_by(function)
    return source.function(returned.id if isinstance(returned, ast.Name) else "", function)


def _followed(source: Source, node: ast.expr) -> ast.expr:
    is_function = isinstance(node, ast.Name) and source.function(node.id) is not None
    return node if is_function else source.value_of(node) or node


def _is_partial(source: Source, node: ast.expr) -> bool:
    if not isinstance(node, ast.Call) or not node.args:
        return False
    return source.full(node.func) == "functools.partial"


def _of_partial(source: Source, call: ast.Call) -> Text:
    function, *_ = call.args

    def write() -> str:
        parts = [source.code(each) for each in call.args[1:]]
        parts += [f"{each.arg}={source.code(each.value)}" for each in call.keywords]
        return f"{source.code(function)}({', '.join(parts)})"

    return write


def _check_returns(source: Source, function: ast.FunctionDef) -> None:
    if isinstance(returned_by(function), ast.Tuple):
        source.problem(
            *(function, "keras-input-fn", "it returns tensors and not a dataset"),
            "Return a tf.data.Dataset of (features, labels)",
        )


def _takes_batch_size(source: Source, function: ast.FunctionDef | None) -> bool:
    """Replaces `params` by `batch_size` if the function reads only `params['batch_size']`."""
    if function is None:
        return False
    parameter, *others = function.args.args
    uses = [source.parent(use) for use in source.uses(parameter.arg, function)]
    named = source.uses(function.name, source.tree)
    is_called = any(getattr(source.parent(use), "func", None) is use for use in named)
    sizes = [each for each in uses if isinstance(each, ast.Subscript)]
    if others or is_called or any(ast.unparse(each.slice) != "'batch_size'" for each in sizes):
        return False
    for each in (*sizes, parameter):
        source.replace(each, "batch_size")
    return len(sizes) == len(uses)
