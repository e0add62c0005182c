"""Steps that run only the ops that their results need, as a session does.

A tf.function runs every op with an effect, whether or not its result is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from tf2_engine.types import Graph, Nest, Object, Op, Tensor

v1 = tf.compat.v1


def traced(function: Callable[[Nest], Nest], inputs: Nest) -> Object:
    """Traces a function of tensors in its own graph, without automatic control dependencies."""

    def compute() -> Nest:
        # A model_fn may need gradients of its features, and captured tensors have none.
        copies = tf.nest.map_structure(
            lambda each: None if each is None else tf.identity(each), inputs
        )
        return function(copies)

    step = v1.wrap_function(compute, [])
    # A table that is made eagerly has None there.
    initializers = [*filter(None, step.graph.get_collection(v1.GraphKeys.TABLE_INITIALIZERS))]
    if initializers:
        with tf.init_scope():  # Once, as a session does at its start.
            v1.wrap_function(lambda: _after(_imported(step.graph, initializers)), [])()
    return step


def needed(function: Callable[[Nest], Nest], inputs: Nest) -> Nest:
    """Computes the results of a function in the current graph, by only the ops that they need.

    Ops with side effects run in the order in which the function created them.
    """
    step = traced(function, inputs)
    return packed(step.structured_outputs, _imported(step.graph, step.outputs))


def _imported(graph: Graph, wanted: Sequence[Tensor | Op]) -> list[Tensor | Op]:
    """Copies tensors or ops, and the ops that they need, into the current graph."""
    names = _needed_by(wanted)
    graph_def = graph.as_graph_def()
    kept = [each for each in graph_def.node if each.name in names]
    for each in kept:
        each.attr.pop("_class", None)  # says where an op is that may not be needed
    del graph_def.node[:]
    graph_def.node.extend(kept)
    here = v1.get_default_graph()
    captured = {inner.op.name: outer for outer, inner in graph.captures}
    given = {name: here.capture(each) for name, each in captured.items() if name in names}
    elements = [each.name for each in wanted]
    copies = tf.graph_util.import_graph_def(graph_def, given, return_elements=elements, name="")
    return [*copies]


def _after(ops: Sequence[Op]) -> Tensor:
    with tf.control_dependencies(ops):
        return tf.constant(True)


def _needed_by(wanted: Sequence[Tensor | Op]) -> set[str]:
    names: set[str] = set()
    waiting = [each if isinstance(each, tf.Operation) else each.op for each in wanted]
    while waiting:
        op = waiting.pop()
        if op.name not in names:
            names.add(op.name)
            waiting += [*(each.op for each in op.inputs), *op.control_inputs]
    return names


def packed(structure: Nest, tensors: Sequence[Tensor]) -> Nest:
    """Replaces the tensors of a structure by other tensors, in order; None stays."""
    results = iter(tensors)
    return tf.nest.map_structure(
        lambda each: None if each is None else next(results), structure, expand_composites=True
    )
