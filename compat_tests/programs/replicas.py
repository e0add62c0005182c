"""Estimators under MirroredStrategy on two logical CPUs: `replicas.py DIRECTORY`.

Logical devices must be configured before TensorFlow starts. Prints the differences as JSON.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import numpy as np
import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)

from compat_tests.conftest import HAS_STOCK  # noqa: E402 - the devices come before anything else
from compat_tests.programs import clicks, jobs  # noqa: E402
from estimator_bridge import errors, estimator  # noqa: E402
from estimator_bridge.legacy import parameters  # noqa: E402

V1 = tf.compat.v1
LOOP = 4
HERE = pathlib.Path(sys.argv[1])


def mirrored() -> Any:
    """Returns a strategy of two replicas on logical CPUs."""
    # TensorFlow's default, collectives, fails if replicas look up different numbers of ids.
    return tf.distribute.MirroredStrategy(
        ["/cpu:0", "/cpu:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def on_cores(model_dir: str, strategy: Any, shards: int | None = None) -> Any:
    """Returns the click program with use_tpu=True under a strategy."""
    columns = clicks.columns()
    return estimator.tpu.TPUEstimator(
        model_fn=clicks.make_model_fn(estimator, columns, cross_shard=True, batch_norm=False),
        config=estimator.tpu.RunConfig(
            model_dir=model_dir,
            tf_random_seed=1,
            train_distribute=strategy,
            eval_distribute=strategy,
            checkpoint_save_graph_def=False,
            tpu_config=estimator.tpu.TPUConfig(iterations_per_loop=LOOP, num_shards=shards),
        ),
        params={},
        train_batch_size=jobs.BATCH,
        eval_batch_size=jobs.BATCH,
        embedding_config_spec=estimator.tpu.experimental.EmbeddingConfigSpec(
            feature_columns=columns, optimization_parameters=parameters.AdagradParameters(0.1)
        ),
    )


BATCHES = 8


def halves(replicas: int) -> Any:
    """Returns an input_fn of the same samples for any number of replicas, a batch for each."""

    def input_fn() -> Any:
        draw = np.random.RandomState(0)
        x = draw.normal(size=[BATCHES * 8, 3]).astype(np.float32)
        return tf.data.Dataset.from_tensor_slices(({"x": x}, x[:, :1] ** 2)).batch(8 // replicas)

    return input_fn


def regression(namespace: Any, model_dir: Any, strategy: Any) -> Any:
    """Returns an Estimator with unnamed layers, including Keras's."""

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        net = V1.layers.dense(features["x"], 5, tf.nn.tanh)
        out = tf.keras.layers.Dense(1)(net)
        loss = V1.losses.mean_squared_error(labels, out)
        metrics = {"error": V1.metrics.mean_absolute_error(labels, out)}
        step = V1.train.get_global_step()
        train_op = V1.train.AdamOptimizer(0.01).minimize(loss, step)
        return namespace.EstimatorSpec(
            mode, loss=loss, train_op=train_op, eval_metric_ops=metrics, predictions={"out": out}
        )

    # By default a session of stock's has one CPU.
    session = V1.ConfigProto(allow_soft_placement=True, device_count={"CPU": 2})
    config = namespace.RunConfig(
        str(model_dir),
        tf_random_seed=1,
        session_config=session,
        train_distribute=strategy,
        eval_distribute=strategy,
        checkpoint_save_graph_def=False,
    )
    return namespace.Estimator(model_fn, config=config)


def trained(namespace: Any, start: str, model_dir: pathlib.Path, strategy: Any) -> Any:
    """Returns the saved values and the metrics of an Estimator."""
    job = regression(namespace, jobs.continue_from(start, str(model_dir)), strategy)
    replicas = 1 if strategy is None else 2
    job.train(halves(replicas))
    return jobs.saved(job), job.evaluate(halves(replicas))


def compare_cores() -> dict[str, Any]:
    """Trains with use_tpu=True: under the strategy, and with the same number of cores."""
    start = on_cores(str(HERE / "cores"), None, 2)
    start.train(clicks.input_fn, steps=1)
    results = []
    for name, strategy, shards in (("two cores", None, 2), ("two replicas", mirrored(), None)):
        job = on_cores(
            jobs.continue_from(start.latest_checkpoint(), str(HERE / name)), strategy, shards
        )
        job.train(clicks.input_fn, steps=LOOP)
        results.append((jobs.saved(job), job.evaluate(clicks.short_input_fn, steps=2)))
    (cores, whole), (replicas, parts) = results
    return {
        "difference": jobs.largest_difference(cores, replicas)[0],
        "same metrics": bool(whole == parts),
    }


def compare_replicas() -> dict[str, Any]:
    """Trains without an engine: under the strategy, on whole batches, and as stock."""
    start = regression(estimator, HERE / "start", None)
    start.train(halves(1), steps=1)
    checkpoint = start.latest_checkpoint()
    whole, of_whole = trained(estimator, checkpoint, HERE / "whole", None)
    parts, of_parts = trained(estimator, checkpoint, HERE / "parts", mirrored())
    results = {
        "difference": jobs.largest_difference(whole, parts)[0],
        "whole": {key: float(value) for key, value in of_whole.items()},
        "parts": {key: float(value) for key, value in of_parts.items()},
    }
    if HAS_STOCK:
        stocks, of_stock = trained(V1.estimator, checkpoint, HERE / "stock", mirrored())
        results["difference from stock"] = jobs.largest_difference(stocks, parts)[0]
        results["stock"] = {key: float(value) for key, value in of_stock.items()}
    return results


def refused() -> str:
    """Returns the error message for two replicas and four shards."""
    try:
        on_cores(str(HERE / "refused"), mirrored(), 4).train(clicks.input_fn, steps=1)
    except errors.InvalidInput as error:
        return str(error)
    return ""


if __name__ == "__main__":
    results = {"cores": compare_cores(), "replicas": compare_replicas(), "refused": refused()}
    print(json.dumps(results))  # noqa: T201 - for the test that runs this
