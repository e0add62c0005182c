"""TensorFlow functions that need a graph, in versions that can be called outside a graph."""

from __future__ import annotations

import tensorflow as tf

from tf2_engine.types import Object, Tensor


def placeholder(*args: Object, **settings: Object) -> Tensor:
    """Creates a placeholder in the default graph.

    Outside a graph, the placeholder only has a type and a shape.
    """
    if not tf.executing_eagerly():
        return tf.compat.v1.placeholder(*args, **settings)
    with tf.Graph().as_default():
        return tf.compat.v1.placeholder(*args, **settings)


def shared_embedding_columns(*args: Object, **settings: Object) -> list[Object]:
    """Calls `tf.compat.v1.feature_column.shared_embedding_columns` in a graph."""
    with tf.Graph().as_default():
        columns: list[Object] = tf.compat.v1.feature_column.shared_embedding_columns(
            *args, **settings
        )
        return columns


def shared_embeddings(*args: Object, **settings: Object) -> list[Object]:
    """Calls `tf.feature_column.shared_embeddings` in a graph."""
    with tf.Graph().as_default():
        columns: list[Object] = tf.feature_column.shared_embeddings(*args, **settings)
        return columns
