"""Measures a TPUEstimator's step: stock's estimator without a TPU, or the bridge's engine.

python -m benchmarks.peers.estimator_child <workload> <stock|bridge>

Only training is timed, from one session call to the next.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from benchmarks.child import THREADS, answer, commands
from benchmarks.workloads import BATCHES, Workload, batches, find


def main() -> None:
    workload, whose = find(sys.argv[1]), sys.argv[2]
    if whose == "stock":
        from tensorflow.compat.v1 import estimator
        from tensorflow.compat.v1.tpu import experimental as parameters
    else:
        from estimator_bridge import estimator
        from estimator_bridge.legacy import parameters
    columns = [column(workload, i) for i in range(workload.tables)]
    config = estimator.tpu.RunConfig(
        model_dir=tempfile.mkdtemp(),
        save_checkpoints_steps=None,
        save_checkpoints_secs=None,
        save_summary_steps=None,
        log_step_count_steps=None,
        session_config=tf.ConfigProto(
            intra_op_parallelism_threads=THREADS,
            inter_op_parallelism_threads=THREADS,
            allow_soft_placement=True,
        ),
        tpu_config=estimator.tpu.TPUConfig(iterations_per_loop=1),
    )
    tpu_estimator = estimator.tpu.TPUEstimator(
        model_fn=model_fn_of(columns, estimator),
        config=config,
        use_tpu=whose == "bridge",
        train_batch_size=workload.batch,
        embedding_config_spec=estimator.tpu.experimental.EmbeddingConfigSpec(
            feature_columns=columns,
            optimization_parameters=parameters.AdagradParameters(0.1),
        ),
    )
    tpu_estimator.train(input_fn_of(workload), hooks=[Asked()], steps=10**9)


class Asked(tf.train.SessionRunHook):
    """Makes training wait for requests, and reports how long each requested step took."""

    def __init__(self) -> None:
        self._commands = commands()
        self._left, self._warm = 2 * BATCHES, False
        self._times: list[float] = []
        self._started = 0.0

    def before_run(self, run_context: Any) -> None:
        self._started = time.perf_counter()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._times.append(1e3 * (time.perf_counter() - self._started))
        self._left -= 1
        if self._left:
            return
        if self._warm:
            answer(self._times)
        self._warm, self._times = True, []
        try:
            _, self._left = next(self._commands)
        except StopIteration:
            run_context.request_stop()


def column(workload: Workload, number: int) -> Any:
    ids = tf.feature_column.categorical_column_with_identity(f"f{number}", workload.rows)
    return tf.tpu.experimental.embedding_column(
        ids,
        workload.dim,
        combiner="sum",
        initializer=tf.random_uniform_initializer(-0.5, 0.5),
    )


def model_fn_of(columns: list[Any], estimator: Any) -> Callable[..., Any]:
    """Creates a model of nothing but embeddings, whose activations get gradients of 0.01."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        net = tf.keras.layers.DenseFeatures(columns)(features)
        loss = tf.reduce_sum(net) * 0.01
        optimizer = tf.train.AdagradOptimizer(0.1)
        if params["use_tpu"]:
            optimizer = tf.tpu.CrossShardOptimizer(optimizer)
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
        return estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def input_fn_of(workload: Workload) -> Callable[..., Any]:
    """Creates an input_fn that repeats the workload's batches as sparse tensors."""
    of_tables = batches(workload)

    def input_fn(params: Any) -> Any:
        def feature(name: str, number: Any) -> Any:
            table = of_tables[int(name[1:])]
            ids = tf.constant(np.concatenate([batch.ids for batch in table]))
            starts = np.cumsum([0, *(len(batch.ids) for batch in table)])
            places = np.concatenate([places_of(batch.splits) for batch in table])
            begin = tf.gather(tf.constant(starts), number)
            end = tf.gather(tf.constant(starts), number + 1)
            return tf.SparseTensor(
                tf.constant(places)[begin:end],
                ids[begin:end],
                [workload.batch, workload.most_ids],
            )

        def features(number: Any) -> Any:
            batch_features = {f"f{i}": feature(f"f{i}", number) for i in range(workload.tables)}
            return batch_features, tf.zeros([workload.batch])

        return tf.data.Dataset.range(BATCHES).map(features).cache().repeat()

    return input_fn


def places_of(splits: Any) -> Any:
    """Returns each id's sample and its position in the sample, [num_ids, 2] int64."""
    lengths = np.diff(splits)
    samples = np.repeat(np.arange(len(lengths)), lengths)
    return np.stack([samples, np.arange(splits[-1]) - splits[samples]], 1).astype(np.int64)


if __name__ == "__main__":
    main()
