"""Runs TensorFlow 1 programs: their `import tensorflow` returns a module with `tf.contrib`."""
