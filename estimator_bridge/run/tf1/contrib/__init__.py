"""Replaces the parts of `tf.contrib` that TPUEstimator programs use and TensorFlow dropped.

Which name comes from where is in `contrib_names`.
"""
