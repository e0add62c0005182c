"""Summaries of tensors, and of the members of collections."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable

import tensorflow.compat.v1 as tf

from tf2_engine.types import Tensor


def summarize_tensor(tensor: Tensor, tag: str | None = None) -> Tensor:
    """Summarizes a tensor: a scalar by its value, another one by a histogram."""
    name = tag or tensor.op.name
    # The parts of a partitioned variable, and names of scopes in a step, are no names of summaries.
    write = tf.summary.scalar if tensor.shape.rank == 0 else tf.summary.histogram
    return write(name, tensor)


def summarize_activation(op: Tensor) -> Tensor:
    """Summarizes an activation: a histogram, and after a ReLU the fraction of zeros."""
    if op.op.type in ("Relu", "Softplus", "Relu6"):
        tf.summary.scalar(f"{op.op.name}/zeros", tf.nn.zero_fraction(op))
    if op.op.type == "Relu6":
        sixes = tf.reduce_mean(tf.cast(tf.equal(op, 6.0), tf.float32))
        tf.summary.scalar(f"{op.op.name}/sixes", sixes)
    return tf.summary.histogram(f"{op.op.name}/activation", op)


def summarize_tensors(
    tensors: Iterable[Tensor], summarizer: Callable[[Tensor], Tensor] = summarize_tensor
) -> list[Tensor]:
    """Summarizes each of several tensors."""
    return [summarizer(tensor) for tensor in tensors]


def summarize_collection(
    collection: str,
    name_filter: str | None = None,
    summarizer: Callable[[Tensor], Tensor] = summarize_tensor,
) -> list[Tensor]:
    """Summarizes the tensors of a collection whose names fit a pattern from their beginning."""
    tensors = tf.get_collection(collection)
    if name_filter is not None:
        tensors = [each for each in tensors if re.match(name_filter, each.op.name)]
    return summarize_tensors(tensors, summarizer)


summarize_variables = functools.partial(summarize_collection, tf.GraphKeys.GLOBAL_VARIABLES)
summarize_weights = functools.partial(summarize_collection, tf.GraphKeys.WEIGHTS)
summarize_biases = functools.partial(summarize_collection, tf.GraphKeys.BIASES)
summarize_activations = functools.partial(
    summarize_collection, tf.GraphKeys.ACTIVATIONS, summarizer=summarize_activation
)
