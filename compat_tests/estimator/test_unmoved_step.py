"""Training warns if its train_op never moves the global step, so that `steps` never ends it."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from compat_tests.support import tpu_jobs
from estimator_bridge import estimator
from estimator_bridge.estimator import tpu

tf1 = tf.compat.v1

BATCHES = 250
"""How many there are, since the steps that are asked for never come."""


def input_fn(params: Any = None) -> tf.data.Dataset:
    ones = tf.data.Dataset.from_tensors((tf.ones([2, 1]), tf.ones([2, 1])))
    return ones.repeat(BATCHES)


def model(moves_every: int) -> Callable[..., Any]:
    """Returns a model_fn whose step moves in every so many runs of its train_op; 0 is never."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any = None) -> Any:
        weight = tf1.get_variable("weight", [1, 1])
        runs = tf1.get_variable("runs", [], tf.int64, tf1.zeros_initializer(), trainable=False)
        loss = tf.reduce_mean(tf.square(features @ weight - labels))
        step = tf1.train.get_global_step()
        with tf.control_dependencies([tf1.train.GradientDescentOptimizer(0.1).minimize(loss)]):
            train_op = tf1.assign_add(runs, 1)
            if moves_every:
                moved = tf.cast(tf.equal(train_op % moves_every, 0), tf.int64)
                train_op = tf1.assign_add(step, moved)
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def plain(model_fn: Any, folder: str, loop: int) -> Any:
    def of_estimator(features: Any, labels: Any, mode: str) -> Any:
        return model_fn(features, labels, mode).as_estimator_spec()

    return estimator.Estimator(of_estimator, folder)


def in_loops(model_fn: Any, folder: str, loop: int) -> Any:
    return tpu_jobs.make(model_fn, folder, 2, tpu={"iterations_per_loop": loop})


@pytest.mark.full
@pytest.mark.parametrize(
    ("make", "loop", "moves_every", "warnings"),
    [
        *((plain, 1, 0, 1), (plain, 1, 1, 0), (plain, 1, 90, 0)),
        *((in_loops, 1, 0, 1), (in_loops, 30, 0, 1), (in_loops, 120, 0, 1)),
        *((in_loops, 1, 90, 0), (in_loops, 120, 90, 0)),
    ],
)
def test_a_step_that_never_moves_is_named_once(
    make: Callable[..., Any],
    loop: int,
    moves_every: int,
    warnings: int,
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that moves now and then is not."""
    job = make(model(moves_every), str(tmp_path), loop)
    with caplog.at_level(logging.WARNING):
        job.train(input_fn, max_steps=BATCHES)
    messages = [each.getMessage() for each in caplog.records]
    warned = [each for each in messages if each.startswith("The global step is 0, as it was ")]
    assert len(warned) == warnings, messages
    assert all("tf.compat.v1.train.get_global_step()" in each for each in warned)
