"""Trains with the native ops, and then with the ops for GPUs, whose kernels run on the CPU.

    python -m compat_tests.support.gpu_shim [arguments of pytest]

Prints every pair of arrays that differ in a bit, and then the number of compared arrays and of
kernel launches. With arguments, runs tests of the native ops with the ops for GPUs instead. This
needs a process of its own, because the ops for GPUs replace the native ops once loaded.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cases import sharing
from compat_tests.engine import test_conformance as conformance
from compat_tests.support.paths import ROOT
from tf2_engine.native import build, loading


def groups() -> list[conformance.Group]:
    """Lists the quick tier's combinations that use native ops, in groups."""
    rows = [row for row in conformance.quick() if row.driver == "native"]
    return sharing(rows, "mode", "place")


def arrays(group: conformance.Group) -> list[Any]:
    """Trains, and returns the activations of each step and the final tables."""
    flat: list[Any] = tf.nest.flatten(list(conformance.train.__wrapped__(group)))
    return flat


def load() -> Any:
    """Loads the ops for GPUs as ops for CPUs, and returns the library."""
    library = build.library(str(ROOT / "compat_tests" / "support" / "gpu_shim.cc"))
    loading.load()
    tf.load_op_library(str(library))
    return ctypes.CDLL(str(library))


def compare() -> None:
    """Trains with both kinds of ops, and compares the results."""
    expected = [arrays(group) for group in groups()]
    library = load()
    compared = 0
    for group, values in zip(groups(), expected, strict=True):
        for number, (value, other) in enumerate(zip(values, arrays(group), strict=True)):
            compared += 1
            if not np.array_equal(value, other, equal_nan=True):
                print("differs:", number, *group, value, other, sep="\n")  # noqa: T201
    print(compared, "arrays,", library.NumLaunches(), "launches")  # noqa: T201


def main() -> None:
    if len(sys.argv) == 1:
        compare()
        return
    library = load()
    status = pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]])
    assert library.NumLaunches() > 0
    sys.exit(status)


if __name__ == "__main__":
    main()
