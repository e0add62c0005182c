"""Changes the last bits of a checkpoint, to measure what a model makes of rounding errors."""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge.checkpoint_files import Writer


def perturb(checkpoint: str, perturbed: str) -> str:
    """Writes a checkpoint whose floats are alternately the next ones up and down; returns it.

    Zeros stay, since no rounding has made them.
    """
    reader = tf.train.load_checkpoint(checkpoint)
    writer = Writer(perturbed)
    for name in sorted(reader.get_variable_to_shape_map()):
        value = np.asarray(reader.get_tensor(name))
        if value.dtype == np.float32:
            limits = np.where(np.arange(value.size) % 2, -np.inf, np.inf).reshape(value.shape)
            value = np.where(value == 0, value, np.nextafter(value, limits.astype(np.float32)))
        writer.value(name, value)
    writer.finish()
    return perturbed
