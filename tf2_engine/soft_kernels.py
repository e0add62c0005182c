"""Loads kernels for ops that TensorFlow's wheels register without kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from tf2_engine import errors
from tf2_engine.native import build


def load(what: str, source: str, taken: Sequence[str]) -> ctypes.CDLL:
    """Loads a library, and compiles it first unless the cache or the wheel contains it.

    `taken` lists ops of the library that already have a kernel. If the list is not empty, an error
    is raised, because an op with two kernels cannot run. The message of the error starts with
    `what`.
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
