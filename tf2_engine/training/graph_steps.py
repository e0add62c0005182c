"""Steps that run only the ops that their results need, as a session does.

A tf.function runs every op with an effect, whether or not its result is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from tf2_engine.types import Nest, Object, Tensor

v1 = tf.compat.v1


def traced(function: Callable[[Nest], Nest], inputs: Nest) -> Object:
    """Traces a function of tensors in a graph of its own, whose ops wait for no others."""

    def compute() -> Nest:
        # A model_fn may need gradients of its features, and captured tensors have none.
        copies = tf.nest.map_structure(
            lambda each: None if each is None else tf.identity(each), inputs
        )
        return function(copies)

    return v1.wrap_function(compute, [])


def needed(function: Callable[[Nest], Nest], inputs: Nest) -> Nest:
    """Computes the results of a function by the ops that these need, in the current graph.

    There the ops with an effect run in the order in which the function made them.
    """
    step = traced(function, inputs)
    names = _needed_by(step.outputs)
    graph_def = step.graph.as_graph_def()
    kept = [each for each in graph_def.node if each.name in names]
    for each in kept:
        each.attr.pop("_class", None)  # says where an op is that may not be needed
    del graph_def.node[:]
    graph_def.node.extend(kept)
    here = v1.get_default_graph()
    captured = {inner.op.name: outer for outer, inner in step.graph.captures}
    given = {name: here.capture(each) for name, each in captured.items() if name in names}
    wanted = [each.name for each in step.outputs]
    results = tf.graph_util.import_graph_def(graph_def, given, return_elements=wanted, name="")
    return packed(step.structured_outputs, results)


def _needed_by(tensors: Sequence[Tensor]) -> set[str]:
    names: set[str] = set()
    waiting = [each.op for each in tensors]
    while waiting:
        op = waiting.pop()
        if op.name not in names:
            names.add(op.name)
            waiting += [*(each.op for each in op.inputs), *op.control_inputs]
    return names


def packed(structure: Nest, tensors: Sequence[Tensor]) -> Nest:
    """Puts tensors in the places of those of a structure; None stays."""
    results = iter(tensors)
    return tf.nest.map_structure(
        lambda each: None if each is None else next(results), structure, expand_composites=True
    )
