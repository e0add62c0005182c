"""Finds the calls by which a program creates its estimators, and their arguments."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Sequence

from estimator_bridge.migrate.keras_form.canned_estimators import (
    NOT_CARRIED,
    Canned,
    canned,
    class_name,
)
from estimator_bridge.migrate.keras_form.program_text.source import (
    NotSimple,
    Source,
    arguments,
    bound_in,
    every_argument,
    is_docstring,
    is_none,
    method_of,
    nodes_in,
    parameters_of,
    returned_by,
)

ESTIMATOR = (
    "model_fn model_dir config params use_tpu train_batch_size eval_batch_size predict_batch_size"
)

_PLAIN = "estimator.Estimator"
_SIMPLE = (ast.Name, ast.Constant, ast.Attribute, ast.Subscript)
_ORDER_OF_PLAIN = "model_fn model_dir config params warm_start_from"


@dataclasses.dataclass(eq=False)
class Site:
    """The place where a program creates an estimator.

    Attributes:
        arguments: the arguments by name. For a canned estimator, the names of arguments that belong
            to a part of the model begin with the part, such as `dnn_optimizer`.
        config: the arguments of the estimator's RunConfig, by name.
        function: the function that contains the call, or the module.
        canned: the class of a canned estimator; None for a TPUEstimator.
        name: the new program's variable for the model.
    """

    call: ast.Call
    arguments: dict[str, ast.expr]
    config: dict[str, ast.expr]
    function: ast.AST
    canned: Canned | None = None
    class_name: str = "Model"
    name: str = "model"

    @property
    def has_tables(self) -> bool:
        return not is_none(self.arguments.get("embedding_config_spec"))


def find(source: Source) -> Site | None:
    """Finds the place where the program creates its estimator.

    If there are several estimators and none is canned, raises NotSimple. If there are several and
    one is canned, or if there is none, reports a problem and returns None.
    """
    all_calls = [*nodes_in(source.tree, ast.Call)]
    calls = [each for each in all_calls if _is_estimator(source, each)]
    refused = [each for each in all_calls if class_name(source, each) in NOT_CARRIED]
    for each in refused:
        source.problem(
            *(each, "keras-estimator-class", "its model is not supported"),
            "Leave it out, or migrate to the bridge form",
        )
    if len(calls) == 1:
        return _site(source, calls[0])
    if calls and not any(canned(source, each) for each in calls):
        raise NotSimple(calls[1], "the program creates several estimators")
    if not refused or calls:
        place = calls[1] if calls else source.tree
        count = f"{len(calls)} estimators" if calls else "no estimator"
        source.problem(
            *(place, "keras-estimators", f"the program makes {count}"),
            "Make one, in one place, by its name below `tf.estimator`, or migrate to the tf2 form",
        )
    return None


def _site(source: Source, call: ast.Call) -> Site:
    kind = canned(source, call)
    order = ESTIMATOR.split() if kind is None else kind.order
    if source.called(call) == _PLAIN:
        order = _ORDER_OF_PLAIN.split()
    by_name = all_arguments(source, call, order)
    config = _config(source, by_name.get("config"))
    if kind is not None:
        by_name = {kind.shared_name(key): value for key, value in by_name.items()}
    return Site(call, by_name, config, source.function_of(call), kind)


def _is_estimator(source: Source, node: ast.AST) -> bool:
    is_one = source.called(node) in ("estimator.TPUEstimator", _PLAIN)
    return is_one or canned(source, node) is not None


def trains(source: Source, function: ast.AST) -> bool:
    return any(
        _is_estimator(source, node) or source.called(node) == "estimator.train_and_evaluate"
        for node in ast.walk(function)
    )


def _config(source: Source, config: ast.expr | None) -> dict[str, ast.expr]:
    config = _of_function(source, followed(source, config))
    replaced: dict[str, ast.expr] = {}
    while method_of(config) == "replace":
        assert isinstance(config, ast.Call)
        replaced = all_arguments(source, config, []) | replaced
        config = followed(source, config.func.value)  # type: ignore[attr-defined]
    if isinstance(config, ast.Call) and source.called(config).endswith("RunConfig"):
        return all_arguments(source, config, ["model_dir"]) | replaced
    if config is not None and not is_none(config):
        source.problem(
            *(
                config,
                "keras-config",
                "the source does not show the values of the estimator's config",
            ),
            "Write RunConfig(...) where the estimator is made",
        )
    return {}


def _of_function(source: Source, node: ast.expr | None) -> ast.expr | None:
    """Returns the value that the function called by `node` returns, and drops the function.

    If the function does more than return a value, or is used elsewhere, `node` is returned.
    """
    name = node.func if isinstance(node, ast.Call) else None
    function = source.function(name.id) if isinstance(name, ast.Name) else None
    if function is None or not isinstance(node, ast.Call) or function.decorator_list:
        return node
    body = [each for each in function.body if not is_docstring(each)]
    given = every_argument(node, parameters_of(function))
    is_simple = all(isinstance(each, _SIMPLE) for each in given.values())
    is_alone = len(body) == len(source.uses(function.name, source.tree)) == 1
    returned = returned_by(function)
    if not is_simple or not is_alone or {*given} != {*parameters_of(function)}:
        return node
    if returned is None or not {*source.changed_names(returned, node)} <= {*given}:
        return node
    for parameter, value in given.items():
        for use in source.uses(parameter, function):
            source.replace(use, lambda value=value: source.code(value))  # type: ignore[misc]
    source.drop(function)
    source.moved.add(function)
    return returned


def all_arguments(source: Source, call: ast.Call, order: Sequence[str]) -> dict[str, ast.expr]:
    by_name, others = arguments(call, order)
    for each in others:
        if isinstance(each, ast.keyword) and each.arg is not None:
            by_name[each.arg] = each.value
        else:
            source.problem(
                *(
                    call,
                    "keras-argument",
                    f"the source does not show what {ast.unparse(each)} contains",
                ),
                "Write the arguments by name",
            )
    return by_name


def followed(source: Source, node: ast.expr | None, is_used: bool = True) -> ast.expr | None:
    """Returns the value that is assigned to a name, and drops the assignment.

    `is_used` is True if the new program contains the value in another place. Reports a value whose
    names have other values there.
    """
    if not isinstance(node, ast.Name):
        return node
    scope = source.scope_of(node.id, node)
    is_inside = scope is not source.function_of(node)  # so it may run after any assignment
    assignments = [
        each
        for each in nodes_in(scope, ast.Assign)
        if bound_in(each) == [node.id] and source.scope_of(node.id, each) is scope
        if is_inside or each.lineno < node.lineno
    ]
    if len(assignments) != 1:
        return node
    (assignment,) = assignments
    source.drop(assignment)
    if is_used:
        source.moved.add(assignment)
        for name in source.changed_names(assignment.value, node)[:1]:
            source.problem(
                *(assignment.value, "keras-missing-name"),
                f"{name} has another value where {node.id} is used",
                f"Write the call where {node.id} is used",
            )
    return assignment.value
