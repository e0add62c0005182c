"""Makes specs for parsing tf.train.Examples: features of columns, a label, and a weight."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.legacy.requirements import class_names
from tf2_engine.types import DType, Object

ParsingSpec = dict[str, Object]


def classifier_parse_example_spec(
    feature_columns: Iterable[Object],
    label_key: str,
    label_dtype: DType = tf.int64,
    label_default: Object = None,
    weight_column: Object = None,
) -> ParsingSpec:
    """Makes the `tf.io.parse_example` spec of feature columns and a class label of shape [1].

    Args:
        label_default: the label of Examples without a label. None makes parsing such Examples fail.
        weight_column: a numeric column, or its key.

    Raises:
        InvalidSpec: label or weight is also a feature, or the weight is not a numeric column.
    """
    spec = tf.compat.v1.feature_column.make_parse_example_spec(feature_columns)
    label = tf.io.FixedLenFeature((1,), label_dtype, label_default)
    return _with_label(spec, label_key, label, weight_column)


def classifier_parse_example_spec_v2(
    feature_columns: Iterable[Object],
    label_key: str,
    label_dtype: DType = tf.int64,
    label_default: Object = None,
    weight_column: Object = None,
) -> ParsingSpec:
    spec = tf.feature_column.make_parse_example_spec(feature_columns)
    label = tf.io.FixedLenFeature((1,), label_dtype, label_default)
    return _with_label(spec, label_key, label, weight_column)


def regressor_parse_example_spec(
    feature_columns: Iterable[Object],
    label_key: str,
    label_dtype: DType = tf.float32,
    label_default: Object = None,
    label_dimension: int = 1,
    weight_column: Object = None,
) -> ParsingSpec:
    """Like `classifier_parse_example_spec`, for a label of shape [label_dimension]."""
    spec = tf.compat.v1.feature_column.make_parse_example_spec(feature_columns)
    label = tf.io.FixedLenFeature((label_dimension,), label_dtype, label_default)
    return _with_label(spec, label_key, label, weight_column)


def regressor_parse_example_spec_v2(
    feature_columns: Iterable[Object],
    label_key: str,
    label_dtype: DType = tf.float32,
    label_default: Object = None,
    label_dimension: int = 1,
    weight_column: Object = None,
) -> ParsingSpec:
    spec = tf.feature_column.make_parse_example_spec(feature_columns)
    label = tf.io.FixedLenFeature((label_dimension,), label_dtype, label_default)
    return _with_label(spec, label_key, label, weight_column)


def _with_label(
    spec: ParsingSpec, label_key: str, label: Object, weight_column: Object
) -> ParsingSpec:
    _check_no_feature("label", label_key, spec)
    spec[label_key] = label
    if weight_column is None:
        return spec
    if isinstance(weight_column, str):
        weight_column = tf.feature_column.numeric_column(weight_column)
    if "NumericColumn" not in class_names(weight_column):
        raise errors.InvalidSpec(
            f"`weight_column` must be a numeric column or its key, got {weight_column!r}."
        )
    _check_no_feature("weight", weight_column.key, spec)
    return {**spec, **weight_column.parse_example_spec}


def _check_no_feature(what: str, key: str, spec: ParsingSpec) -> None:
    if key in spec:
        raise errors.InvalidSpec(
            f"The {what} {key!r} must not be a feature, too; features are "
            f"{', '.join(sorted(spec))}. Give it another key."
        )
