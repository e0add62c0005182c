"""A small residual network of `tf.layers`."""

import tensorflow as tf


def batch_norm_relu(inputs, is_training, relu=True, init_zero=False):
    """Normalizes, and cuts negative values off."""
    gamma = tf.zeros_initializer() if init_zero else tf.ones_initializer()
    inputs = tf.layers.batch_normalization(
        inputs=inputs, axis=3, momentum=0.9, epsilon=1e-5, center=True, scale=True,
        training=is_training, fused=True, gamma_initializer=gamma)  # fmt: skip
    return tf.nn.relu(inputs) if relu else inputs


def conv2d(inputs, filters, kernel_size, strides=1):
    return tf.layers.conv2d(
        inputs=inputs, filters=filters, kernel_size=kernel_size, strides=strides, padding="SAME",
        use_bias=False, kernel_initializer=tf.variance_scaling_initializer(seed=1))  # fmt: skip


def network(inputs, is_training):
    """Returns logits [batch, 3] of images [batch, height, width, 3]."""
    inputs = batch_norm_relu(conv2d(inputs, 8, 3), is_training)
    shortcut = inputs
    inputs = batch_norm_relu(conv2d(inputs, 8, 3), is_training)
    inputs = batch_norm_relu(conv2d(inputs, 8, 3), is_training, relu=False, init_zero=True)
    inputs = tf.nn.relu(inputs + shortcut)
    inputs = tf.layers.max_pooling2d(inputs=inputs, pool_size=2, strides=2, padding="SAME")
    inputs = tf.reduce_mean(inputs, [1, 2])
    return tf.layers.dense(inputs, 3, kernel_initializer=tf.random_normal_initializer(seed=2))
