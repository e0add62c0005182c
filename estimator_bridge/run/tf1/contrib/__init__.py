"""Implementations of the parts of `tf.contrib` that programs use and no other package has.

`contrib_names` lists where each name comes from.
"""
