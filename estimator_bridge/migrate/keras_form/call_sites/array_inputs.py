"""Turns `numpy_input_fn` and `pandas_input_fn`, which feed arrays through queues, into datasets."""

from __future__ import annotations

import ast

from estimator_bridge.migrate.keras_form.program_text.source import (
    Source,
    Text,
    arguments,
    returned_by,
)

NAMES = ("numpy_input_fn", "pandas_input_fn")

_ORDER = "x y batch_size num_epochs shuffle queue_capacity num_threads target_column"
_BATCH_SIZE = "128"
_CAPACITY = "1000"
"""Default of `queue_capacity`; the new program passes it to `shuffle`."""


def dataset(source: Source, input_fn: ast.expr, made_by: ast.expr) -> Text | None:
    """Returns the code of the dataset if the input function feeds arrays; None otherwise.

    If `input_fn` is a name, then `made_by`, the value of this name, becomes a function that returns
    the dataset.
    """
    call = _call(source, input_fn)
    if call is not None:
        return _dataset(source, call)
    call = _call(source, made_by) or _returned_by(source, made_by)
    if call is None:
        return None
    write = _dataset(source, call)
    source.replace(call, lambda: f"lambda: {write()}")
    return lambda: f"{source.code(input_fn)}()"


def _call(source: Source, node: ast.AST | None) -> ast.Call | None:
    if not isinstance(node, ast.Call) or not source.called(node).startswith("estimator."):
        return None
    return node if source.called(node).endswith(NAMES) else None


def _returned_by(source: Source, node: ast.expr) -> ast.Call | None:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return None
    return _call(source, returned_by(source.function(node.func.id)))


def _dataset(source: Source, call: ast.Call) -> Text:
    """Keeps the order of unshuffled rows and lets a batch span two epochs, as a queue does."""
    by_name, others = arguments(call, _ORDER.split())
    source.done.update(ast.walk(call.func))
    shuffle = by_name.get("shuffle")
    if others or "x" not in by_name or not isinstance(getattr(shuffle, "value", None), bool):
        source.problem(
            *(call, "keras-input-fn", "migrate cannot see what it feeds or whether it shuffles"),
            "Write its arguments by name, and shuffle=True or shuffle=False",
        )
        return lambda: ""
    shuffles = isinstance(shuffle, ast.Constant) and shuffle.value
    note = (call.lineno, "rows are shuffled by tf.data, so in another order")
    if shuffles and note not in source.notes:
        source.notes.append(note)

    def write() -> str:
        code = {key: source.code(value) for key, value in by_name.items()}
        x = f"dict({code['x']})" if source.called(call).endswith("pandas_input_fn") else code["x"]
        rows = x if code.get("y", "None") == "None" else f"({x}, {code['y']})"
        steps = [f"tf.data.Dataset.from_tensor_slices({rows})"]
        steps += [f".shuffle({code.get('queue_capacity', _CAPACITY)})"] if shuffles else []
        epochs = code.get("num_epochs", "1")
        if epochs != "1":
            steps.append(f".repeat({'' if epochs == 'None' else epochs})")
        return "".join([*steps, f".batch({code.get('batch_size', _BATCH_SIZE)})"])

    return write
