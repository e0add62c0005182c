"""Implements the parts of `tf.contrib` that programs use and no other package has."""
