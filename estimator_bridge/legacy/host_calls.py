"""Functions of a TPU model that run on the host: `host_call` and `eval_metrics`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.legacy.requirements import argument_names, takes_any_number
from tf2_engine import tf_compat
from tf2_engine.types import Graph, Nest, Object, Op, Session, Tensor

HostCall: TypeAlias = tuple[Callable[..., Nest], Sequence[Tensor] | Mapping[str, Tensor]]


class HostCallHook(tf.compat.v1.train.SessionRunHook):
    """Runs the ops of a host call in every step, and flushes the summaries at the end."""

    def __init__(self, tensors: Nest) -> None:
        self._tensors = tensors
        self._create_writers: list[Op] = []
        self._flush_writers: list[Op] = []

    def begin(self) -> None:
        self._create_writers = tf_compat.summary_writer_initializers()
        self._flush_writers = [
            tf.raw_ops.FlushSummaryWriter(writer=op.inputs[0]) for op in self._create_writers
        ]

    def after_create_session(self, session: Session, coord: Object) -> None:
        session.run(self._create_writers)

    def before_run(self, run_context: Object) -> tf.compat.v1.train.SessionRunArgs:
        return tf.compat.v1.train.SessionRunArgs(self._tensors)

    def end(self, session: Session) -> None:
        session.run(self._flush_writers)


def check_host_call(name: str, host_call: Object) -> None:
    if host_call is None:
        return
    what = f"`TPUEstimatorSpec.{name}`"
    if not isinstance(host_call, (tuple, list)) or len(host_call) != 2:
        raise errors.InvalidSpec(f"{what} must be a pair (function, tensors), got {host_call!r}.")
    function, tensors = host_call
    if not callable(function):
        raise errors.WrongType(
            f"{what}: the first element of the pair must be a function, got {function!r}."
        )
    if not isinstance(tensors, (tuple, list, dict)):
        raise errors.InvalidSpec(
            f"{what}: the second element of the pair, the tensors, must be a list, tuple or dict, "
            f"got {tensors!r}."
        )
    if isinstance(tensors, dict) or takes_any_number(function):
        return
    names = argument_names(function)
    if len(names) != len(tensors):
        raise errors.SignatureMismatch(
            f"{what}: there are {len(tensors)} tensors, but the function takes {len(names)} "
            f"arguments, {names}. Give a tensor for each argument."
        )


def call_host_fn(host_call: HostCall) -> Nest:
    function, tensors = host_call
    tensors = _read_before_counting(tensors)
    return function(**tensors) if isinstance(tensors, Mapping) else function(*tensors)


def _read_before_counting(tensors: Nest) -> Nest:
    """Copies tensors that depend on the global step, before the step is incremented.

    Otherwise a summary that is written every N steps could be written twice or not at all.
    """
    graph = tf.compat.v1.get_default_graph()
    variable = tf.compat.v1.train.get_global_step(graph)
    # A step that was created eagerly belongs to no graph.
    is_here = getattr(variable, "graph", None) is graph
    updates = list(updates_of_step(graph, variable.op)) if is_here else []
    if not updates:
        return tensors

    def read(tensor: Tensor) -> Tensor:
        is_number = isinstance(tensor, tf.Tensor) and (
            tensor.dtype.is_floating or tensor.dtype.is_integer
        )
        if not is_number or variable.op not in sources(tensor.op):
            return tensor
        if sources(tensor.op, control=True).intersection(updates):
            return tensor  # the program itself reads the step after the update
        # A variable that is not a resource is updated in place, which would also change the tensor.
        copied = tf.raw_ops.DeepCopy(x=tensor)
        for update in updates:
            tf_compat.run_after(update, copied.op)
        return copied

    return tf.nest.map_structure(read, tensors)


def updates_of_step(graph: Graph, step: Op) -> Iterator[Op]:
    """Finds the ops that update the global step, given the op that creates its variable."""
    for op in graph.get_operations():
        kind = op.type.removesuffix("VariableOp")
        # A loop gives its body the variable through an op.
        if kind not in ("Assign", "AssignAdd", "AssignSub") or step not in sources(op.inputs[0].op):
            continue
        if kind != "Assign" or step in sources(op.inputs[1].op):
            yield op


def sources(op: Op, control: bool = False) -> set[Op]:
    """Finds the ops on which an op depends, including itself; `control` follows control edges."""
    seen, waiting = {op}, [op]
    while waiting:
        each = waiting.pop()
        before = {tensor.op for tensor in each.inputs} | set(each.control_inputs if control else ())
        waiting += before - seen
        seen |= before
    return seen
