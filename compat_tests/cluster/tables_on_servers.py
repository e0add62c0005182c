"""A job of two tables on parameter servers that run in this process, for tests of its checkpoints.

The chief and its servers share the process, so that a cluster starts in milliseconds; whatever they
exchange goes through TensorFlow's runtime all the same.
"""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.conftest import Array
from compat_tests.programs import jobs
from compat_tests.support.local_cluster import free_addresses, start_tasks
from estimator_bridge import estimator as est
from estimator_bridge.checkpoint_files import Reader, RowLayout
from estimator_bridge.legacy import parameters
from estimator_bridge.runtime.cluster import task_software, tasks
from estimator_bridge.runtime.saving import job_saver

BATCH, CORES = 8, 2
LARGE, SMALL = (30_001, 5), (53, 4)
"""Rows and dim: the first is over a megabyte with its slots, and so on all parameter servers; no
number of them divides its rows. The second is whole on one of them."""
TABLES = tuple(f"input_layer/{key}_embedding/embedding_weights" for key in ("videos", "countries"))
fc = tf.feature_column


def start_cluster(patch: pytest.MonkeyPatch, servers: int, workers: int = 0) -> None:
    """Makes this process the chief of a cluster with parameter servers; 0 is no cluster.

    One process is compared on TensorFlow's ops.
    """
    patch.setenv("ESTIMATOR_BRIDGE_NATIVE", "0")
    patch.delenv("TF_CONFIG", raising=False)
    if not servers:
        return
    # The servers end with the process, and hear of no end before.
    patch.setattr(tasks, "tell_all_at_exit", lambda cluster, **_: None)
    patch.setattr(task_software, "_devices_with_native_ops", lambda cluster: frozenset())
    cluster = _running(servers, workers)
    config = {"cluster": cluster, "task": {"type": "chief", "index": 0}}
    patch.setenv("TF_CONFIG", json.dumps(config))


@functools.cache
def _running(servers: int, workers: int) -> dict[str, list[str]]:
    """Starts the other tasks of a cluster, once for all tests: servers, and threads, have no end.

    Jobs share nothing on them, as each session of the chief is isolated. They say nothing of their
    software.
    """
    cluster = free_addresses(chief=1, ps=servers, worker=workers)
    start_tasks(cluster, "ps", "worker")
    return cluster


def spec(**options: Any) -> Any:
    """Returns the embedding spec of both tables, of columns."""
    columns = [
        tf.compat.v1.tpu.experimental.embedding_column(
            fc.categorical_column_with_identity(key, rows), dim
        )
        for key, (rows, dim) in (("videos", LARGE), ("countries", SMALL))
    ]
    return est.tpu.experimental.EmbeddingConfigSpec(
        feature_columns=columns,
        optimization_parameters=parameters.AdagradParameters(0.1),
        **options,
    )


def estimator(folder: pathlib.Path, **options: Any) -> Any:
    """Returns an estimator with a small dense model on the tables.

    The `options` are the `layout` of its tables, the number of `cores`, which share a batch of at
    least eight samples, and those of the embedding spec.
    """
    layout, cores = options.pop("layout", None), options.pop("cores", CORES)
    batch = -(-BATCH // cores) * cores
    of_spec = spec(**options)

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        net = tf.compat.v1.feature_column.input_layer(features, of_spec.feature_columns)
        logits = tf.matmul(net, tf.compat.v1.get_variable("kernel", [net.shape[1], 1]))
        loss = tf.reduce_mean((logits - labels) ** 2)
        optimizer = tf.compat.v1.tpu.CrossShardOptimizer(tf.compat.v1.train.AdamOptimizer(0.01))
        step = tf.compat.v1.train.get_global_step()
        return est.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, step))

    config = est.tpu.RunConfig(
        model_dir=str(folder),
        tf_random_seed=1,
        save_checkpoints_steps=100,
        checkpoint_save_graph_def=False,
        log_step_count_steps=None,
        tpu_config=est.tpu.TPUConfig(num_shards=cores, iterations_per_loop=1),
    )
    return est.tpu.TPUEstimator(
        model_fn,
        config=config,
        train_batch_size=batch,
        eval_batch_size=batch,
        embedding_config_spec=of_spec,
        layout=layout,
    )


def input_fn(params: Any) -> tf.data.Dataset:
    """Returns batches that differ from step to step; each training starts with the first one."""
    random = np.random.default_rng(7)
    count = 12 * BATCH
    features = {
        "videos": random.integers(0, LARGE[0], [count, 3]),
        "countries": random.integers(0, SMALL[0], [count, 1]),
    }
    # Most ids are among the first, so that batches have rows in common.
    features["videos"][:, 1:] %= 40
    labels = random.normal(size=[count, 1]).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((features, labels))

    def sparse(features: dict[str, Any], labels: Any) -> Any:
        return {key: tf.sparse.from_dense(ids + 0) for key, ids in features.items()}, labels

    return dataset.repeat().batch(params["batch_size"], drop_remainder=True).map(sparse)


def train(
    folder: pathlib.Path, servers: int, steps: int, *, workers: int = 0, **options: Any
) -> str:
    """Trains to a global step, from the latest checkpoint; returns the path of the last one.

    The `options` are the most bytes of a slice of a checkpoint (`slice_bytes`), and those of
    `estimator`.
    """
    with pytest.MonkeyPatch.context() as patch:
        start_cluster(patch, servers, workers)
        patch.setattr(job_saver, "SLICE_BYTES", options.pop("slice_bytes", job_saver.SLICE_BYTES))
        estimator(folder, **options).train(input_fn, max_steps=steps)
    return str(folder / f"model.ckpt-{steps}")


def evaluate(folder: pathlib.Path, servers: int, **options: Any) -> Mapping[str, float]:
    with pytest.MonkeyPatch.context() as patch:
        start_cluster(patch, servers)
        patch.setattr(job_saver, "SLICE_BYTES", options.pop("slice_bytes", job_saver.SLICE_BYTES))
        metrics: Mapping[str, float] = estimator(folder, **options).evaluate(input_fn, steps=2)
    return metrics


def copied(checkpoint: str, folder: pathlib.Path) -> pathlib.Path:
    """Copies a checkpoint to a new model_dir, as its latest; returns that."""
    return pathlib.Path(jobs.continue_from(checkpoint, str(folder)))


def values_of(checkpoint: str, strategy: str = "div") -> dict[str, Array]:
    """Returns all variables of a checkpoint; rows of tables and slots are by id."""
    values = {}
    with Reader(checkpoint) as reader:
        whole = tf.train.load_checkpoint(checkpoint)
        for name, tensor in reader.tensors.items():
            values[name] = whole.get_tensor(name)
            if strategy == "mod" and name.startswith(TABLES) and tensor.sliced:
                rows = tensor.shape[0]
                layout = RowLayout(rows, len(tensor.slices), "mod")
                values[name] = values[name][layout.stored(np.arange(rows))]
    return values


def assert_equal(actual: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    """Asserts that all variables, those of both tables and their slots too, agree to the bit."""
    assert {f"{table}/Adagrad" for table in TABLES} <= set(actual)
    jobs.assert_equal(actual, expected)
