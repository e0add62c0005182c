"""Runs the click program on the bridge and reads its checkpoints."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from compat_tests.programs import clicks
from estimator_bridge import estimator
from estimator_bridge.legacy import parameters

BATCH = 16


def make(
    model_dir: Any,
    optimizer: Any = None,
    *,
    namespace: Any = estimator,
    use_tpu: bool = True,
    columns: Any = None,
    spec: Any = None,
    tpu_options: dict[str, Any] | None = None,
    spec_options: dict[str, Any] | None = None,
    model_options: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Returns a TPUEstimator over the click program, of the bridge or of stock.

    Args:
        optimizer: of the tables; None is Adagrad with rate 0.1.
        spec: the embedding config over `columns`; None is one of the same side.
    """
    columns = columns or clicks.columns()
    spec = spec or namespace.tpu.experimental.EmbeddingConfigSpec(
        feature_columns=columns,
        optimization_parameters=optimizer or parameters.AdagradParameters(0.1),
        **(spec_options or {}),
    )
    # Stock has no CPU kernel for CrossReplicaSum, which CrossShardOptimizer makes.
    model_fn = clicks.make_model_fn(
        namespace, columns, **{"cross_shard": use_tpu, **(model_options or {})}
    )
    return namespace.tpu.TPUEstimator(
        model_fn=model_fn,
        use_tpu=use_tpu,
        config=clicks.run_config(namespace, str(model_dir), **(tpu_options or {})),
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
        embedding_config_spec=spec,
        **options,
    )


def signatures(path: bytes, tag: str = "serve") -> dict[str, Any]:
    """Returns method, inputs and outputs (tensor name, type, shape) of each signature."""
    with tf.Graph().as_default(), tf.Session() as session:
        loaded = tf.saved_model.loader.load(session, [tag], os.fsdecode(path)).signature_def

    def read(infos: Any) -> dict[str, Any]:
        return {
            key: (info.name, info.dtype, [dim.size for dim in info.tensor_shape.dim])
            for key, info in infos.items()
        }

    return {
        name: (each.method_name, read(each.inputs), read(each.outputs))
        for name, each in loaded.items()
        if not name.startswith("__")
    }


def saved(job: Any, checkpoint: str | None = None) -> dict[str, np.ndarray]:
    """Returns every value of a checkpoint, by default the latest, by name."""
    reader = tf.train.load_checkpoint(checkpoint or job.latest_checkpoint())
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def first_checkpoint(job: Any) -> str:
    """Returns the checkpoint that was written before the first step."""
    return f"{job.model_dir}/model.ckpt-0"


def continue_from(checkpoint: str, model_dir: str) -> str:
    """Creates a model directory with one checkpoint; returns it."""
    os.makedirs(model_dir)
    name = os.path.basename(checkpoint)
    for path in glob.glob(f"{checkpoint}.*"):
        shutil.copy(path, model_dir)
    with open(os.path.join(model_dir, "checkpoint"), "w") as index:
        index.write(f'model_checkpoint_path: "{name}"\nall_model_checkpoint_paths: "{name}"\n')
    return model_dir


def assert_equal(actual: Mapping[Any, Any], expected: Mapping[Any, Any]) -> None:
    """Asserts that values by name, such as those of two checkpoints, are equal to the bit."""
    assert set(actual) == set(expected), sorted(set(actual) ^ set(expected))
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, str(name))


def largest_difference(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> tuple[float, str]:
    """Returns the largest absolute difference over all variables, and the variable's name."""
    assert set(a) == set(b), f"only in one of the checkpoints: {sorted(set(a) ^ set(b))}"
    return max((float(np.max(np.abs(a[n].astype(np.float64) - b[n]))), n) for n in sorted(a))
