"""Chooses the strategy of a program that can run with or without a TPU."""

from __future__ import annotations

import tensorflow as tf

from tf2_engine.types import Object, Strategy


def tpu_strategy(resolver: Object) -> Strategy:
    """Connects to a TPU and returns its TPUStrategy. Without a TPU, returns the current strategy.

    Args:
        resolver: a `TPUClusterResolver`, or None if there is no TPU, as
            `tf2_engine.training.TPUClusterResolver` returns.
    """
    if resolver is None:
        strategy: Strategy = tf.distribute.get_strategy()
        return strategy
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)
