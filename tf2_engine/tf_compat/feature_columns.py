"""Feature columns: those of TPUs, and those of canned estimators of either generation."""

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
"""Returns sparse ids, as tensor-core columns take them: padded to a length, and a mask of them."""


def mask_key(feature_key: str) -> str:
    """Returns the key under which tensor-core columns look for the mask of their ids."""
    return feature_key + str(_columns_v2._TENSOR_CORE_MASK_KEY_SUFFIX)


def column_scopes(graph: Graph) -> dict[str, tuple[str, str]]:
    """Returns the records of TPU columns in use: variable name to (scope, name).

    Clears the record, as stock does.
    """
    key = _columns._TPU_FC_TO_SCOPE
    recorded = graph.get_collection(key)
    graph.clear_collection(key)
    return dict(recorded[0]) if recorded else {}


is_new_column: Callable[[Sequence[Object]], bool] = _feature_column_v2.is_feature_column_v2
"""Returns whether columns are of `tf.feature_column`, not of TensorFlow 1's private classes."""

sorted_columns: Callable[[Sequence[Object]], list[Object]]
sorted_columns = _feature_column_v2._normalize_feature_columns
"""Returns feature columns checked and in the order of their names."""

column_scope_name: Callable[[str], str]
column_scope_name = _feature_column_v2._sanitize_column_name_for_variable_scope
"""Returns the name of a feature column as a variable scope can have it."""

check_batch_sizes: Callable[[Sequence[Tensor], Sequence[Object]], None]
check_batch_sizes = _feature_column_v2._verify_static_batch_size_equality
"""Raises ValueError if tensors of feature columns differ in their batch size."""

FeatureCache = tf.__internal__.feature_column.FeatureTransformationCache
"""Features by column, each transformed once."""

ColumnState = tf.__internal__.feature_column.StateManager
"""The variables of the feature columns of a Keras layer."""

DenseColumn = tf.__internal__.feature_column.DenseColumn
CategoricalColumn = _feature_column_v2.CategoricalColumn

V1InputLayer = _feature_column.InputLayer
"""The layer of `tf.compat.v1.feature_column.input_layer`."""

V1LinearModel = _feature_column._LinearModel
"""The Keras model of `tf.compat.v1.feature_column.linear_model`."""

with_context: Callable[[Tensor, Tensor], Tensor] = _sequence_column.concatenate_context_input
"""Returns sequences with the values of their context added to every step."""


def weighted_sum(**arguments: object) -> Tensor:
    """Returns the sum of a column's weights over the values of each example, [batch, units].

    Takes `column`, `transformation_cache`, `state_manager`, `sparse_combiner` and `weight_var`.
    """
    return _feature_column_v2._create_weighted_sum(**arguments)


def is_dense_column(column: object, *, numeric: bool = False) -> bool:
    """Returns whether an object is a dense feature column, or a numeric one, of either kind."""
    if numeric:
        kinds = (_feature_column_v2.NumericColumn, _feature_column._NumericColumn)
    else:
        kinds = (DenseColumn, _feature_column._DenseColumn)
    return isinstance(column, kinds)


def dense_values(column: Object, features: Mapping[str, object]) -> Tensor:
    """Returns the values of a dense feature column of either kind, eagerly or in a graph."""
    return column._get_dense_tensor(_feature_column._LazyBuilder(features))
