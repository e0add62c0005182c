"""`Estimator`, the base class: training, evaluation, prediction, checks and signals."""

from __future__ import annotations

import functools
import os
import pathlib
import signal
import threading
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.programs import houses
from compat_tests.support.base_jobs import make
from estimator_bridge import errors, estimator
from estimator_bridge.runtime.estimator.base_estimator import Estimator


def test_a_job_trains_evaluates_and_predicts(tmp_path: pathlib.Path) -> None:
    """Training lowers the loss, from input_fns without arguments, and predictions are in order."""
    job = make(tmp_path)
    before = job.evaluate(lambda: houses.data(10))
    job.train(houses.data, steps=200)
    after = job.evaluate(lambda: houses.data(10), name="again")

    assert before["global_step"] == 0
    assert set(after) == {"error", "loss", "global_step"}
    assert after["global_step"] == 200
    assert after["loss"] < before["loss"] / 2
    singles = list(job.predict(lambda: houses.data(3)))
    batches = list(job.predict(lambda: houses.data(3), yield_single_examples=False))
    assert len(singles) == 3 * houses.BATCH
    np.testing.assert_array_equal(
        [each["price"] for each in singles], np.concatenate([each["price"] for each in batches])
    )
    assert job.eval_dir("again") == os.path.join(job.model_dir, "eval_again")
    assert job.get_variable_value("hidden").shape == (5, 4)
    assert {"hidden", "output", "global_step"} <= set(job.get_variable_names())


def test_predict_keys_choose(tmp_path: pathlib.Path) -> None:
    """Only the requested predictions are returned; keys without any raise an error with a list."""
    job = make(tmp_path)

    (sample, *_) = job.predict(lambda: houses.data(1), predict_keys=["double"])
    assert set(sample) == {"double"}
    with pytest.raises(errors.InvalidInput, match=r"double.*price"):
        next(job.predict(lambda: houses.data(1), predict_keys=["cost"]))


def test_functions_take_what_they_like(tmp_path: pathlib.Path) -> None:
    """Input_fn and model_fn may take any of their arguments, in any order, also as partials."""
    seen: dict[str, Any] = {}

    def input_fn(config: Any, mode: str, params: Any, size: int) -> Any:
        seen.update(mode=mode, rate=params["rate"], dir=config.model_dir, size=size)
        return tf.ones([2, 1])  # features alone, as tensors

    def model_fn(params: Any, mode: str, features: Any) -> Any:
        weight = tf.get_variable("weight", [])
        loss = tf.reduce_mean(tf.square(features * weight - params["rate"]))
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
        return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    job = Estimator(model_fn, str(tmp_path), params={"rate": 3.0})
    job.train(functools.partial(input_fn, size=7), steps=20)

    assert seen == {"mode": "train", "rate": 3.0, "dir": str(tmp_path), "size": 7}
    assert job.params == {"rate": 3.0}
    assert job.latest_checkpoint().endswith("model.ckpt-20")


def test_a_metric_may_not_be_named_loss(tmp_path: pathlib.Path) -> None:
    def with_loss(features: Any, labels: Any, mode: str) -> Any:
        loss = tf.reduce_mean(labels)
        return estimator.EstimatorSpec(
            mode, loss=loss, eval_metric_ops={"loss": tf.metrics.mean(loss)}
        )

    with pytest.raises(errors.InvalidInput, match="name `loss` is not allowed"):
        Estimator(with_loss, str(tmp_path / "taken")).evaluate(lambda: houses.data(1))


def test_a_scaffold_keeps_its_own_local_init_op(tmp_path: pathlib.Path) -> None:
    """A scaffold's own local_init_op runs in evaluation beside the initialisation of metrics."""

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        start = tf.get_variable(
            "start", [], initializer=tf.zeros_initializer(), collections=["others"]
        )
        return estimator.EstimatorSpec(
            mode,
            loss=tf.reduce_mean(labels),
            eval_metric_ops={"start": tf.metrics.mean(start.read_value())},
            scaffold=tf.train.Scaffold(local_init_op=start.assign(5.0)),
        )

    assert Estimator(model_fn, str(tmp_path)).evaluate(lambda: houses.data(2))["start"] == 5.0


# --- SIGTERM ----------------------------------------------------------------------------


def test_an_error_puts_the_handler_back(tmp_path: pathlib.Path) -> None:
    def fail() -> Any:
        raise KeyError("no data")

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyError, match="no data"):
        make(tmp_path).train(fail, steps=1)
    assert signal.getsignal(signal.SIGTERM) is before


def test_threads_train_without_a_handler(tmp_path: pathlib.Path) -> None:
    """A training outside of the main thread, which alone may have handlers, runs without one."""
    job = make(tmp_path)
    thread = threading.Thread(target=lambda: job.train(houses.data, steps=2))
    thread.start()
    thread.join()

    assert job.latest_checkpoint().endswith("model.ckpt-2")
