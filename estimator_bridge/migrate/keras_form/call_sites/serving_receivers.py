"""Turns functions that make serving receivers into specs, and functions from those to features."""

from __future__ import annotations

import ast

from estimator_bridge.migrate.keras_form import rules
from estimator_bridge.migrate.keras_form.call_sites import input_functions
from estimator_bridge.migrate.keras_form.program_text.source import (
    Source,
    names_in,
    returned_by,
)

_PARSING = "estimator.build_parsing_serving_input_receiver_fn"
_RAW = "estimator.build_raw_serving_input_receiver_fn"


def check_receiver(source: Source, call: ast.Call, receiver: ast.expr) -> None:
    """Writes the receiver function of an export; adds a problem if it is none of placeholders."""
    made_by = source.called(source.value_of(receiver))
    if made_by == _PARSING:
        return
    if made_by == _RAW:
        source.problem(
            *(call, "keras-receiver", f"its receiver is made by {_RAW.rpartition('.')[2]}"),
            "Write it out: a function that makes the placeholders and returns "
            "ServingInputReceiver(features, features) of them",
        )
        return
    function = input_functions.function_of(source, receiver)
    if function is None or not write_receiver(source, function):
        source.problem(
            *(call, "keras-receiver", "its receiver is not a function of placeholders"),
            "Make placeholders, and return ServingInputReceiver(features, receiver_tensors)",
        )


def write_receiver(source: Source, function: ast.FunctionDef) -> bool:
    """Has a receiver function return TensorSpecs, and the function from tensors to features."""
    call = returned_by(function)
    if not isinstance(call, ast.Call) or not source.called(call).endswith("ServingInputReceiver"):
        return False
    by_name = rules.known_arguments(source, call, "features receiver_tensors")
    features, received = by_name.get("features"), by_name.get("receiver_tensors")
    if features is None or received is None:
        return False
    source.done.update((call, call.func))
    if isinstance(received, ast.Name):
        name = received.id
        if isinstance(features, ast.Call) and _is_of(features, name):
            function_of = features.func
            source.replace(call, lambda: f"{name}, {source.code(function_of)}")
        else:
            source.replace(call, lambda: f"{name}, lambda {name}: {source.code(features)}")
        return True
    if isinstance(received, ast.Dict):
        return _write_several(source, function, received, features)
    return False


def _is_of(call: ast.Call, name: str) -> bool:
    """Returns whether a call has a name as its only argument."""
    by_name = [ast.unparse(each) for each in call.args]
    return by_name == [name] and not call.keywords and name not in names_in(call.func)


def _write_several(
    source: Source, function: ast.FunctionDef, received: ast.Dict, features: ast.expr
) -> bool:
    """Writes the input specs and the serving function for a receiver with named placeholders."""
    names = [each.id for each in received.values if isinstance(each, ast.Name)]
    keys = [each.value for each in received.keys if isinstance(each, ast.Constant)]
    if len(names) != len(received.values) or len(keys) != len(names):
        return False
    later = [
        each
        for each in function.body[:-1]
        if not isinstance(each, ast.Expr) and names_in(each) & {*names}
    ]
    pad = " " * (function.col_offset + 2)
    source.done.update(later)
    taken = "".join(
        f"{pad}  {name} = received[{key!r}]\n" for name, key in zip(names, keys, strict=True)
    )
    last = function.body[-1]

    def write() -> str:
        body = "".join(source.block(each, len(pad) + 2) for each in later)
        return (
            f"\n{pad}def to_features(received):\n{taken}{body}{pad}  return "
            f"{source.code(features)}\n\n{pad}return {source.code(received)}, to_features\n"
        )

    first, _ = source.lines([*later, last][0])
    source.replace_span(first, source.lines(last)[1], write)
    return True
