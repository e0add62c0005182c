"""Runs a model's host_call, which usually writes summaries, after each step in every mode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from tf2_engine import tf_compat
from tf2_engine.calls import call
from tf2_engine.types import Array, Function, Nest


class HostCall:
    """A host_call in its own graph and session, as legacy programs run it.

    Args:
        host_call: the `host_call` of a `ModelSpec`, or None.
    """

    def __init__(self, host_call: tuple[Function, Nest] | None) -> None:
        self._host_call = host_call
        self._session: tf.Session | None = None

    def run(self, of_replicas: Sequence[Nest], step: int) -> None:
        """Calls the function with the arguments of all replicas, joined along the first axis.

        Args:
            step: the global step that the host_call's function reads.
        """
        if self._host_call is None:
            return
        arrays = tf.nest.map_structure(
            lambda *parts: _joined([part.numpy() for part in parts]), *of_replicas
        )
        if self._session is None:
            self._build(self._host_call[0], arrays)
        assert self._session is not None
        feeds = zip(tf.nest.flatten(self._feeds), tf.nest.flatten(arrays), strict=True)
        self._session.run(self._ops, {self._step: step, **dict(feeds)})

    def close(self) -> None:
        if self._session is not None:
            self._session.run(self._flush)
            self._session.close()

    def _build(self, function: Function, arrays: Nest) -> None:
        with tf.Graph().as_default():
            self._feeds = tf.nest.map_structure(
                lambda array: tf.placeholder(array.dtype, array.shape), arrays
            )
            self._step = tf.placeholder(tf.int64, [])
            variable = tf.train.create_global_step()
            with tf.control_dependencies([variable.assign(self._step)]):
                results = call(function, self._feeds)
            ops = [*tf.nest.flatten(results), *(tf.summary.all_v2_summary_ops() or ())]
            self._ops = [op for op in ops if isinstance(op, tf.Tensor | tf.Operation)]
            writers = tf_compat.summary_writer_initializers()
            self._flush = [tf.raw_ops.FlushSummaryWriter(writer=op.inputs[0]) for op in writers]
            self._session = tf.Session()
            initializers = (tf.global_variables_initializer(), tf.local_variables_initializer())
            self._session.run([*initializers, *writers])


def _joined(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
