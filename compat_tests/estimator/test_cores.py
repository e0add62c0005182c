"""Emulated cores: the same job on one core and on several."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.programs import clicks, jobs
from estimator_bridge import errors, estimator
from estimator_bridge.legacy import parameters

STEPS = 10
# A gradient is a mean over 16 samples of sums of at most 4 rows, taken in another order: at most
# 64 terms and so 64 rounding errors of at most 2^-24 of the largest term, in each of 10 steps.
# Weights, gradients and steps here stay below 1.
TOLERANCE = 64 * 2.0**-24 * STEPS
ONE_BATCH = estimator.tpu.InputPipelineConfig.PER_HOST_V1

OPTIMIZERS = {
    "SGD": parameters.StochasticGradientDescentParameters(0.1),
    "Adagrad": parameters.AdagradParameters(0.1),
    "non-lazy Adam": parameters.AdamParameters(0.01, lazy_adam=False),
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name == "Adagrad" else pytest.mark.full)
        for name in OPTIMIZERS
    ],
)
def one_core(request: Any, tmp_path_factory: Any) -> tuple[Any, Any]:
    """Returns an optimizer, and a job that one core trained with it."""
    optimizer = OPTIMIZERS[request.param]
    job = make(str(tmp_path_factory.mktemp("one") / "job"), optimizer, None)
    job.train(clicks.input_fn, max_steps=STEPS)
    return optimizer, job


def make(model_dir: str, optimizer: Any, num_shards: int | None) -> Any:
    """Returns a job whose cores split one batch, on which the model depends as a mean alone."""
    columns = clicks.columns()
    config = estimator.tpu.RunConfig(
        model_dir=model_dir,
        tf_random_seed=1,
        save_checkpoints_steps=1000,
        tpu_config=estimator.tpu.TPUConfig(
            num_shards=num_shards, per_host_input_for_training=ONE_BATCH
        ),
    )
    return estimator.tpu.TPUEstimator(
        clicks.make_model_fn(
            estimator,
            columns,
            cross_shard=True,
            batch_norm=False,
            optimizer=tf.train.GradientDescentOptimizer,
        ),
        config=config,
        train_batch_size=jobs.BATCH,
        eval_batch_size=jobs.BATCH,
        predict_batch_size=jobs.BATCH,
        embedding_config_spec=estimator.tpu.experimental.EmbeddingConfigSpec(
            feature_columns=columns, optimization_parameters=optimizer
        ),
    )


@pytest.mark.parametrize(
    "num_shards",
    [pytest.param(1, marks=pytest.mark.full), 2, pytest.param(4, marks=pytest.mark.full)],
)
def test_cores_share_a_batch(
    one_core: tuple[Any, Any], num_shards: int, tmp_path: pathlib.Path
) -> None:
    """Cores that split each batch have the same results as one core."""
    optimizer, base = one_core
    start = jobs.continue_from(jobs.first_checkpoint(base), str(tmp_path / "job"))
    job = make(start, optimizer, num_shards)
    job.train(clicks.input_fn, max_steps=STEPS)

    difference, name = jobs.largest_difference(jobs.saved(base), jobs.saved(job))
    assert difference <= TOLERANCE, f"{num_shards} cores, {name}: {difference}"
    expected, metrics = (one.evaluate(clicks.short_input_fn, steps=5) for one in (base, job))
    for metric, value in expected.items():
        assert abs(value - metrics[metric]) <= TOLERANCE, f"{num_shards} cores: {metric}"
    ours, theirs = (
        [sample["p"] for sample in one.predict(clicks.short_input_fn)] for one in (base, job)
    )
    np.testing.assert_allclose(ours, theirs, atol=TOLERANCE, rtol=0)


def test_each_core_gets_a_batch_of_its_own(tmp_path: pathlib.Path) -> None:
    """In the PER_HOST_V2 mode a step of two cores takes two batches of half the size."""
    sizes: list[int] = []
    steps: list[Any] = []

    def counted(params: dict[str, Any]) -> Any:
        sizes.append(params["batch_size"])
        return clicks.input_fn(params)

    columns = clicks.columns()
    inner = clicks.make_model_fn(estimator, columns, cross_shard=True)

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
        sizes.append(params["batch_size"])
        steps.append(features["age"])
        return inner(features, labels, mode, params)

    job = jobs.make(str(tmp_path), tpu_options={"num_shards": 2, "iterations_per_loop": 1})
    job._model_fn = model_fn
    seen: list[Any] = []

    class Hook(tf.train.SessionRunHook):
        def before_run(self, run_context: Any) -> Any:
            return tf.train.SessionRunArgs(steps)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            seen.extend(run_values.results)

    job.train(counted, steps=2, hooks=[Hook()])

    assert sizes == [jobs.BATCH // 2] * 3
    with tf.Graph().as_default(), tf.Session() as session:
        for number, age in enumerate(seen):
            expected = session.run(clicks.batch_of(number, jobs.BATCH // 2)[0]["age"])
            np.testing.assert_array_equal(expected, age, err_msg=f"batch {number}")


def test_unnamed_layers_have_the_same_variables_on_every_core(tmp_path: pathlib.Path) -> None:
    """Variables of layers, batch normalisation and optimizer slots are created once."""
    names = []
    for shards in (None, 2):
        job = jobs.make(str(tmp_path / str(shards)), tpu_options={"num_shards": shards})
        job.train(clicks.input_fn, steps=1)
        names.append(set(job.get_variable_names()))

    assert names[0] == names[1]


def test_cores_that_differ_are_refused(tmp_path: pathlib.Path) -> None:
    """A model_fn that sums across replicas on one core alone is an error, not a hang."""
    calls: list[int] = []
    inner = clicks.make_model_fn(estimator, clicks.columns(), cross_shard=True)

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
        calls.append(1)
        if len(calls) == 2:
            tf.tpu.cross_replica_sum(tf.constant(1.0))
        return inner(features, labels, mode, params)

    job = jobs.make(str(tmp_path), tpu_options={"num_shards": 2})
    job._model_fn = model_fn
    with pytest.raises(errors.CoresDiffer, match=r"different numbers of cross-replica sums"):
        job.train(clicks.input_fn, steps=1)


def test_only_the_first_core_moves_averages(tmp_path: pathlib.Path) -> None:
    """Core 0's part of each batch updates averages once per step, as in a TPU's saved copy."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        weight = tf.get_variable("weight", [], initializer=tf.ones_initializer())
        seen = tf.get_variable("seen", [], trainable=False, initializer=tf.zeros_initializer())
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign_add(seen, tf.reduce_sum(features)))
        loss = tf.reduce_sum(features * weight)
        optimizer = tf.tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(0.25))
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            train_op = optimizer.minimize(loss, tf.train.get_global_step())
        return estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    job = estimator.tpu.TPUEstimator(
        model_fn,
        str(tmp_path),
        estimator.tpu.RunConfig(
            tpu_config=estimator.tpu.TPUConfig(num_shards=2, per_host_input_for_training=ONE_BATCH)
        ),
        use_tpu=True,
        train_batch_size=2,
    )
    job.train(lambda params: tf.data.Dataset.from_tensors([1.0, 16.0]).repeat(), steps=3)

    assert job.get_variable_value("seen") == 3 * 1.0
    # The mean over cores of the gradients, 1 and 16.
    assert job.get_variable_value("weight") == 1.0 - 3 * 0.25 * 8.5
