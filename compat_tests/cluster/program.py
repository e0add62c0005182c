"""A legacy TPUEstimator program: trains, evaluates and predicts. It knows nothing of clusters.

python program.py MODEL_DIR STEPS CORES
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from estimator_bridge import estimator as est
from estimator_bridge.hooks.input_pipeline import CheckpointInputPipelineHook
from estimator_bridge.legacy import parameters

tf.get_logger().setLevel("INFO")
model_dir, steps, cores = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
BATCH, SAMPLES = 16, 96
fc, embedding = tf.feature_column, tf.compat.v1.tpu.experimental

watched, liked, country = (
    fc.categorical_column_with_identity(key, rows)
    for key, rows in (("watched", 3001), ("liked", 3001), ("country", 51))
)
# The first table is larger than a megabyte with its slots, and so on all parameter servers.
videos = embedding.shared_embedding_columns([watched, liked], 64)
countries = embedding.embedding_column(country, 4)


def input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    """Returns batches that differ from step to step: of each the part of the calling host."""
    _, host, hosts, _ = params["context"].current_input_fn_deployment()
    size = params["batch_size"]
    random = np.random.default_rng(3)
    features = {
        "watched": random.integers(0, 3001, [SAMPLES, 5]),
        "liked": random.integers(0, 3001, [SAMPLES, 1]),
        "country": random.integers(0, 51, [SAMPLES, 1]),
    }
    labels = random.normal(size=[SAMPLES, 1]).astype(np.float32)

    def of_host(*batch: Any) -> Any:
        return tf.nest.map_structure(lambda rows: rows[host * size : (host + 1) * size], batch)

    def sparse(features: dict[str, Any], labels: Any) -> Any:
        return {**features, "watched": tf.sparse.from_dense(features["watched"])}, labels

    dataset = tf.data.Dataset.from_tensor_slices((features, labels)).repeat()
    return dataset.batch(size * hosts, drop_remainder=True).map(of_host).map(sparse)


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """Returns a small dense model on the columns."""
    net = tf.keras.layers.DenseFeatures([*videos, countries])(features)
    hidden = tf.compat.v1.layers.dense(net, 8, tf.nn.relu)
    logits = tf.compat.v1.layers.dense(hidden, 1)
    if mode == "infer":
        return est.tpu.TPUEstimatorSpec(mode, predictions={"logits": logits})
    loss = tf.reduce_mean((logits - labels) ** 2)
    if mode == "eval":
        metrics = (lambda logits, labels: {"error": mean_error(logits, labels)}, [logits, labels])
        return est.tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=metrics)
    optimizer = tf.compat.v1.tpu.CrossShardOptimizer(tf.compat.v1.train.AdamOptimizer(0.01))
    train_op = optimizer.minimize(loss, tf.compat.v1.train.get_global_step())
    return est.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def mean_error(logits: Any, labels: Any) -> Any:
    return tf.compat.v1.metrics.mean_absolute_error(labels, logits)


class SayStep(tf.compat.v1.train.SessionRunHook):
    """Prints the global step after each loop."""

    def begin(self) -> None:
        self._step = tf.compat.v1.train.get_global_step()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        sys.stdout.write(f"STEP {run_context.session.run(self._step)}\n")
        sys.stdout.flush()


estimator = est.tpu.TPUEstimator(
    model_fn,
    train_batch_size=BATCH,
    eval_batch_size=BATCH,
    predict_batch_size=BATCH,
    config=est.tpu.RunConfig(
        model_dir=model_dir,
        tf_random_seed=1,
        save_checkpoints_steps=10,
        checkpoint_save_graph_def=False,
        log_step_count_steps=10,
        tpu_config=est.tpu.TPUConfig(num_shards=cores, iterations_per_loop=5),
    ),
    embedding_config_spec=est.tpu.experimental.EmbeddingConfigSpec(
        feature_columns=[*videos, countries],
        optimization_parameters=parameters.AdagradParameters(0.1),
    ),
)

hooks = [CheckpointInputPipelineHook(estimator), SayStep()]
estimator.train(input_fn, max_steps=steps, hooks=hooks)
metrics = estimator.evaluate(input_fn, steps=3)
first = next(iter(estimator.predict(lambda params: input_fn(params).take(1))))
shown = {"first": float(first["logits"][0]), **{k: float(v) for k, v in metrics.items()}}
sys.stdout.write(f"RESULT {json.dumps(shown)}\n")
