"""The names of `tf.compat.v1.estimator.inputs`: both are left out."""

from __future__ import annotations

from estimator_bridge import left_out

__all__: list[str] = []

__getattr__ = left_out.refuse("tf.estimator.inputs", left_out.INPUTS)
