"""A legacy program without TPUs: each task of a cluster runs it, and knows that from TF_CONFIG.

python asynchronous.py MODEL_DIR STEPS plain|strategy|tpu|canned bridge|stock
"""

from __future__ import annotations

import json
import pathlib
import sys
import time
from typing import Any

import numpy as np
import tensorflow as tf

from estimator_bridge import estimator
from estimator_bridge.hooks.input_pipeline import CheckpointInputPipelineHook

model_dir, steps, kind, whose = sys.argv[1], int(sys.argv[2]), *sys.argv[3:5]
est: Any = estimator
if whose == "stock":
    from compat_tests.support import stock

    est = stock.ESTIMATOR

v1, fc = tf.compat.v1, tf.feature_column
BATCH, SAMPLES, ROWS = 16, 96, 1000
ids = fc.categorical_column_with_identity("ids", ROWS)
column = (v1.tpu.experimental if kind == "tpu" else fc).embedding_column(ids, 8)


def input_fn(params: Any = None, mode: str = "train") -> tf.data.Dataset:
    """Returns batches that differ from step to step."""
    random = np.random.default_rng(3)
    features = {"ids": random.integers(0, ROWS, [SAMPLES, 3])}
    if kind == "canned":
        labels = random.integers(0, 2, [SAMPLES, 1])
    else:
        labels = random.normal(size=[SAMPLES, 1]).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((features, labels)).repeat().batch(BATCH, True)


def model_fn(features: Any, labels: Any, mode: str, config: Any, params: Any) -> Any:
    """Returns a small model, and counts the steps of each task."""
    net = v1.feature_column.input_layer(features, [column])
    logits = v1.layers.dense(v1.layers.dense(net, 8, tf.nn.relu), 1)
    loss = tf.reduce_mean((logits - labels) ** 2)
    train_op = None
    if mode == "train":
        optimizer = v1.train.AdamOptimizer(0.01)
        counts = [
            v1.get_variable(f"steps_of_{n}", [], tf.int64, tf.zeros_initializer(), trainable=False)
            for n in range(config.num_worker_replicas)
        ]
        count = counts[config.global_id_in_cluster or 0]
        with tf.control_dependencies([v1.assign_add(count, 1)]):
            train_op = optimizer.minimize(loss, v1.train.get_global_step())
    spec = est.tpu.TPUEstimatorSpec if kind == "tpu" else est.EstimatorSpec
    return spec(mode, loss=loss, train_op=train_op)


class Count(v1.train.SessionRunHook):
    """Counts the steps of this task; the chief's waits for the others and shows all counts."""

    def __init__(self, config: Any) -> None:
        self._config, self._steps_made = config, 0

    def begin(self) -> None:
        self._counts = [v for v in v1.global_variables() if v.op.name.startswith("steps_of_")]

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Counts a step; gives other tasks a chance."""
        self._steps_made += 1
        if self._config.num_worker_replicas > 1:
            time.sleep(0.005)

    def end(self, session: Any) -> None:
        """Tells how many steps were made, by this task, or by each."""
        folder, workers = pathlib.Path(model_dir), self._config.num_worker_replicas - 1
        if not self._config.is_chief:
            (folder / f"made_by_{self._config.task_id}").write_text(str(self._steps_made))
            return
        files = [folder / f"made_by_{number}" for number in range(workers)]
        while not all(path.exists() and path.read_text() for path in files):
            time.sleep(0.05)
        counts = session.run(self._counts)
        shown = {
            "global_step": session.run(v1.train.get_global_step()),
            "counts": counts,
            "made": [self._steps_made, *(path.read_text() for path in files)],
        }
        text = json.dumps(shown, default=lambda each: np.asarray(each).tolist())
        sys.stdout.write(f"COUNTS {text}\n")


options: dict[str, Any] = {
    "model_dir": model_dir,
    "tf_random_seed": 1,
    "save_checkpoints_steps": max(steps // 4, 1),
    "keep_checkpoint_max": None,
    "log_step_count_steps": 20,
    "experimental_max_worker_delay_secs": 0,
}
if kind == "strategy":
    options["train_distribute"] = v1.distribute.experimental.ParameterServerStrategy()
if kind == "tpu":
    job = est.tpu.TPUEstimator(
        model_fn,
        config=est.tpu.RunConfig(**options),
        use_tpu=False,
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
    )
elif kind != "canned":
    job = est.Estimator(model_fn, config=est.RunConfig(**options), params={})
else:
    job = est.DNNLinearCombinedClassifier(
        config=est.RunConfig(**options),
        linear_feature_columns=[ids],
        dnn_feature_columns=[column],
        dnn_hidden_units=[200, 8],
        input_layer_partitioner=v1.min_max_variable_partitioner(2, min_slice_size=1000),
    )

hooks: list[Any] = [] if kind == "canned" else [Count(job.config)]
if whose == "bridge":
    hooks.append(CheckpointInputPipelineHook(job))
est.train_and_evaluate(
    job,
    est.TrainSpec(input_fn, steps, hooks=hooks),
    est.EvalSpec(input_fn, steps=2, start_delay_secs=0, throttle_secs=0),
)
