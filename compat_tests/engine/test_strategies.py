"""The documented training loops under strategies of one and two replicas."""

from __future__ import annotations

import numpy as np
import pytest

from compat_tests.support import fresh
from compat_tests.support.paths import ROOT

HERE = str(ROOT)

# Two logical devices must be asked for before TensorFlow starts, so the loops run in a process of
# their own.
PROGRAM = """
import sys
import numpy as np
import tensorflow as tf
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
from compat_tests.programs import loops
np.savez(sys.argv[1], **loops.run_all())
"""

ROUNDING = 8 * 2.0**-24 * 10
"""Of 10 steps in which at most 8 terms are summed in another order; values stay below 1."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """What the loops came to, by strategy and quantity."""
    path = str(tmp_path_factory.mktemp("loops") / "results.npz")
    fresh.code(PROGRAM, path, check=True, cwd=HERE)
    with np.load(path) as stored:
        return dict(stored)


@pytest.mark.parametrize("strategy", ["one_device", "mirrored"])
def test_the_training_loop_is_global(results: dict[str, np.ndarray], strategy: str) -> None:
    """Ten steps of the documented loop end where one replica with the whole batch ends."""
    expected, actual = results["default/table"], results[f"{strategy}/table"]

    assert np.any(expected != results["default/start"])
    np.testing.assert_allclose(actual, expected, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("strategy", ["one_device", "mirrored"])
@pytest.mark.parametrize("loop", ["evaluation", "enqueue_inside", "per_core"])
def test_other_loops_look_up_the_same(
    results: dict[str, np.ndarray], strategy: str, loop: str
) -> None:
    """Evaluation, enqueue inside `strategy.run` and by core look the whole batch up."""
    np.testing.assert_allclose(
        results[f"{strategy}/{loop}"], results[f"default/{loop}"], rtol=0, atol=ROUNDING
    )


@pytest.mark.parametrize("strategy", ["mirrored"])
def test_enqueue_in_control_flow_is_refused(results: dict[str, np.ndarray], strategy: str) -> None:
    """Inside a tf.cond inside `strategy.run` enqueue raises a RuntimeError that says so."""
    assert "`enqueue` is called inside control flow" in str(results[f"{strategy}/control_flow"])
