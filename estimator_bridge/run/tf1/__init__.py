"""Runs programs of TensorFlow 1: a view of `tensorflow` that they alone see, with `tf.contrib`."""
