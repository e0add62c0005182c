"""Changes arrays in their last bits, the same way each time; numpy alone."""

from __future__ import annotations

import zlib

import numpy as np

from tf2_engine.types import Array

ACTIVATION_ULPS = 16
"""Units in the last place by which activations are changed.

More than rounding changes them, so that a threshold which rounding could cross, as that of a relu
at 0, is crossed here too. What the change moves is scaled down by as much again.
"""
VARIABLE_ULPS = 1
"""Units in the last place by which trained variables are changed beside activations."""


def perturbed(name: str, array: Array, ulps: int) -> Array:
    """Returns a float32 array whose elements are so many floats up or down, by chance.

    Zeros stay, since no rounding has made them, and so do values that are not finite. Equal rows
    of the same place are changed alike, so that rows which do not move do not here either.

    Args:
        name: of the array; seeds the choice of up and down.
    """
    if array.dtype != np.float32 or not ulps:
        return array
    up = np.random.default_rng(zlib.crc32(name.encode())).integers(0, 2, array.shape, np.int8)
    bits = np.ascontiguousarray(array).view(np.int32) + np.where(up, ulps, -ulps).astype(np.int32)
    # Floats of one sign are ordered as their bits are.
    moved = bits.view(np.float32).reshape(array.shape)
    keep = (np.abs(array) < np.finfo(np.float32).tiny * 4) | ~np.isfinite(array)
    return np.where(keep | ~np.isfinite(moved), array, moved)
