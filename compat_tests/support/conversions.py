"""The contents of legacy checkpoints that tests convert: specs, tables and other variables."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

import tf2_engine
from compat_tests.support import legacy_checkpoints
from compat_tests.support.legacy_specs import OURS
from estimator_bridge import convert
from estimator_bridge.translation.read_spec import read_spec
from estimator_bridge.translation.translate import output_shapes, translate

END = "/.ATTRIBUTES/VARIABLE_VALUE"

OPTIMIZERS: Mapping[str, Any] = {
    "StochasticGradientDescent": OURS.StochasticGradientDescentParameters(0.1),
    "Adagrad": OURS.AdagradParameters(0.1, initial_accumulator=0.25),
    "Adam": OURS.AdamParameters(0.1),
    "Ftrl": OURS.FtrlParameters(0.1),
    "Momentum": OURS.MomentumParameters(0.1, 0.9),
    "RMSProp": OURS.RMSPropParameters(0.1, 0.9, 0.5, 1e-3),
    "ProximalAdagrad": OURS.ProximalAdagradParameters(0.1),
    "AdagradMomentum": OURS.AdagradMomentumParameters(0.1, 0.9),
    "ProximalYogi": OURS.ProximalYogiParameters(0.1),
    "FrequencyEstimator": OURS.FrequencyEstimatorParameters(0.1, 10.0, 5.0, 0.5),
}

TPU_SLOTS: Mapping[str, Mapping[str, str]] = {
    "StochasticGradientDescent": {},
    "Adagrad": {"accumulators": "Adagrad"},
    "Adam": {"momenta": "Adam/m", "velocities": "Adam/v"},
    "Ftrl": {"accumulators": "Ftrl", "linears": "Ftrl_1"},
    "Momentum": {"momenta": "Momentum"},
    "RMSProp": {"ms": "RMSProp/ms", "mom": "RMSProp/mom"},
    "ProximalAdagrad": {"accumulators": "ProximalAdagrad"},
    "AdagradMomentum": {
        "accumulators": "AdagradMomentum/Accumulator",
        "momenta": "AdagradMomentum/Momentum",
    },
    "ProximalYogi": {"v": "ProximalYogi", "m": "ProximalYogi_1"},
    "FrequencyEstimator": {"last_hit_step": "FrequencyEstimator"},
}
"""Maps slots of the engine to names in stock's TPU programs, which follow the table's name."""

CPU_SLOTS: Mapping[str, Mapping[str, str]] = {
    **TPU_SLOTS,
    "Adam": {"momenta": "Adam", "velocities": "Adam_1"},
    "RMSProp": {"ms": "RMSProp", "mom": "RMSProp_1"},
}
"""The same for tables that optimizers of TensorFlow 1 trained."""

SPARSE_CORE_SLOTS: Mapping[str, Mapping[str, float]] = {
    "StochasticGradientDescent": {},
    "Adagrad": {"accumulators": 0.25},
    "AdagradMomentum": {"accumulators": 0.0, "momenta": 0.0},
    "Adam": {"momenta": 0.0, "velocities": 0.0},
    "Ftrl": {"accumulators": 0.1, "linears": 0.0},
}
"""The initial values of the slots of those optimizers that SparseCores have."""

DICT_ONLY = ("AdagradMomentum", "ProximalYogi", "FrequencyEstimator")

# Each table's variable and number of rows. With five hosts, "few" has fewer rows than hosts.
TABLES = {
    "dict": {"users": ("users", 13), "few": ("few", 3)},
    "columns": {
        "tbl_users": ("dense_features/users_embedding/embedding_weights", 13),
        "tbl_both": ("both", 3),
    },
}


def dim_of(optimizer: str) -> int:
    return 1 if optimizer == "FrequencyEstimator" else 4


def spec_of(
    optimizer: str = "Adagrad",
    form: str = "dict",
    strategy: str = "div",
    classes: Any = OURS,
    parameters: Any = None,
) -> Any:
    """Creates a spec of two tables.

    Args:
        classes: the namespace of the legacy classes.
        parameters: the optimizer, an object of one of these classes.
    """
    options = {
        "optimization_parameters": parameters or OPTIMIZERS[optimizer],
        "partition_strategy": strategy,
    }
    if form == "dict":
        rate = {}
        if optimizer == "FrequencyEstimator":  # Its rate is the step.
            rate = {"learning_rate_fn": lambda step: tf.cast(step, tf.float32)}
        configs = {
            name: classes.TableConfig(rows, dim_of(optimizer), **rate)
            for name, (_, rows) in TABLES[form].items()
        }
        features = {name: classes.FeatureConfig(table_id=name) for name in configs}
        return classes.EmbeddingConfigSpec(
            feature_to_config_dict=features, table_to_config_dict=configs, **options
        )
    identity = tf.feature_column.categorical_column_with_identity
    columns = tf.compat.v1.tpu.experimental
    return classes.EmbeddingConfigSpec(
        feature_columns=[
            columns.embedding_column(identity("users", 13), dimension=4),
            *columns.shared_embedding_columns(
                [identity("a", 3), identity("b", 3)],
                dimension=4,
                shared_embedding_collection_name="both",
            ),
        ],
        **options,
    )


def spec_with(shapes: Mapping[str, tuple[int, int]], parameters: Any, **of_table: Any) -> Any:
    """Creates a spec with a feature for each table; tables have shapes and options."""
    return OURS.EmbeddingConfigSpec(
        table_to_config_dict={
            name: OURS.TableConfig(*shape, **of_table) for name, shape in shapes.items()
        },
        feature_to_config_dict={name: OURS.FeatureConfig(table_id=name) for name in shapes},
        optimization_parameters=parameters,
    )


def tables_of(
    optimizer: str = "Adagrad",
    form: str = "dict",
    slots: Mapping[str, Mapping[str, str]] = TPU_SLOTS,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Maps the legacy name of each part of the tables to values, and to the engine's key."""
    values, keys = {}, {}
    for number, (table, (variable, rows)) in enumerate(TABLES[form].items()):
        parts = {"": "", **{f".S{slot}": f"/{name}" for slot, name in slots[optimizer].items()}}
        for part, (slot, suffix) in enumerate(parts.items()):
            first = 1000.0 * number + 200.0 * part + 0.125
            count = rows * dim_of(optimizer)
            values[variable + suffix] = np.arange(first, first + count, dtype=np.float32).reshape(
                rows, -1
            )
            keys[variable + suffix] = f"embedding/{table}{slot}{END}"
    return values, keys


OTHERS = {
    "global_step": np.int64(77),
    "dense/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "dense/kernel/Adam": np.ones([2, 3], np.float32),
    "beta1_power": np.float32(0.9),
    "counts": np.arange(3, dtype=np.int32),
}
"""The variables of the model."""


def old_checkpoint(
    folder: pathlib.Path,
    optimizer: str = "Adagrad",
    hosts: int = 1,
    strategy: str = "div",
) -> tuple[str, dict[str, Any]]:
    """Writes a legacy checkpoint of step 77; returns its path, and the tables by legacy name."""
    values, _ = tables_of(optimizer)
    path = str(folder / "old" / "model.ckpt-77")
    return legacy_checkpoints.write(path, values, OTHERS, hosts, strategy), values


def convert_and_read(old: str | pathlib.Path, new: pathlib.Path, **options: Any) -> dict[str, Any]:
    """Converts a checkpoint; returns the tensors of the new one."""
    convert.convert(str(old), str(new), **options)
    return legacy_checkpoints.read(str(new))


def engine_of(spec: Any, batch_size: int = 2) -> Any:
    legacy = read_spec(spec)
    translated = translate(legacy, training=True, step=lambda: tf.constant(0))
    engine = tf2_engine.TPUEmbedding(translated)
    engine.build_for(output_shapes(legacy, batch_size, num_cores=1))
    return engine


def assert_same(wanted: Mapping[str, Any], actual: Mapping[str, Any]) -> None:
    """Checks that two sets of tensors have the same names, types and bytes."""
    assert set(wanted) == set(actual)
    for name, value in wanted.items():
        assert np.asarray(value).dtype == np.asarray(actual[name]).dtype, name
        assert np.array_equal(value, actual[name]), name
