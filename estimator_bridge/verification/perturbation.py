"""Changes the last bits of arrays, reproducibly."""

from __future__ import annotations

import zlib

import numpy as np

from tf2_engine.types import Array

ACTIVATION_ULPS = 16
"""Activations are changed by this many units in the last place.

Rounding changes them by less. So perturbed activations cross thresholds, such as a relu's 0, that
rounding could cross. The measured effect is divided by the same number.
"""
VARIABLE_ULPS = 1
"""Trained variables are changed by this many units in the last place."""


def perturbed(name: str, array: Array, ulps: int) -> Array:
    """Moves each element of a float32 array up or down by `ulps` floats, at random.

    Zeros and non-finite values stay. The choice is seeded by the name, so that a row that does not
    move between two steps does not move here either.
    """
    if array.dtype != np.float32 or not ulps:
        return array
    up = np.random.default_rng(zlib.crc32(name.encode())).integers(0, 2, array.shape, np.int8)
    bits = np.ascontiguousarray(array).view(np.int32) + np.where(up, ulps, -ulps).astype(np.int32)
    # Floats of one sign are ordered like their bits.
    moved = bits.view(np.float32).reshape(array.shape)
    keep = (np.abs(array) < np.finfo(np.float32).tiny * 4) | ~np.isfinite(array)
    return np.where(keep | ~np.isfinite(moved), array, moved)
