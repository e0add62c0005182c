"""Trains with the native ops, and then with the ops for GPUs, whose kernels run on the CPU.

    python -m compat_tests.support.gpu_shim --quick|--thorough
    python -m compat_tests.support.gpu_shim [--raw] ARGUMENTS_OF_PYTEST

Trains the conformance cases of a tier. Prints every pair of arrays that differ in a bit, and then
the number of compared arrays and of lookups, including those of batches that are taken to lie on
the GPU.

With arguments of pytest, runs tests of the native ops with the ops for GPUs instead. With --raw,
all batches are taken to lie on the GPU.

This needs a process of its own, because the ops for GPUs replace the native ops once loaded.
"""

from __future__ import annotations

import ctypes
import dataclasses
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cases import sharing
from compat_tests.engine import test_conformance as conformance
from compat_tests.support.paths import ROOT
from tf2_engine.backends.host import driver, native_kernels
from tf2_engine.native import build, loading


def groups(rows: list[conformance.Combination]) -> list[conformance.Group]:
    """Lists the combinations that use native ops, in groups."""
    return sharing((row for row in rows if row.driver == "native"), "mode", "place", "kind")


def groups_without_queues(rows: list[conformance.Combination]) -> list[conformance.Group]:
    """Lists the same combinations, all in graphs, where batches wait in no queue."""
    in_graphs = (dataclasses.replace(row, mode="graph") for row in rows)
    return groups(list(dict.fromkeys(in_graphs)))


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


def use_kernels_of_gpus() -> None:
    """Makes engines that are built later use the native kernel set for GPUs."""
    driver.NativeKernels = native_kernels.NativeKernelsOnGpu  # type: ignore[misc]


def take_batches_for_raw() -> None:
    """Makes engines take every batch for one that lies on the GPU."""
    native_kernels.is_on_gpu = lambda tensor: True


def compare(rows: list[conformance.Combination]) -> None:
    """Trains with both kinds of ops, and compares the results."""
    on_host, raw = groups(rows), groups_without_queues(rows)
    expected = [arrays(group) for group in (*on_host, *raw)]
    library = load()
    actual = [arrays(group) for group in on_host]
    use_kernels_of_gpus()
    take_batches_for_raw()
    actual += [arrays(group) for group in raw]
    compared = 0
    for group, values, others in zip((*on_host, *raw), expected, actual, strict=True):
        for number, (value, other) in enumerate(zip(values, others, strict=True)):
            compared += 1
            if not np.array_equal(value, other, equal_nan=True):
                print("differs:", number, *group, value, other, sep="\n")  # noqa: T201
    lookups, raw_lookups = (library.NumLaunches(name) for name in (b"look_up", b"read_batch"))
    print(compared, "arrays,", lookups, "lookups,", raw_lookups, "reads")  # noqa: T201


def main() -> None:
    arguments = sys.argv[1:]
    if arguments in (["--quick"], ["--thorough"]):
        compare(conformance.quick() if arguments == ["--quick"] else conformance.THOROUGH)
        return
    library = load()
    use_kernels_of_gpus()
    if "--raw" in arguments:
        arguments.remove("--raw")
        take_batches_for_raw()
    status = pytest.main(["-q", "-p", "no:cacheprovider", *arguments])
    assert library.NumLaunches(b"look_up") > 0
    sys.exit(status)


if __name__ == "__main__":
    main()
