"""Tests of bit equality pass with other instruction sets, thread counts and libraries.

The processor determines which kernels TensorFlow selects, and therefore in which order they add.
Here one machine emulates several, and runs the tests of bit equality on each.
"""

from __future__ import annotations

import os

import pytest

from compat_tests.conftest import HAS_STOCK
from compat_tests.support import fresh
from compat_tests.support.paths import ROOT

MACHINES = {
    "AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "CXXFLAGS": "-mno-avx512f"},
    "SSE4.1, one thread": {
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "TF_NUM_INTEROP_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "CXXFLAGS": "-mno-avx512f -mno-avx2",
    },
    "no oneDNN, four threads": {
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "TF_NUM_INTEROP_THREADS": "4",
        "TF_NUM_INTRAOP_THREADS": "4",
    },
}

TESTS = (
    "engine/test_checkpoint_training.py",
    "engine/test_pipelining.py",
    "engine/test_reproducibility.py",
    "estimator/test_base_estimator_export.py",
    "estimator/test_device_loop.py",
    "estimator/test_estimator.py",
    "estimator/test_estimator_devices.py",
    "estimator/test_interchange.py",
    "keras",
    "native/test_native_steps.py",
    "run/test_examples.py",
    "serving",
    "verify/test_verify.py",
)

OF_STOCK = (
    "estimator/test_interchange_with_stock.py",
    "estimator/test_side_by_side_graph.py",
)


@pytest.mark.full
@pytest.mark.parametrize("machine", MACHINES)
def test_bit_equality_does_not_depend_on_the_machine(machine: str) -> None:
    """The quick tests that assert it pass on each, as far as this version tries them."""
    tests = TESTS + OF_STOCK if HAS_STOCK else TESTS
    options = ("-q", "-p", "no:cacheprovider", "-m", "not full and not soak and not elsewhere")
    paths = [f"compat_tests/{test}" for test in tests]
    environment = {**os.environ, **MACHINES[machine]}
    ran = fresh.python("-m", "pytest", *options, *paths, cwd=ROOT, env=environment)

    assert ran.returncode == 0, ran.stdout[-6000:]
