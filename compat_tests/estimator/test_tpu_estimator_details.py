"""Details of TPUEstimator: arguments of functions, and padding of batches."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.programs import clicks, jobs
from compat_tests.support import tpu_jobs
from estimator_bridge import errors, estimator
from estimator_bridge.legacy import parameters

Modes = estimator.ModeKeys


# --- What functions are told --------------------------------------------------------------


def arguments_of_calls(tmp_path: pathlib.Path, input_mode: int, cores: int) -> dict[str, list[Any]]:
    """Returns the arguments of input_fn and model_fn of a plain model, by mode and function."""
    seen: dict[str, list[Any]] = {}

    def input_fn(params: Any, mode: str) -> Any:
        seen.setdefault(f"{mode} input", []).append(params)
        data = tf.data.Dataset.from_tensors(tf.ones([params["batch_size"], 1]))
        return data.repeat(4).map(lambda x: (x, x))

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        seen.setdefault(f"{mode} model", []).append((params, features.shape.as_list()))
        value = features * tf.get_variable("weight", [])
        loss = None if labels is None else tf.reduce_mean(value - labels)
        return tpu_jobs.spec(mode, loss, predictions={"p": value})

    tpu = {"num_shards": cores, "per_host_input_for_training": input_mode}
    job = tpu_jobs.make(model_fn, tmp_path, tpu=tpu, params={"own": 1})
    job.train(input_fn, steps=1)
    job.evaluate(input_fn, steps=1)
    assert len(list(job.predict(input_fn))) > 0
    assert job.params == {"own": 1}
    return seen


CONFIG = estimator.tpu.InputPipelineConfig


@pytest.mark.parametrize(
    ("input_mode", "train", "inference"),
    [
        # params["batch_size"] of input_fn and model_fn; calls of an input_fn; replicas of a call
        (CONFIG.PER_HOST_V1, (8, 4, 1, 2), (8, 4, 1, 2)),
        (CONFIG.PER_HOST_V2, (4, 4, 1, 2), (4, 4, 1, 2)),
        (CONFIG.PER_SHARD_V1, (4, 4, 2, 1), (8, 4, 1, 2)),
        (CONFIG.BROADCAST, (8, 8, 1, 2), (8, 8, 1, 2)),
    ],
)
def test_functions_are_told_of_the_cores(
    input_mode: int, train: Any, inference: Any, tmp_path: pathlib.Path
) -> None:
    """Functions get batch sizes, use_tpu and a context with the number of the call."""
    seen = arguments_of_calls(tmp_path, input_mode, 2)

    for mode, (batch_size, used, calls, replicas) in (
        (Modes.TRAIN, train),
        (Modes.EVAL, inference),
        (Modes.PREDICT, inference),
    ):
        inputs, models = seen[f"{mode} input"], seen[f"{mode} model"]
        assert [params["batch_size"] for params in inputs] == [batch_size] * calls, mode
        for index, params in enumerate(inputs):
            context = params["context"]
            host = "/replica:0/task:0/device:CPU:0"
            assert context.current_input_fn_deployment() == (host, index, calls, replicas), mode
            assert context.current_host == 0
            assert (context.num_replicas, context.num_hosts) == (2, 1)
            assert context.num_of_replicas_per_host == 2
            assert context.device_for_replica(1) == ("/task:0/device:CPU:0", 1)
            assert context.tpu_host_placement_function(host_id=0) == host
            with pytest.raises(RuntimeError, match="model_fn"):
                _ = context.device_assignment
            with pytest.raises(errors.InvalidInput, match="replica 2"):
                context.device_for_replica(2)
            with pytest.raises(errors.InvalidInput, match="host 1"):
                context.tpu_host_placement_function(1)
        assert len(models) == 1, f"{mode}: the model function is called once for all cores"
        for params, shape in models:
            assert (params["batch_size"], shape) == (used, [used, 1]), mode
            assert params["use_tpu"] is True
            assert params["own"] == 1
            assert params["context"].device_assignment is None
            with pytest.raises(RuntimeError, match="input_fn"):
                params["context"].current_input_fn_deployment()
            with pytest.raises(RuntimeError, match="input_fn"):
                _ = params["context"].current_host


class HParams:
    """Hyperparameters as in `tf.contrib.training`: attributes that are added and set."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __contains__(self, name: str) -> bool:
        return name in self.__dict__

    def add_hparam(self, name: str, value: Any) -> None:
        assert name not in self
        setattr(self, name, value)

    def set_hparam(self, name: str, value: Any) -> None:
        assert name in self
        setattr(self, name, value)


def test_a_rate_sees_the_step_before_it_is_counted(tmp_path: pathlib.Path) -> None:
    """A learning-rate function sees the steps 0 to 7, which move a row by 0 + 1 + ... + 7 = 28."""
    column = tf.tpu.experimental.embedding_column(
        tf.feature_column.categorical_column_with_identity("a", 3),
        2,
        initializer=tf.zeros_initializer(),
        learning_rate_fn=lambda step: tf.cast(step, tf.float32),
    )

    def input_fn(params: Any) -> Any:
        ids = tf.sparse.from_dense(tf.ones([params["batch_size"], 1], tf.int64))
        return tf.data.Dataset.from_tensors({"a": ids}).repeat()

    def model_fn(features: Any, mode: str) -> Any:
        loss = -tf.reduce_sum(tf.keras.layers.DenseFeatures([column])(features))
        return tpu_jobs.spec(mode, loss, 1.0)

    spec = estimator.tpu.experimental.EmbeddingConfigSpec(
        [column], parameters.StochasticGradientDescentParameters(1.0)
    )
    job = tpu_jobs.make(model_fn, tmp_path, 1, tpu={"num_shards": 1}, embedding_config_spec=spec)
    job.train(input_fn, max_steps=8)

    (name,) = [name for name in job.get_variable_names() if "a_embedding" in name]
    np.testing.assert_array_equal(job.get_variable_value(name), [[0, 0], [28, 28], [0, 0]])


def test_params_may_be_hparams(tmp_path: pathlib.Path) -> None:
    """Functions get a copy with the additions as attributes; the caller's object is not changed."""
    params = HParams(use_tpu="mine", rate=0.1)
    seen: list[Any] = []

    def input_fn(params: Any) -> Any:
        return tf.data.Dataset.from_tensors(tf.ones([params.batch_size, 1])).repeat()

    def model_fn(features: Any, mode: str, params: Any) -> Any:
        seen.append((params.batch_size, params.use_tpu, params.rate))
        return tpu_jobs.spec(mode, tf.reduce_mean(features * tf.get_variable("weight", [])))

    job = tpu_jobs.make(model_fn, tmp_path, params=params)
    job.train(input_fn, steps=1)

    assert seen == [(8, True, 0.1)]
    assert vars(params) == {"use_tpu": "mine", "rate": 0.1}


# --- Predictions --------------------------------------------------------------------------


@pytest.mark.parametrize(("last", "cores"), [(1, 1), (7, 2), (1, 2)])
def test_models_see_batches_of_one_size(last: int, cores: int, tmp_path: pathlib.Path) -> None:
    """The last batch is padded to a static shape for the model, and cut for the caller.

    This holds for dense, sparse and ragged features, also in nests. Predictions are in the order of
    the input, however many cores make them.
    """
    shapes: list[Any] = []

    def input_fn(params: Any) -> Any:
        size, rows = params["batch_size"], 2 * params["batch_size"] + last
        numbers = tf.range(rows)
        whole = {
            "dense": tf.cast(numbers, tf.float32),
            "nested": {"ragged": tf.RaggedTensor.from_row_lengths(numbers, tf.ones_like(numbers))},
            "sparse": tf.sparse.from_dense(tf.reshape(numbers + 1, [-1, 1])),
        }
        return tf.data.Dataset.from_tensor_slices(whole).batch(size)

    def model_fn(features: Any, mode: str, params: Any) -> Any:
        ragged = tf.cast(features["nested"]["ragged"].to_tensor(shape=[None, 1]), tf.float32)
        sparse = tf.cast(tf.sparse.to_dense(features["sparse"]), tf.float32)
        shapes.extend([features["dense"].shape.as_list(), features["sparse"].shape.as_list()[0]])
        size = params["batch_size"]
        # As models on TPUs are written: of the size that they were told.
        total = tf.reshape(features["dense"], [size, 1]) + tf.reshape(ragged, [size, 1])
        predictions = {"total": total + tf.reshape(sparse, [size, 1])}
        if cores == 1:
            predictions["all"] = tf.reshape(size, [])
        return estimator.tpu.TPUEstimatorSpec(mode, predictions=predictions)

    job = tpu_jobs.make(model_fn, tmp_path, tpu={"num_shards": cores})
    samples = list(job.predict(input_fn, predict_keys=["total"]))

    # tf.sparse.split leaves the number of rows open.
    assert shapes == [[8 // cores], 8 if cores == 1 else None]
    assert [float(each["total"][0]) for each in samples] == [3.0 * n + 1 for n in range(16 + last)]
    assert [set(each) for each in samples] == [{"total"}] * len(samples)
    batches = list(job.predict(input_fn, yield_single_examples=False))
    assert [len(batch["total"]) for batch in batches] == [8, 8, last]
    if cores == 1:
        with pytest.raises(errors.InvalidInput, match="yield_single_examples=False"):
            next(job.predict(input_fn))


def test_a_scalar_of_several_cores_is_refused(tmp_path: pathlib.Path) -> None:
    """Predictions of cores are concatenated, which a scalar cannot be; the error names it."""

    def model_fn(features: Any, mode: str) -> Any:
        predictions = {"value": features, "sum": tf.reduce_sum(features)}
        return estimator.tpu.TPUEstimatorSpec(mode, predictions=predictions)

    job = tpu_jobs.make(model_fn, tmp_path, 4, tpu={"num_shards": 2})
    with pytest.raises(errors.InvalidInput, match=r"predictions\['sum'\] is a scalar"):
        next(job.predict(lambda params: tf.data.Dataset.from_tensors(tf.ones(4))))


def test_a_batch_that_is_too_large_fails(tmp_path: pathlib.Path) -> None:
    job = jobs.make(str(tmp_path))
    job.train(clicks.input_fn, steps=1)

    too_large = {"batch_size": jobs.BATCH + 1}
    with pytest.raises(errors.InvalidInput, match=f"`predict_batch_size`={jobs.BATCH}"):
        next(job.predict(lambda params: clicks.short_input_fn(too_large)))

    def of_any_size(params: Any) -> Any:
        return clicks.short_input_fn(too_large).unbatch().batch(jobs.BATCH + 1)

    with pytest.raises(tf.errors.InvalidArgumentError, match=f"`predict_batch_size`={jobs.BATCH}"):
        next(job.predict(of_any_size))
