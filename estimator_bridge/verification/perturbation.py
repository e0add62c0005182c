"""Changes the last bits of arrays, reproducibly."""

from __future__ import annotations

import zlib

import numpy as np

from tf2_engine.types import Array

ACTIVATION_ULPS = 16
"""Activations are changed by this many units in the last place.

Rounding changes activations by less, so the changed values cross every threshold that rounding
could make them cross, such as the 0 of a relu.
"""
VARIABLE_ULPS = 1
"""Trained variables are changed by this many units in the last place."""


def perturbed(name: str, array: Array, ulps: int) -> Array:
    """Moves each element of a float32 array up or down by `ulps` floats, at random.

    Zeros and non-finite values stay the same. The name is the seed, so repeated calls for an array
    choose the same directions.
    """
    if array.dtype != np.float32 or not ulps:
        return array
    up = np.random.default_rng(zlib.crc32(name.encode())).integers(0, 2, array.shape, np.int8)
    bits = np.ascontiguousarray(array).view(np.int32) + np.where(up, ulps, -ulps).astype(np.int32)
    # Floats of one sign are ordered like their bits.
    moved = bits.view(np.float32).reshape(array.shape)
    keep = (np.abs(array) < np.finfo(np.float32).tiny * 4) | ~np.isfinite(array)
    return np.where(keep | ~np.isfinite(moved), array, moved)
