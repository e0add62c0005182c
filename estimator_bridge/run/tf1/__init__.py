"""Runs TensorFlow 1 programs, which see a `tensorflow` of their own with `tf.contrib`."""
