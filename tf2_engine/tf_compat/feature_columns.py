"""Functions for TPU feature columns, and for new and old feature columns of canned estimators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf
from tensorflow.python.feature_column import feature_column as _feature_column
from tensorflow.python.feature_column import feature_column_v2 as _feature_column_v2
from tensorflow.python.feature_column import sequence_feature_column as _sequence_column
from tensorflow.python.tpu import feature_column as _columns
from tensorflow.python.tpu import feature_column_v2 as _columns_v2

from tf2_engine.types import Graph, Object, Tensor

sequence_length_key: Callable[[str], str]
sequence_length_key = _columns.get_sequence_length_feature_key_name_from_feature_key_name
"""Returns the key under which columns look for the lengths of a sequence feature."""

pad_ids: Callable[..., tuple[Tensor, Tensor]] = _columns_v2.pad_sparse_embedding_lookup_indices
"""Pads sparse ids to a length, and computes a mask of the ids, for tensor-core columns."""


def mask_key(feature_key: str) -> str:
    return feature_key + str(_columns_v2._TENSOR_CORE_MASK_KEY_SUFFIX)


def column_scopes(graph: Graph) -> dict[str, tuple[str, str]]:
    """Clears and returns TensorFlow's record of TPU columns.

    The record maps a variable's name to its scope and to its name in the feature column.
    """
    key = _columns._TPU_FC_TO_SCOPE
    recorded = graph.get_collection(key)
    graph.clear_collection(key)
    return dict(recorded[0]) if recorded else {}


is_new_column: Callable[[Sequence[Object]], bool] = _feature_column_v2.is_feature_column_v2
"""Whether columns come from `tf.feature_column`, and not from TensorFlow 1's private classes."""

sorted_columns: Callable[[Sequence[Object]], list[Object]]
sorted_columns = _feature_column_v2._normalize_feature_columns
"""Checks feature columns and sorts them by name."""

column_scope_name: Callable[[str], str]
column_scope_name = _feature_column_v2._sanitize_column_name_for_variable_scope
"""The name of a feature column, changed so that it is a valid variable scope."""

check_batch_sizes: Callable[[Sequence[Tensor], Sequence[Object]], None]
check_batch_sizes = _feature_column_v2._verify_static_batch_size_equality

FeatureCache = tf.__internal__.feature_column.FeatureTransformationCache
"""Maps columns to transformed features. Each feature is transformed only once."""

ColumnState = tf.__internal__.feature_column.StateManager
"""The variables of the feature columns of a Keras layer."""

DenseColumn = tf.__internal__.feature_column.DenseColumn
CategoricalColumn = _feature_column_v2.CategoricalColumn

V1InputLayer = _feature_column.InputLayer
"""The layer behind `tf.compat.v1.feature_column.input_layer`."""

V1LinearModel = _feature_column._LinearModel
"""The Keras model behind `tf.compat.v1.feature_column.linear_model`."""

with_context: Callable[[Tensor, Tensor], Tensor] = _sequence_column.concatenate_context_input
"""Appends the values of context features to every step of sequences."""


def weighted_sum(**arguments: object) -> Tensor:
    return _feature_column_v2._create_weighted_sum(**arguments)


def is_dense_column(column: object, *, numeric: bool = False) -> bool:
    if numeric:
        kinds = (_feature_column_v2.NumericColumn, _feature_column._NumericColumn)
    else:
        kinds = (DenseColumn, _feature_column._DenseColumn)
    return isinstance(column, kinds)


def dense_values(column: Object, features: Mapping[str, object]) -> Tensor:
    return column._get_dense_tensor(_feature_column._LazyBuilder(features))
