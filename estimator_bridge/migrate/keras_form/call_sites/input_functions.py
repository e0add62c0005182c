"""Input functions: the datasets that they return, by the code that calls them."""

from __future__ import annotations

import ast

from estimator_bridge.migrate.keras_form.call_sites import array_inputs
from estimator_bridge.migrate.keras_form.call_sites.sites import Site
from estimator_bridge.migrate.keras_form.program_text.source import (
    Source,
    Text,
    names_in,
    nodes_in,
    returned_by,
)


def dataset(source: Source, site: Site, input_fn: ast.expr, size: str) -> Text:
    """Returns the code of the dataset of an input function, which takes the batch size, or nothing.

    Args:
        size: the argument of the estimator that has the batch size.
    """
    made_by = _followed(source, input_fn)
    of_arrays = array_inputs.dataset(source, input_fn, made_by)
    if of_arrays is not None:
        return of_arrays
    if isinstance(made_by, ast.Lambda) and not made_by.args.args:
        if made_by is not input_fn:
            return lambda: f"{source.code(input_fn)}()"
        return lambda: source.code(made_by.body)
    if _is_partial(source, made_by):
        return _of_partial(source, made_by)  # type: ignore[arg-type]
    function = function_of(source, made_by)
    if function is not None and not function.args.args:
        _check_returns(source, function)
        return lambda: f"{source.code(input_fn)}()"
    _check_takes_params(source, function or made_by, input_fn)
    takes_size = _takes_batch_size(source, function)
    batch = site.arguments.get(size) or site.arguments.get("train_batch_size")
    if batch is None or (
        site.function is not source.function_of(input_fn)
        and any(
            name not in source.aliases and name != "FLAGS" and not name.isupper()
            for name in names_in(batch)
        )
    ):
        source.problem(
            *(input_fn, "keras-batch-size", f"{size} is not known where the dataset is made"),
            "Let it be a flag, a constant, or make the estimator in the same function",
        )
        return lambda: ""
    if takes_size:
        return lambda: f"{source.code(input_fn)}({source.code(batch)})"
    return _with_params(source, site, input_fn, batch)


def _check_takes_params(source: Source, made_by: ast.AST, input_fn: ast.expr) -> None:
    """Refuses an input_fn unless it is a function, or a callable object, of this program."""
    if isinstance(made_by, ast.FunctionDef):
        return
    kinds = [
        each
        for each in nodes_in(source.tree, ast.ClassDef)
        if isinstance(made_by, ast.Call) and each.name == ast.unparse(made_by.func)
    ]
    functions = [each for kind in kinds for each in nodes_in(kind, ast.FunctionDef)]
    if not any(each.name == "__call__" and len(each.args.args) == 2 for each in functions):
        source.problem(
            *(input_fn, "keras-input-fn", "whether it takes params is not known"),
            "Define it in the program as a function of params, which returns a tf.data.Dataset",
        )


def _with_params(source: Source, site: Site, input_fn: ast.expr, batch: ast.expr) -> Text:
    """Calls an input function with the params of the estimator and the batch size."""
    params = site.arguments.get("params")
    if _uses_tpu_params(source) or (
        params is not None and site.function is not source.function_of(input_fn)
    ):
        source.problem(
            *(input_fn, "keras-input-fn", "its params hold more than is known where it is called"),
            "Let the input_fn use params['batch_size'] alone, and return a tf.data.Dataset",
        )
    return lambda: (
        f"{source.code(input_fn)}("
        + (f"{{**{source.code(params)}, " if params is not None else "{")
        + f"'batch_size': {source.code(batch)}}})"
    )


def _uses_tpu_params(source: Source) -> bool:
    """Whether a program reads params that a TPUEstimator adds, other than the batch size."""
    return any(each.value in ("context", "use_tpu") for each in nodes_in(source.tree, ast.Constant))


def function_of(source: Source, node: ast.expr) -> ast.FunctionDef | None:
    """Returns the function that a name stands for, or that the function of a call returns."""
    name = node.func if isinstance(node, ast.Call) else node
    function = source.function(name.id) if isinstance(name, ast.Name) else None
    if function is None or not isinstance(node, ast.Call):
        return function
    returned = returned_by(function)
    return source.function(returned.id if isinstance(returned, ast.Name) else "", function)


def _followed(source: Source, node: ast.expr) -> ast.expr:
    """Returns the value that a name is assigned once in its function; another node as it is."""
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
    """Refuses a function that returns tensors, and no dataset."""
    if isinstance(returned_by(function), ast.Tuple):
        source.problem(
            *(function, "keras-input-fn", "it returns tensors and not a dataset"),
            "Return a tf.data.Dataset of (features, labels)",
        )


def _takes_batch_size(source: Source, function: ast.FunctionDef | None) -> bool:
    """Has an input function take the batch size in place of params."""
    if function is None:
        return False
    parameter, *others = function.args.args
    uses = [source.parent(use) for use in source.uses(parameter.arg, function)]
    if others or any(
        not isinstance(up, ast.Subscript) or ast.unparse(up.slice) != "'batch_size'" for up in uses
    ):
        return False
    for use in source.uses(parameter.arg, function):
        up = source.parent(use)
        source.replace(up, "batch_size")  # type: ignore[arg-type]
    source.replace(parameter, "batch_size")
    return True
