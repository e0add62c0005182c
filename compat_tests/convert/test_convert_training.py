"""Training from a converted checkpoint continues as if the checkpoint had not been converted."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import tf2_engine
from compat_tests.programs import clicks, jobs
from compat_tests.support.conversions import spec_with
from compat_tests.support.legacy_specs import OURS
from estimator_bridge import convert, estimator
from estimator_bridge.translation.read_spec import read_spec
from estimator_bridge.translation.translate import output_shapes, translate

BATCH = 8
ROWS = {"users": 11, "items": 6}

OPTIMIZERS = {
    "Adagrad": OURS.AdagradParameters(0.25),
    "Adam": OURS.AdamParameters(0.0625),
    "Ftrl": OURS.FtrlParameters(0.25),
    "AdagradMomentum": OURS.AdagradMomentumParameters(0.125, 0.5),
}
QUICK = ("Adam", "Ftrl")
"""Optimizers with two slots, of which Adam has powers of its betas beside them."""


def spec_of(optimizer: str) -> Any:
    start = tf.random_uniform_initializer(-1.0, 1.0, seed=5)
    shapes = {name: (rows, 4) for name, rows in ROWS.items()}
    return spec_with(shapes, OPTIMIZERS[optimizer], initializer=start, combiner="sum")


def batch_of(step: Any) -> dict[str, Any]:
    """Returns the features of a step: two ids a sample."""
    step = tf.cast(step, tf.int64)
    features = {}
    for number, (name, rows) in enumerate(ROWS.items()):
        seed = tf.stack([step, tf.constant(number, tf.int64)])
        ids = tf.random.stateless_uniform([BATCH, 2], seed, 0, rows, tf.int64)
        indices = tf.where(tf.ones([BATCH, 2], tf.bool))
        features[name] = tf.SparseTensor(indices, tf.reshape(ids, [-1]), [BATCH, 2])
    return features


def loss_of(activations: Mapping[str, Any]) -> Any:
    """Returns a loss that has a gradient for every activation and none for anything else."""
    return sum(tf.reduce_sum(tf.square(activations[name] - 0.5)) for name in sorted(ROWS))


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    loss = loss_of(features)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, tf.train.get_global_step())
    return estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn(first: int) -> Callable[[Any], Any]:
    """Returns an input_fn whose first batch is that of the step `first`."""
    return lambda params: tf.data.Dataset.range(first, 1 << 40).map(batch_of)


def job_in(model_dir: pathlib.Path, spec: Any) -> Any:
    return estimator.tpu.TPUEstimator(
        model_fn=model_fn,
        config=clicks.run_config(estimator, str(model_dir)),
        train_batch_size=BATCH,
        params={},
        embedding_config_spec=spec,
    )


def train(engine: Any, steps: range) -> None:
    """Trains an engine on the batches of some steps, with the loss of the model."""
    for step in steps:
        engine.enqueue(batch_of(step))
        activations = engine.dequeue()
        with tf.GradientTape() as tape:
            tape.watch(activations)
            loss = loss_of(activations)
        engine.apply_gradients(tape.gradient(loss, activations))


@pytest.mark.parametrize(
    "optimizer",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.full) for name in OPTIMIZERS],
)
def test_training_goes_on_in_tf2_and_back(optimizer: str, tmp_path: pathlib.Path) -> None:
    """3 steps of TPUEstimator, 3 of the engine and 2 of TPUEstimator equal 8 of TPUEstimator."""
    spec = spec_of(optimizer)
    unbroken = job_in(tmp_path / "whole", spec)
    unbroken.train(input_fn(0), steps=3)
    convert.convert(str(tmp_path / "whole"), str(tmp_path / "objects"), spec=spec)
    unbroken.train(input_fn(3), steps=3)
    after_six = jobs.saved(unbroken)
    unbroken.train(input_fn(6), steps=2)

    legacy = read_spec(spec)
    translated = translate(legacy, training=True, step=lambda: tf.constant(0))
    engine = tf2_engine.TPUEmbedding(translated)
    engine.build_for(output_shapes(legacy, BATCH, num_cores=1))
    step = tf.Variable(0, dtype=tf.int64)
    root = tf.train.Checkpoint(embedding=engine, global_step=step, variables={})
    root.restore(tf.train.latest_checkpoint(str(tmp_path / "objects"))).assert_consumed()
    assert step.numpy() == 3
    train(engine, range(3, 6))
    step.assign(6)
    for name in ROWS:
        np.testing.assert_array_equal(
            after_six[name], engine.tables[name].variables["parameters"][0], err_msg=name
        )
    root.save(str(tmp_path / "saved" / "ckpt"))

    convert.convert(str(tmp_path / "saved"), str(tmp_path / "last"), spec=spec)
    last = job_in(tmp_path / "last", spec)
    last.train(input_fn(6), steps=2)

    wanted, actual = jobs.saved(unbroken), jobs.saved(last)
    assert actual["global_step"] == 8
    assert jobs.largest_difference(wanted, actual)[0] == 0.0
    assert jobs.largest_difference(wanted, after_six)[0] > 0.0
