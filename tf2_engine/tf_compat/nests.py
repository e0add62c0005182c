"""Functions for nested structures that `tf.nest` does not have."""

from __future__ import annotations

from collections.abc import Callable

from tensorflow.python.util import nest as _nest

from tf2_engine.types import Nest, Object

nest = _nest
"""TensorFlow's internal functions for nested structures."""

flatten_with_paths: Callable[[Nest], list[tuple[tuple[str | int, ...], Object]]]
flatten_with_paths = _nest.flatten_with_tuple_paths
"""Lists the leaves of a nest, each with its path of keys and positions."""
