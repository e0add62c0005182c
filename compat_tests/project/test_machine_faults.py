"""With a clock that jumps, nothing is lost."""

from __future__ import annotations

import pathlib
import time
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from compat_tests.programs import houses
from compat_tests.support.base_jobs import make


@pytest.mark.full
@pytest.mark.parametrize("jump", [-86_400.0, 365 * 86_400.0])
def test_a_clock_that_jumps_costs_nothing(
    jump: float, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training whose clock is set back, or forward, in its middle ends with its last step saved.

    The next one goes on from there, though its files are of another time.
    """
    real = time.time

    class Jump(tf.train.SessionRunHook):
        def __init__(self) -> None:
            self._steps = 0

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self._steps += 1
            if self._steps == 3:
                monkeypatch.setattr(time, "time", lambda: real() + jump)

    job = make(tmp_path)
    job.train(houses.data, steps=6, hooks=[Jump()])
    assert job.latest_checkpoint().endswith("model.ckpt-6")
    monkeypatch.setattr(time, "time", real)
    make(tmp_path).train(houses.data, steps=2)
    assert job.latest_checkpoint().endswith("model.ckpt-8")
