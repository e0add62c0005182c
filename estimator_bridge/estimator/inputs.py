"""The names of `tf.compat.v1.estimator.inputs`: both are left out."""

from __future__ import annotations

from estimator_bridge.run import unsupported

__all__: list[str] = []

__getattr__ = unsupported.refuse("tf.estimator.inputs", unsupported.INPUTS)
