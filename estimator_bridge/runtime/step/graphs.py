"""The graph that a step is built in, and the config of the sessions that run it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import tensorflow.compat.v1 as tf

from tf2_engine import tf_compat
from tf2_engine.types import Graph, Strategy


@contextlib.contextmanager
def new_graph(
    seed: int | None,
    device_fn: Callable[[tf.Operation], str] | None = None,
    strategy: Strategy | None = None,
) -> Iterator[Graph]:
    """Opens a graph with its seed set and a global step, as Estimators have it.

    Args:
        device_fn: returns the device of an op; None leaves it to the session.
        strategy: the strategy whose scope is opened in the graph; None opens none.
    """
    with (
        tf.Graph().as_default() as graph,
        graph.device(device_fn),
        contextlib.nullcontext() if strategy is None else tf_compat.estimator_scope(strategy),
    ):
        tf.set_random_seed(seed)
        tf.get_variable(
            tf.GraphKeys.GLOBAL_STEP,
            shape=[],
            dtype=tf.int64,
            initializer=tf.zeros_initializer(),
            trainable=False,
            use_resource=True,
            collections=[tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.GLOBAL_STEP],
        )
        yield graph


def default_session_config(strategy: Strategy | None = None) -> tf.ConfigProto:
    """Returns the session config of an Estimator whose RunConfig has none."""
    config = tf.ConfigProto(allow_soft_placement=True)
    if strategy is not None:
        # Its devices are named already; by default a session has one CPU.
        config.device_count["CPU"] = len(tf.config.list_logical_devices("CPU"))
    config.graph_options.rewrite_options.meta_optimizer_iterations = 1
    return config
