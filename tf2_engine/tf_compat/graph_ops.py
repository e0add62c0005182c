"""Functions that read or change existing ops: inputs, attributes, kernels and scopes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import tensorflow as tf
from tensorflow.python.eager import cancellation as _cancellation
from tensorflow.python.eager import context as _eager_context
from tensorflow.python.eager import record as _record
from tensorflow.python.framework import kernels as _kernels
from tensorflow.python.ops import variable_scope as _variable_scope

from tf2_engine.types import Message, Object, Op, Tensor


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Runs ops eagerly even if a graph is the default."""
    with _eager_context.eager_mode():
        yield


def restart_random_ops() -> None:
    """Resets eager random ops that have a seed, so that they draw the same numbers as new ops."""
    _eager_context.context().clear_kernel_cache()


def rewire(stand_in: Tensor, source: Tensor) -> None:
    stand_in.op._update_input(0, source)


def replace_input(ops: Sequence[Op], old: Tensor, new: Tensor) -> None:
    for op in ops:
        for position, tensor in enumerate(op.inputs):
            if tensor.name == old.name:
                op._update_input(position, new)


def run_after(op: Op, before: Op) -> None:
    op._add_control_input(before)


LAYER_ATTRIBUTE = "_tpu_embedding_layer"
"""The attribute that tells graph rewrites which enqueue, receive and send ops belong together."""

ARGUMENT_ATTRIBUTE = "_tpu_input_identity"
"""The attribute by which stock marks the ops that pass the arguments of a TPU computation."""


def set_attributes(op: Op, attributes: Mapping[str, bool | int | str]) -> None:
    """Sets attributes on an op, even if its definition lacks them. Kernels can read them."""
    fields = {bool: "b", int: "i", str: "s"}
    for name, value in attributes.items():
        stored = value.encode() if isinstance(value, str) else value
        op._set_attr(name, tf.compat.v1.AttrValue(**{fields[type(value)]: stored}))


def kernels_of(op_type: str) -> Sequence[Message]:
    return _kernels.get_registered_kernels_for_op(op_type).kernel


def num_kernels(op_type: str) -> int:
    return len(kernels_of(op_type))


def has_ops(names: Collection[str]) -> bool:
    return all(hasattr(tf.raw_ops, name) for name in names)


def is_in_control_flow(op: Op) -> bool:
    return op._get_control_flow_context() is not None


_OPS_IN_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


def is_in_python(op_type: str) -> bool:
    return op_type in _OPS_IN_PYTHON


def ops_in_python(ops: Sequence[Op]) -> list[str]:
    return [op.name for op in ops if is_in_python(op.type) or _calls_python(op)]


def _calls_python(op: Op) -> bool:
    pending = [
        attribute
        for described in op.op_def.attr
        if described.type in ("func", "list(func)")
        for attribute in _as_list(op.get_attr(described.name))
    ]
    names = [attribute.name for attribute in pending]
    seen: set[str] = set()
    while names:
        name = names.pop()
        if name in seen or name not in op.graph._functions:
            continue
        seen.add(name)
        for node in op.graph._functions[name].cached_definition.node_def:
            if is_in_python(node.op):
                return True
            for value in node.attr.values():
                names += [each.name for each in (value.func, *value.list.func) if each.name]
            # A function call has the function's name as its op.
            names.append(node.op)
    return False


def _as_list(value: Object) -> list[Object]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def move_ops(ops: Sequence[Op], device: str, other: str) -> None:
    for op in ops:
        if op.device == device:
            op._set_device(other)


def variable_scope_only(name: str) -> contextlib.AbstractContextManager[object]:
    return _variable_scope._pure_variable_scope(name)


def name_scope_now() -> str:
    return str(tf.__internal__.get_name_scope())


could_record: Callable[[], bool] = _record.could_possibly_record
"""Whether a `tf.GradientTape` is open in this thread and may ask for gradients."""


class Cancellation:
    """Cancels calls to tf.functions from another thread."""

    def __init__(self) -> None:
        self._manager = _cancellation.CancellationManager()

    def possible(self) -> contextlib.AbstractContextManager[None]:
        return _cancellation.CancellationManagerContext(self._manager)

    def cancel(self) -> None:
        self._manager.start_cancel()
