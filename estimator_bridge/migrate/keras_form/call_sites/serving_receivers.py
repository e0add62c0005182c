"""Turns serving receivers into arguments of exports: input specs and a function, or a graph."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from estimator_bridge.migrate.keras_form import rules
from estimator_bridge.migrate.keras_form.call_sites import input_functions
from estimator_bridge.migrate.keras_form.program_text.source import (
    Source,
    Text,
    is_docstring,
    names_in,
    nodes_in,
    returned_by,
)

_BUILDERS = (
    "estimator.build_parsing_serving_input_receiver_fn",
    "estimator.build_raw_serving_input_receiver_fn",
)
_RECEIVERS = ("estimator.ServingInputReceiver", "estimator.TensorServingInputReceiver")
_IN_GRAPHS = ("placeholder", "placeholder_with_default")


def arguments_of(source: Source, call: ast.Call, receiver: ast.expr) -> Text:
    """Writes the arguments of an export.

    A receiver that only computes features from a dict of placeholders becomes TensorSpecs and a
    function from tensors to features. Any other receiver runs unchanged in a graph.
    """
    made_by = source.value_of(receiver)
    if source.called(made_by) in _BUILDERS:
        return lambda: f"*{source.code(receiver)}()"
    function = input_functions.function_of(source, receiver)
    if function is not None and _write_specs(source, function):
        return lambda: f"*{source.code(receiver)}()"
    calls = [each for part in _reached(source, receiver) for each in nodes_in(part, ast.Call)]
    if not any(source.called(each) in (*_RECEIVERS, *_BUILDERS) for each in calls):
        source.problem(
            *(call, "keras-receiver", "none of the program's functions makes its receiver"),
            "Write a function that makes placeholders and returns "
            "ServingInputReceiver(features, receiver_tensors)",
        )
    for each in calls:
        if source.called(each) in _IN_GRAPHS:
            source.done.add(each.func)
            source.done.add(each)
            source.replace(each.func, f"tf.compat.v1.{source.called(each)}")
        elif source.called(each).startswith("lookup."):
            source.problem(
                *(
                    each,
                    "keras-receiver",
                    "the receiver function creates a new one for each export",
                ),
                "Make it outside of the function",
            )
    of_graph = source.need(rules.KERAS, "graph_receiver")
    return lambda: f"*{of_graph}({source.code(receiver)})"


def _reached(source: Source, receiver: ast.expr) -> Iterator[ast.AST]:
    parts: list[ast.AST] = [receiver, source.value_of(receiver) or receiver]
    for part in parts:  # grows in the loop
        yield part
        names = names_in(part) | {each.attr for each in nodes_in(part, ast.Attribute)}
        defined: list[ast.FunctionDef | ast.ClassDef] = [*nodes_in(source.tree, ast.FunctionDef)]
        defined += nodes_in(source.tree, ast.ClassDef)
        parts += [each for each in defined if each.name in names and each not in parts]


def _write_specs(source: Source, function: ast.FunctionDef) -> bool:
    """Makes a receiver return TensorSpecs and a function that maps tensors to features.

    Returns False if anything but the returned features depends on the placeholders.
    """
    *statements, _ = function.body
    call = returned_by(function)
    assigned = [each for each in statements if not is_docstring(each)]
    if source.called(call) not in _RECEIVERS or not isinstance(call, ast.Call):
        return False
    by_name = rules.known_arguments(source, call, "features receiver_tensors")
    features, received = by_name.get("features"), by_name.get("receiver_tensors")
    if features is None or not isinstance(received, ast.Name):
        return False
    name, value = received.id, source.value_of(received)
    placeholders = [each for each in nodes_in(function, ast.Call) if _is_placeholder(source, each)]
    is_simple = (
        isinstance(value, (ast.Dict, ast.DictComp))
        and all(isinstance(each, ast.Assign) for each in assigned)
        and {*placeholders} <= {*ast.walk(value)}
        # A TensorSpec has no default value, and sparse tensors need another class.
        and all(source.called(each) == "placeholder" for each in placeholders)
        and not any(name in names_in(each) for each in assigned)
        and name in names_in(features)
    )
    if not is_simple:
        return False
    for each in placeholders:
        source.done.update((each, each.func))
        rules.write(source, each, rules.placeholder)
    source.done.update((call, call.func))
    if isinstance(features, ast.Call) and _is_of(features, name):
        function_of = features.func
        source.replace(call, lambda: f"{name}, {source.code(function_of)}")
    else:
        source.replace(call, lambda: f"{name}, lambda {name}: {source.code(features)}")
    return True


def _is_placeholder(source: Source, call: ast.Call) -> bool:
    return source.called(call).endswith("placeholder") or source.called(call) in _IN_GRAPHS


def _is_of(call: ast.Call, name: str) -> bool:
    by_name = [ast.unparse(each) for each in call.args]
    return by_name == [name] and not call.keywords and name not in names_in(call.func)
