"""Input functions: how the new program calls them for their datasets."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from estimator_bridge.migrate.keras_form.call_sites import array_inputs
from estimator_bridge.migrate.keras_form.call_sites.sites import Site
from estimator_bridge.migrate.keras_form.program_text.source import (
    Source,
    Text,
    method_of,
    names_in,
    nodes_in,
    parameters_of,
    returned_by,
)


def dataset(source: Source, site: Site, input_fn: ast.expr, size: str) -> Text:
    """Writes the code that calls an input function, with a batch size if it takes one.

    `size` is the estimator's argument with the batch size.
    """
    made_by = _followed(source, input_fn)
    of_arrays = array_inputs.dataset(source, input_fn, made_by)
    if of_arrays is not None:
        return of_arrays
    if isinstance(made_by, ast.Lambda) and not made_by.args.args:
        if made_by is not input_fn:
            return lambda: f"{source.code(input_fn)}()"
        return lambda: source.code(made_by.body)
    if site.model_fn is not None:
        function = function_of(source, made_by)
        if function is not None:
            _check_returns(source, function)
        return _from_model(source, site, input_fn, size)
    return _from_function(source, site, input_fn, made_by, size)


def _from_function(
    source: Source, site: Site, input_fn: ast.expr, made_by: ast.expr, size: str
) -> Text:
    if _is_partial(source, made_by):
        return _of_partial(source, made_by)  # type: ignore[arg-type]
    function = function_of(source, made_by)
    if function is not None and not function.args.args:
        _check_returns(source, function)
        return lambda: f"{source.code(input_fn)}()"
    functions = _taking_params(source, function or made_by, input_fn)
    takes_size = _takes_batch_size(source, function)
    batch = site.arguments.get(size) or site.arguments.get("train_batch_size")
    if batch is None or not _is_known_at(source, site, input_fn, batch):
        source.problem(
            *(input_fn, "keras-batch-size", f"{size} is not known where the dataset is made"),
            "Let it be a flag, a constant, or make the estimator in the same function",
        )
        return lambda: ""
    if takes_size:
        return lambda: f"{source.code(input_fn)}({source.code(batch)})"
    return _with_params(source, site, input_fn, batch, functions)


def _from_model(source: Source, site: Site, input_fn: ast.expr, size: str) -> Text:
    """Lets the model call an input function, as the estimator did."""
    if _uses_tpu_params(source, ("context",)):
        source.problem(
            *(input_fn, "keras-input-fn", "it reads params['context']"),
            "Let the input_fn use params['batch_size'] alone, and return a tf.data.Dataset",
        )
    mode = {"train_batch_size": "train", "eval_batch_size": "eval"}.get(size, "predict")
    return lambda: f"{site.name}.data_of({source.code(input_fn)}, {mode!r})"


def _taking_params(
    source: Source, made_by: ast.AST, input_fn: ast.expr
) -> Sequence[ast.FunctionDef]:
    if isinstance(made_by, ast.FunctionDef):
        return [made_by]
    kinds = [
        each
        for each in nodes_in(source.tree, ast.ClassDef)
        if isinstance(made_by, ast.Call) and each.name == ast.unparse(made_by.func)
    ]
    name = "__call__"
    if isinstance(made_by, ast.Attribute):
        kinds, name = [*nodes_in(source.tree, ast.ClassDef)], made_by.attr
    functions = [each for kind in kinds for each in nodes_in(kind, ast.FunctionDef)]
    named = [each for each in functions if each.name == name]
    if not named or any(parameters_of(each)[1:] != ["params"] for each in named):
        source.problem(
            *(input_fn, "keras-input-fn", "migrate cannot see whether it takes params"),
            "Define it in the program as a function of params, which returns a tf.data.Dataset",
        )
    return named


def _reads_size_alone(source: Source, function: ast.FunctionDef) -> bool:
    uses = [source.parent(use) for use in source.uses("params", function)]
    return "params" in parameters_of(function) and all(
        isinstance(up, ast.Subscript) and ast.unparse(up.slice) == "'batch_size'" for up in uses
    )


def _with_params(
    source: Source,
    site: Site,
    input_fn: ast.expr,
    batch: ast.expr,
    functions: Sequence[ast.FunctionDef],
) -> Text:
    params = site.arguments.get("params")
    if functions and all(_reads_size_alone(source, each) for each in functions):
        return lambda: f"{source.code(input_fn)}({{'batch_size': {source.code(batch)}}})"
    is_known = params is None or _is_known_at(source, site, input_fn, params)
    if _uses_tpu_params(source) or not is_known:
        source.problem(
            *(input_fn, "keras-input-fn", "its params hold more than is known where it is called"),
            "Let the input_fn use params['batch_size'] alone, and return a tf.data.Dataset",
        )
    return lambda: (
        f"{source.code(input_fn)}("
        + (f"{{**{source.code(params)}, " if params is not None else "{")
        + f"'batch_size': {source.code(batch)}}})"
    )


def _is_known_at(source: Source, site: Site, place: ast.expr, value: ast.expr) -> bool:
    return site.function is source.function_of(place) or all(
        name in source.aliases or name == "FLAGS" or name.isupper() for name in names_in(value)
    )


def _uses_tpu_params(source: Source, names: Sequence[str] = ("context", "use_tpu")) -> bool:
    """Whether input code reads params that TPUEstimator adds, other than the batch size."""
    functions = nodes_in(source.tree, ast.FunctionDef)
    of_models = [each for each in functions if "mode" in parameters_of(each)]
    nodes = {*ast.walk(source.tree)}.difference(*map(ast.walk, of_models))
    keys = [each.slice for each in nodes if isinstance(each, ast.Subscript)]
    keys += [key for each in nodes if isinstance(each, ast.Call) for key in _key_of_get(each)]
    return any(getattr(each, "value", "") in names for each in keys)


def _key_of_get(call: ast.Call) -> list[ast.expr]:
    return call.args[:1] if method_of(call) in ("get", "pop") else []


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
    """Replaces the params of an input function by the batch size, if it reads nothing else."""
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
