"""Builds legacy specs from cases, with stock's classes or ours."""

from __future__ import annotations

import inspect
import types
from typing import Any

import pytest
import tensorflow as tf

from compat_tests.cases.legacy import Case, Column, Optimizer
from estimator_bridge.legacy import parameters, spec, table_config

needs_stock = pytest.mark.stock

OURS = types.SimpleNamespace(
    **{name: kind for name, kind in vars(parameters).items() if name.endswith("Parameters")},
    TableConfig=table_config.TableConfig,
    FeatureConfig=table_config.FeatureConfig,
    EmbeddingConfigSpec=spec.EmbeddingConfigSpec,
)

RATES = {
    "constant": lambda step: 0.1,
    "decaying": lambda step: 0.1 / (1.0 + tf.cast(step, tf.float32)),
    "warming": lambda step: 0.01 * tf.cast(step, tf.float32),
}


def arguments(kind: type) -> list[tuple[str, Any]]:
    """Lists names and defaults of a constructor's arguments, except `quirks` and **kwargs."""
    return [
        # Stock and the bridge have different objects as the default that means "not given".
        (p.name, p.default if isinstance(p.default, _PLAIN) else "not given")
        for p in inspect.signature(kind).parameters.values()
        if p.kind is not inspect.Parameter.VAR_KEYWORD and p.name != "quirks"
    ]


_PLAIN = (bool, int, float, str, type, type(None))


def build(case: Case, classes: Any = OURS, **options: Any) -> Any:
    """Creates the case's `EmbeddingConfigSpec`.

    Args:
        classes: the namespace of the legacy classes.
        **options: further arguments of the spec.
    """
    settings: dict[str, Any] = {**case.options, **options}
    multiplier = settings.pop("experimental_gradient_multiplier_fn", None)
    if multiplier is not None:
        settings["experimental_gradient_multiplier_fn"] = RATES[multiplier]
    if case.columns is not None:
        settings["feature_columns"] = build_columns(case.columns)
    else:
        settings["table_to_config_dict"] = {
            name: classes.TableConfig(
                vocabulary_size=table.vocabulary_size,
                dimension=table.dimension,
                combiner=table.combiner,
                hot_id_replication=table.hot_id_replication,
                learning_rate=table.learning_rate,
                learning_rate_fn=_rate(table.learning_rate_fn),
                optimization_parameters=build_optimizer(table.optimizer, classes),
            )
            for name, table in case.tables.items()
        }
        settings["feature_to_config_dict"] = {
            key: classes.FeatureConfig(
                table_id=feature.table,
                max_sequence_length=feature.max_sequence_length,
                weight_key=feature.weight_key,
            )
            for key, feature in case.features.items()
        }
    settings["optimization_parameters"] = build_optimizer(case.optimizer, classes)
    return classes.EmbeddingConfigSpec(**settings)


def build_optimizer(optimizer: Optimizer | None, classes: Any = OURS) -> Any:
    if optimizer is None:
        return None
    return getattr(classes, f"{optimizer.kind}Parameters")(**optimizer.settings)


def build_columns(columns: tuple[Column, ...]) -> list[Any]:
    """Creates TPU embedding columns, which exist in every version of TensorFlow."""
    return [built for column in columns for built in _build_column(column)]


def _build_column(column: Column) -> list[Any]:
    factory = tf.compat.v1.tpu.experimental
    categorical = [_categorical(column, key) for key in column.keys]
    shared = {
        "dimension": column.dimension,
        "combiner": column.combiner,
        "learning_rate_fn": _rate(column.learning_rate_fn),
    }
    if len(categorical) == 1:
        return [
            factory.embedding_column(
                categorical[0], max_sequence_length=column.max_sequence_length, **shared
            )
        ]
    lengths = [column.max_sequence_length] * len(categorical)
    return list(
        factory.shared_embedding_columns(categorical, max_sequence_lengths=lengths, **shared)
    )


def _categorical(column: Column, key: str) -> Any:
    if column.max_sequence_length:
        categorical = tf.feature_column.sequence_categorical_column_with_identity(
            key, column.vocabulary_size
        )
    else:
        categorical = tf.feature_column.categorical_column_with_identity(
            key, column.vocabulary_size
        )
    if column.weight_key is None:
        return categorical
    return tf.feature_column.weighted_categorical_column(categorical, column.weight_key)


def _rate(name: str | None) -> Any:
    return None if name is None else RATES[name]
