"""Gives tests access to stock's TPUEstimator. Import this only on TensorFlow 2.15.

No code of stock is copied. Tests call stock's own classes and functions, without a TPU.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Mapping
from typing import Any

from tensorflow.python.tpu import tpu_embedding
from tensorflow_estimator.python.estimator import keras_lib, model_fn, run_config
from tensorflow_estimator.python.estimator.api._v1 import estimator as _estimator
from tensorflow_estimator.python.estimator.api._v2 import estimator as _estimator_v2
from tensorflow_estimator.python.estimator.canned import head
from tensorflow_estimator.python.estimator.tpu import (
    _tpu_estimator_embedding,
    tpu_config,
    tpu_estimator,
)

ESTIMATOR = _estimator
"""Stock's `tf.compat.v1.estimator`, even after the bridge has replaced it in TensorFlow."""

NAMESPACES = {1: _estimator, 2: _estimator_v2}
"""Stock's estimator namespaces for both versions of TensorFlow's API."""

PRIVATE_HEADS = head
"""The module with the heads of TensorFlow 1's canned estimators."""

model_to_estimator = keras_lib.model_to_estimator
"""The function that `tf.keras.estimator.model_to_estimator` calls."""

CLASSES = types.SimpleNamespace(
    **{name: kind for name, kind in vars(tpu_embedding).items() if name.endswith("Parameters")},
    TableConfig=tpu_embedding.TableConfig,
    FeatureConfig=tpu_embedding.FeatureConfig,
    EmbeddingConfigSpec=_tpu_estimator_embedding.EmbeddingConfigSpec,
    BaseRunConfig=run_config.RunConfig,
    RunConfig=tpu_config.RunConfig,
    TPUConfig=tpu_config.TPUConfig,
    InputPipelineConfig=tpu_config.InputPipelineConfig,
    ModeKeys=model_fn.ModeKeys,
    EstimatorSpec=model_fn.EstimatorSpec,
    TPUEstimatorSpec=tpu_estimator.TPUEstimatorSpec,
)
"""Stock's legacy classes, under the same names as ours."""


def embedding(spec: Any, *, training: bool, batch_size: int, num_hosts: int, num_cores: int) -> Any:
    """Creates stock's legacy `TPUEmbedding` for a spec, as TPUEstimator does for one mode.

    Args:
        batch_size: the number of samples in the global batch.
        num_cores: the number of cores on all hosts together.
    """
    tables, features = spec.table_to_config_dict, spec.feature_to_config_dict
    if spec.feature_columns:
        tables, features = _tpu_estimator_embedding.get_configs_from_feature_columns(
            spec.feature_columns
        )
    return tpu_embedding.TPUEmbedding(
        tables,
        features,
        batch_size,
        tpu_embedding.TRAINING if training else tpu_embedding.INFERENCE,
        master=None,
        optimization_parameters=spec.optimization_parameters if training else None,
        pipeline_execution_with_tensor_core=spec.pipeline_execution_with_tensor_core,
        partition_strategy=spec.partition_strategy,
        profile_data_directory=spec.profile_data_directory,
        # Otherwise stock would ask a TPU for its configuration.
        device_config=tpu_embedding.DeviceConfig(num_hosts, num_cores, "/job:worker"),
    )


def lookups(spec: Any) -> list[tuple[str, str]]:
    """Lists stock's features in the order of the device, and the combiner of each."""
    legacy = embedding(spec, training=False, batch_size=1, num_hosts=1, num_cores=1)
    features = [key for keys in legacy.table_to_features_dict.values() for key in keys]
    return list(zip(features, legacy._combiners, strict=True))


def split_inputs(
    spec: Any, features: Mapping[str, Any], *, num_cores: int, batch_size: int
) -> tuple[dict[str, Any], list[Mapping[str, Any]]]:
    """Returns the features that stock passes to a model_fn, and each core's enqueued features.

    Args:
        batch_size: the number of samples in `features`, for all cores together.
    """
    legacy = embedding(spec, training=True, batch_size=batch_size, num_hosts=1, num_cores=num_cores)
    context = types.SimpleNamespace(
        embedding_config=types.SimpleNamespace(tpu_embedding=legacy),
        tensor_core_embedding_columns=spec.tensor_core_feature_columns or (),
        batch_size_for_input_fn=batch_size,
    )
    rest, _, enqueued = _tpu_estimator_embedding.split_inputs(
        context, collections.OrderedDict(features), None, num_cores
    )
    return dict(rest), list(enqueued)


def slot_names(parameters: Any, variable: str) -> tuple[str, ...]:
    """Lists the names of a variable's slots in stock's checkpoints."""
    handler = tpu_embedding._get_optimization_handler(parameters)
    return tuple(handler.get_default_slot_variable_names(variable) or ())


def raised(function: Callable[..., Any], *args: Any, **settings: Any) -> type[Exception] | None:
    """Returns the class of the exception that a call raises, or None."""
    try:
        function(*args, **settings)
    except Exception as error:
        return type(error)
    return None
