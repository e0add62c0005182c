"""Defines the types of functions that a program passes to an estimator, and of their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import tensorflow.compat.v1 as tf

from estimator_bridge.legacy.estimator_spec import EstimatorSpec, TPUEstimatorSpec
from tf2_engine.types import Nest, Object, Tensor

Hook: TypeAlias = tf.train.SessionRunHook
RunContext: TypeAlias = tf.train.SessionRunContext
RunValues: TypeAlias = tf.train.SessionRunValues

Columns: TypeAlias = Sequence[Object]
Features: TypeAlias = Mapping[str, Tensor]
"""Maps keys to the features that feature columns and heads read."""

InputBatch: TypeAlias = tuple[Nest, Nest]
"""Features and labels. Labels may be None."""

ModelSpec: TypeAlias = EstimatorSpec | TPUEstimatorSpec
"""The result of a model_fn. Stock's classes have the same fields."""

InputFn: TypeAlias = Callable[..., Object]
"""Takes any of params, config and mode; returns a dataset, features, or (features, labels)."""

ModelFn: TypeAlias = Callable[..., ModelSpec]
"""Takes features and any of labels, mode, config and params."""

ReadInput: TypeAlias = Callable[[], Object]
"""An input_fn with its arguments bound."""

CallModel: TypeAlias = Callable[[Nest, Nest], ModelSpec]
"""A model_fn with all arguments bound except features and labels."""
