"""Training from a converted checkpoint continues as if the checkpoint had not been converted."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.programs import jobs
from compat_tests.support import tiers, tpu_jobs
from compat_tests.support.conversions import OPTIMIZERS, engine_of, spec_with
from estimator_bridge import convert

BATCH = 8
SHAPES = {"users": (11, 4), "items": (6, 4)}
QUICK = ("Adam", "Ftrl")
"""Optimizers with two slots, of which Adam has powers of its betas beside them."""


def batch_of(step: Any) -> dict[str, Any]:
    """Returns the features of a step: two ids a sample."""
    step = tf.cast(step, tf.int64)
    features = {}
    for number, (name, (rows, _)) in enumerate(SHAPES.items()):
        seed = tf.stack([step, tf.constant(number, tf.int64)])
        ids = tf.random.stateless_uniform([BATCH, 2], seed, 0, rows, tf.int64)
        indices = tf.where(tf.ones([BATCH, 2], tf.bool))
        features[name] = tf.SparseTensor(indices, tf.reshape(ids, [-1]), [BATCH, 2])
    return features


def loss_of(activations: Mapping[str, Any]) -> Any:
    """Returns a loss that has a gradient for every activation and none for anything else."""
    return sum(tf.reduce_sum(tf.square(activations[name] - 0.5)) for name in sorted(SHAPES))


def model_fn(features: Any, labels: Any, mode: str) -> Any:
    return tpu_jobs.spec(mode, loss_of(features))


def input_fn(first: int) -> Callable[[Any], Any]:
    """Returns an input_fn whose first batch is that of the step `first`."""
    return lambda params: tf.data.Dataset.range(first, 1 << 40).map(batch_of)


def train(engine: Any, steps: range) -> None:
    """Trains an engine on the batches of some steps, with the loss of the model."""
    for step in steps:
        engine.enqueue(batch_of(step))
        activations = engine.dequeue()
        with tf.GradientTape() as tape:
            tape.watch(activations)
            loss = loss_of(activations)
        engine.apply_gradients(tape.gradient(loss, activations))


@pytest.mark.parametrize("optimizer", tiers.quick(QUICK, (*QUICK, "Adagrad", "AdagradMomentum")))
def test_training_goes_on_in_tf2_and_back(optimizer: str, tmp_path: pathlib.Path) -> None:
    """3 steps of TPUEstimator, 3 of the engine and 2 of TPUEstimator equal 8 of TPUEstimator."""
    spec = spec_with(SHAPES, OPTIMIZERS[optimizer])
    unbroken, last = (
        tpu_jobs.make(model_fn, tmp_path / name, BATCH, embedding_config_spec=spec)
        for name in ("unbroken", "last")
    )
    unbroken.train(input_fn(0), steps=3)
    convert.convert(str(tmp_path / "unbroken"), str(tmp_path / "objects"), spec=spec)
    unbroken.train(input_fn(3), steps=3)
    after_six = jobs.saved(unbroken)
    unbroken.train(input_fn(6), steps=2)

    engine, step = engine_of(spec, BATCH), tf.Variable(0, dtype=tf.int64)
    root = tf.train.Checkpoint(embedding=engine, global_step=step, variables={})
    root.restore(tf.train.latest_checkpoint(str(tmp_path / "objects"))).assert_consumed()
    assert step.numpy() == 3
    train(engine, range(3, 6))
    step.assign(6)
    for name in SHAPES:
        np.testing.assert_array_equal(
            after_six[name], engine.tables[name].variables["parameters"][0], err_msg=name
        )
    root.save(str(tmp_path / "saved" / "ckpt"))

    convert.convert(str(tmp_path / "saved"), str(tmp_path / "last"), spec=spec)
    last.train(input_fn(6), steps=2)

    wanted, actual = jobs.saved(unbroken), jobs.saved(last)
    assert actual["global_step"] == 8
    assert jobs.largest_difference(wanted, actual)[0] == 0.0
    assert jobs.largest_difference(wanted, after_six)[0] > 0.0
