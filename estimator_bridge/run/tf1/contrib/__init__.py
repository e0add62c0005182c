"""Implements the parts of `tf.contrib` that programs use and that no other package has."""
