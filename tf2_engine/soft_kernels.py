"""Loads libraries with kernels for ops that TensorFlow's wheels register without kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from tf2_engine import errors
from tf2_engine.native import build


def load(what: str, source: str, taken: Sequence[str]) -> ctypes.CDLL:
    """Loads a library. Compiles it if neither the cache nor the wheel has it.

    `taken` are the library's ops that already have a kernel: with a second kernel, every use would
    fail. `what` begins the message.
    """
    if taken:
        raise errors.InvalidSpec(
            f"{what} cannot be made: this TensorFlow already has kernels for "
            f"{', '.join(taken[:3])}{', ...' if len(taken) > 3 else ''}, for example because there "
            "is a TPU, or another copy was loaded."
        )
    try:
        _, path = build.load(source)
    except build.CannotBuild as error:
        raise build.CannotBuild(f"{what} cannot be made: {error}.") from error
    return ctypes.CDLL(str(path))
