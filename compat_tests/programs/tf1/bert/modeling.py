"""A small transformer that makes the calls of BERT's `modeling`."""

import tensorflow as tf


def layer_norm(inputs, name=None):
    return tf.contrib.layers.layer_norm(
        inputs=inputs, begin_norm_axis=-1, begin_params_axis=-1, scope=name
    )


def initializer(stddev=0.02):
    return tf.truncated_normal_initializer(stddev=stddev, seed=3)


def pooled_output(ids, mask, vocabulary, size):
    """Returns [batch, size] of [batch, length] ids."""
    length = ids.shape[1].value
    with tf.variable_scope("bert"):
        with tf.variable_scope("embeddings"):
            table = tf.get_variable(
                "word_embeddings", [vocabulary, size], initializer=initializer()
            )
            words = tf.gather(table, ids)
            places = tf.get_variable(
                "position_embeddings", [length, size], initializer=initializer()
            )
            words = tf.nn.dropout(layer_norm(words + tf.expand_dims(places, 0)), keep_prob=1.0)
        with tf.variable_scope("encoder"), tf.variable_scope("layer_0"):
            query, key, value = (
                tf.layers.dense(words, size, name=name, kernel_initializer=initializer())
                for name in ("query", "key", "value")
            )
            scores = tf.matmul(query, key, transpose_b=True) / float(size) ** 0.5
            scores += (1.0 - tf.expand_dims(tf.to_float(mask), 1)) * -10000.0
            attended = tf.matmul(tf.nn.softmax(scores), value)
            words = layer_norm(attended + words)
            inner = tf.layers.dense(
                words, 2 * size, activation=tf.nn.relu, kernel_initializer=initializer()
            )
            words = layer_norm(
                words + tf.layers.dense(inner, size, kernel_initializer=initializer())
            )
        with tf.variable_scope("pooler"):
            first = tf.squeeze(words[:, 0:1, :], axis=1)
            return tf.layers.dense(
                first, size, activation=tf.tanh, kernel_initializer=initializer()
            )


def checkpoint_map(variables, checkpoint):
    """Returns the names that variables and a checkpoint share."""
    there = {name for name, _ in tf.train.list_variables(checkpoint)}
    names = [variable.name.split(":")[0] for variable in variables]
    return {name: name for name in names if name in there}
