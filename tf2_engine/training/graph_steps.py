"""Runs only those ops of a step on which the results depend, as a session does.

In contrast, a tf.function runs every op with a side effect, even if its result is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from tf2_engine.types import Graph, Nest, Object, Op, Tensor

v1 = tf.compat.v1


def traced(function: Callable[[Nest], Nest], inputs: Nest) -> Object:
    """Traces a function of tensors in its own graph, without automatic control dependencies."""

    def compute() -> Nest:
        # A model_fn may need gradients with respect to its features. Captured tensors have none.
        copies = tf.nest.map_structure(
            lambda each: None if each is None else tf.identity(each), inputs
        )
        return function(copies)

    step = v1.wrap_function(compute, [])
    # The initializer of a table that was created eagerly is None.
    initializers = [*filter(None, step.graph.get_collection(v1.GraphKeys.TABLE_INITIALIZERS))]
    if initializers:
        with tf.init_scope():  # Runs once, as at the start of a session.
            v1.wrap_function(lambda: _after(_imported(step.graph, initializers)), [])()
    return step


def needed(function: Callable[[Nest], Nest], inputs: Nest) -> Nest:
    """Computes a function's results in the current graph, with only the ops that the results need.

    Reads of variables come first, unless they must wait for another op. The other ops follow in the
    order of their creation.
    """
    step = traced(function, inputs)
    return packed(step.structured_outputs, _imported(step.graph, step.outputs))


def _imported(graph: Graph, wanted: Sequence[Tensor | Op]) -> list[Tensor | Op]:
    names = _needed_by(wanted)
    graph_def = graph.as_graph_def()
    kept = sorted((each for each in graph_def.node if each.name in names), key=_place)
    for each in kept:
        each.attr.pop("_class", None)  # colocation with an op that may not be copied
    del graph_def.node[:]
    graph_def.node.extend(kept)
    here = v1.get_default_graph()
    captured = {inner.op.name: outer for outer, inner in graph.captures}
    given = {name: here.capture(each) for name, each in captured.items() if name in names}
    elements = [each.name for each in wanted]
    copies = tf.graph_util.import_graph_def(graph_def, given, return_elements=elements, name="")
    return [*copies]


def _place(node: Object) -> int:
    """A sort key that puts reads of variables first, unless they must wait for another op.

    A session starts such reads at once, but a tf.function starts them in the order of their
    creation, possibly after an update of the variable. An example is the regularization loss of a
    batch norm's moving variance.
    """
    if node.op == "Placeholder":
        return 0
    return 1 if node.op == "ReadVariableOp" and len(node.input) == 1 else 2


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
    results = iter(tensors)
    return tf.nest.map_structure(
        lambda each: None if each is None else next(results), structure, expand_composites=True
    )
