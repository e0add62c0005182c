"""Sequence columns with several ids per position, on one core and on two.

Oracle: the float64 references, which combine the ids of a position as the device does.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.programs import jobs
from compat_tests.references import inputs, lookup, tolerance
from estimator_bridge import estimator
from estimator_bridge.legacy import parameters

ROWS, DIMENSION, LENGTH, BATCH = 9, 2, 3, 4
# Gaps, an empty sample, an id twice at one position, and a position that is cut off.
INDICES = [[0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 2, 1], [2, 0, 0], [2, 3, 0], [3, 1, 0], [3, 1, 1]]
IDS = [1, 4, 4, 8, 0, 7, 3, 5]
RATE = 0.5


def _make(
    model_dir: pathlib.Path, combiner: str, *, num_shards: int = 1, use_tpu: bool = True
) -> Any:
    column = tf.feature_column.sequence_categorical_column_with_identity("clicked", ROWS)
    columns = [
        tf.tpu.experimental.embedding_column(
            column,
            DIMENSION,
            combiner=combiner,
            max_sequence_length=LENGTH,
            initializer=tf.random_normal_initializer(seed=5),
        )
    ]

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        rows, lengths = tf.keras.experimental.SequenceFeatures(columns)(features)
        bias = tf.get_variable("bias", [1], initializer=tf.zeros_initializer())
        # Every cell has a gradient of its own: 1, 2, ... over the cells of a sample.
        factors = tf.reshape(tf.range(1.0, 1 + LENGTH * DIMENSION), [LENGTH, DIMENSION])
        loss = tf.reduce_mean(tf.reduce_sum(rows * factors, [1, 2])) + tf.reduce_sum(bias)
        train_op = None
        if mode == "train":
            optimizer = tf.tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(RATE))
            train_op = optimizer.minimize(loss, tf.train.get_global_step())
        return estimator.tpu.TPUEstimatorSpec(
            mode, loss=loss, train_op=train_op, predictions={"rows": rows, "lengths": lengths}
        )

    config = estimator.tpu.RunConfig(
        model_dir=str(model_dir),
        tf_random_seed=1,
        tpu_config=estimator.tpu.TPUConfig(
            num_shards=num_shards,
            per_host_input_for_training=estimator.tpu.InputPipelineConfig.PER_HOST_V1,
        ),
    )
    return estimator.tpu.TPUEstimator(
        model_fn,
        use_tpu=use_tpu,
        config=config,
        train_batch_size=BATCH,
        predict_batch_size=BATCH,
        embedding_config_spec=estimator.tpu.experimental.EmbeddingConfigSpec(
            feature_columns=columns,
            optimization_parameters=parameters.StochasticGradientDescentParameters(RATE),
        ),
    )


def _input_fn(params: dict[str, Any]) -> Any:
    indices, shape = tf.constant(INDICES, tf.int64), [BATCH, LENGTH + 1, 3]
    ids = tf.SparseTensor(indices, tf.constant(IDS, tf.int64), shape)
    return tf.data.Dataset.from_tensors({"clicked": ids})


@pytest.mark.parametrize("num_shards", [1, 2])
@pytest.mark.parametrize("combiner", lookup.COMBINERS)
def test_ids_of_a_position_are_combined(
    combiner: str, num_shards: int, tmp_path: pathlib.Path
) -> None:
    """Activations, lengths and the update of every row are those of the references."""
    job = _make(tmp_path, combiner, num_shards=num_shards)
    job.train(lambda params: _input_fn(params).repeat(), steps=1)
    name = next(name for name in job.get_variable_names() if "embedding_weights" in name)
    before = jobs.saved(job, jobs.first_checkpoint(job))[name].astype(np.float64)
    # Of three coordinates the first two say where an id goes.
    occurrences = inputs.sparse(np.array(INDICES)[:, :2], IDS, max_sequence_length=LENGTH)
    expected, gains = lookup.combine(before, occurrences, BATCH * LENGTH, combiner)
    (predicted,) = job.predict(
        _input_fn, checkpoint_path=jobs.first_checkpoint(job), yield_single_examples=False
    )
    tolerance.assert_close(
        expected,
        predicted["rows"].reshape(expected.shape),
        n_terms=3,
        steps=0,
        scale=tolerance.lookup_scale(before, occurrences, gains),
        where=f"{combiner}, activations",
    )
    # Positions up to the last one with an id, cut at the table's length.
    assert predicted["lengths"].tolist() == [3, 0, 3, 2]

    after = before.copy()
    factors = np.arange(1.0, 1 + LENGTH * DIMENSION).reshape(LENGTH, DIMENSION) / BATCH
    for (cell, row, _), gain in zip(occurrences, gains, strict=True):
        after[row] -= RATE * gain * factors[cell % LENGTH]
    tolerance.assert_close(
        after,
        jobs.saved(job)[name],
        n_terms=3,
        steps=1,
        # A row gets at most 3 gradients: a gain of at most 1 times a factor of at most 6 / 4.
        scale=float(np.max(np.abs(before))) + 3 * RATE * 1.5,
        where=f"{combiner}, {num_shards} cores, table",
    )


def test_without_the_engine_the_columns_combine_the_same(tmp_path: pathlib.Path) -> None:
    """With use_tpu=False, where TensorFlow's columns look up, the predictions are the same."""
    job = _make(tmp_path, "mean")
    job.train(lambda params: _input_fn(params).repeat(), steps=1)
    plain = _make(tmp_path, "mean", use_tpu=False)
    (ours,), (theirs,) = (
        one.predict(_input_fn, yield_single_examples=False) for one in (job, plain)
    )

    # TensorFlow's columns do not cut sequences: they look the last position up too.
    rows = theirs["rows"][:, :LENGTH]
    tolerance.assert_close(ours["rows"], rows, n_terms=3, steps=0, where="rows")
