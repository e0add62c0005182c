"""Checks of the features and columns that canned estimators are given."""

from __future__ import annotations

from collections.abc import Sequence

from estimator_bridge import errors
from tf2_engine import tf_compat
from tf2_engine.types import Nest, Object


def check_features(features: Nest) -> None:
    if not isinstance(features, dict):
        raise errors.InvalidInput(
            "features should be a dictionary of `Tensor`s. Given type: "
            f"{type(features)}. Return a dict by the keys of the columns from the input_fn."
        )


def check_new_columns(columns: Sequence[Object]) -> None:
    if not tf_compat.is_new_column(columns):
        raise errors.InvalidInput(
            "Received a feature column from TensorFlow v1, but this is a TensorFlow v2 Estimator. "
            "Use columns of tf.feature_column, or an estimator of tf.compat.v1.estimator. The "
            f"columns are {', '.join(str(getattr(each, 'name', each)) for each in columns)}."
        )
