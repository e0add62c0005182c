"""Compares the graphs that stock's TPUEmbedding and the engine build, op for op."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from compat_tests.support.tpu_programs import Case, Ours, Stock, build

# The differences that are allowed.


class Difference(NamedTuple):
    """Ops that only one of the two graphs has, and the reason."""

    side: str
    reason: str
    holds: Callable[[Any], bool]


TABLES = ("videos", "only", "table_0", "table_1", "table_2")


def is_whole_table(op: Any) -> bool:
    """Returns whether an op is the variable of a whole table or slot, or reads such a variable."""
    if op.type == "ReadVariableOp":
        return is_whole_table(op.inputs[0].op)
    if op.type != "VarHandleOp":
        return False
    table, _, slot = op.get_attr("shared_name").decode().partition("/")
    return table in TABLES and not slot[-2:].startswith("_")


def is_read_back(op: Any) -> bool:
    """Returns whether an op reads a variable just after a retrieved value was assigned to it."""
    assigned = [other for other in op.control_inputs if other.type == "AssignVariableOp"]
    return op.type == "ReadVariableOp" and any(
        assign.inputs[1].op.type.startswith("RetrieveTPUEmbedding") for assign in assigned
    )


def is_initialized_check(op: Any) -> bool:
    if op.type in ("Assert", "LogicalNot"):
        return is_initialized_check(op.inputs[0].op)
    return op.type == "IsTPUEmbeddingInitialized"


def is_group(op: Any) -> bool:
    grouped = ("AssignVariableOp", "Load", "Enqueue")
    return op.type == "NoOp" and any(
        other.type.startswith(grouped) or is_group(other) for other in op.control_inputs
    )


def is_unused_size(op: Any) -> bool:
    return op.type == "StridedSlice" and not op.outputs[0].consumers()


def is_filling(op: Any) -> bool:
    """Returns whether an op creates a slot's initial values by repeating a number."""
    if op.type == "PlaceholderWithDefault":
        return all(is_filling(user) for user in op.outputs[0].consumers())
    return op.type == "Fill" and all(
        user.type == "AssignVariableOp" for user in op.outputs[0].consumers()
    )


def filled_with(op: Any) -> tuple[Any, ...] | None:
    """Describes rows that repeat one number, whether constant or filled; None for other ops."""
    if op.type == "Fill":
        (number,) = op.inputs[1].op.inputs
        rows, shape = tf.get_static_value(number), tuple(tf.get_static_value(op.inputs[0]))
    elif op.type == "Const" and op.outputs[0].shape.rank == 2:
        rows, shape = tf.get_static_value(op.outputs[0]), tuple(op.outputs[0].shape)
    else:
        return None
    return (
        ("filled", op.outputs[0].dtype, float(np.max(rows)), shape) if np.ptp(rows) == 0 else None
    )


DIFFERENCES = (
    Difference(
        "ours",
        "slots are filled with a number; a constant of this size would occupy memory permanently",
        is_filling,
    ),
    Difference(
        "stock",
        "its sharded variables have a handle for the whole table, for signatures of SavedModels",
        is_whole_table,
    ),
    Difference("stock", "it reads a variable after assigning a retrieved value", is_read_back),
    Difference(
        "ours",
        "it checks in graphs, too, that the TPU is not initialized; stock's check fails there",
        is_initialized_check,
    ),
    Difference("ours", "read_ids computes batch sizes, which nothing uses here", is_unused_size),
    Difference("ours", "a method returns one op that groups all its ops", is_group),
)

IGNORED_ATTRIBUTES = {
    "_has_manual_control_dependencies": "ours: marks the ops that a group waits for",
}


def removed(graph: tf.Graph, side: str) -> dict[Any, Difference]:
    """Maps the ops that may be in one graph only to the reasons."""
    reasons = {}
    for op in graph.get_operations():
        for difference in DIFFERENCES:
            if difference.side == side and difference.holds(op):
                reasons[op] = difference
    return reasons


class Graph:
    """The ops of a graph, without allowed differences, numbered by description.

    Attributes:
        counts: the number of ops with each description's number. Constants count only as inputs.
        descriptions: maps numbers to descriptions, in which inputs are numbers.
    """

    def __init__(self, graph: tf.Graph, side: str, numbers: dict[Any, int]) -> None:
        self._leave_out = removed(graph, side)
        self._numbers = numbers
        self._known: dict[Any, int] = {}
        self.descriptions: dict[int, Any] = {}
        self.counts = collections.Counter(
            self._number(op)
            for op in graph.get_operations()
            if op not in self._leave_out and op.type != "Const"
        )

    def _number(self, op: Any) -> int:
        if op not in self._known:
            description = filled_with(op) or (
                op.type,
                op.device,
                op.name if op.type == "Placeholder" else "",
                *(
                    f"{name}={str(value).strip()}"
                    for name, value in sorted(op.node_def.attr.items())
                    if name not in IGNORED_ATTRIBUTES
                ),
                *((self._number(source.op), source.value_index) for source in self._sources(op)),
                *sorted(self._number(o) for o in op.control_inputs if o not in self._leave_out),
            )
            number = self._numbers.setdefault(description, len(self._numbers))
            self._known[op], self.descriptions[number] = number, description
        return self._known[op]

    def _sources(self, op: Any) -> Iterator[Any]:
        for tensor in op.inputs:
            while tensor.op in self._leave_out and tensor.op.type == "Identity":
                tensor = tensor.op.inputs[0]
            yield tensor


def differences(stock: tf.Graph, ours: tf.Graph) -> list[str]:
    """Describes the ops that only one graph has, except those that differ only in their inputs."""
    numbers: dict[Any, int] = {}
    sides = {"stock": Graph(stock, "stock", numbers), "ours": Graph(ours, "ours", numbers)}
    alone = {
        "stock": sides["stock"].counts - sides["ours"].counts,
        "ours": sides["ours"].counts - sides["stock"].counts,
    }
    descriptions = []
    for side, counts in alone.items():
        for number, count in counts.items():
            op = sides[side].descriptions[number]
            used = {part[0] if isinstance(part, tuple) else part for part in op}
            if not used & set(counts):
                descriptions.append(f"{side} alone, {count} times: {op}")
    return descriptions


@functools.cache
def graphs(case: Case) -> tuple[tf.Graph, tf.Graph]:
    return build(Stock, case), build(Ours, case)


ENQUEUE = "EnqueueTPUEmbeddingArbitraryTensorBatch"
