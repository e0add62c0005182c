"""Tables of vocabularies that are given as tensors."""

from __future__ import annotations

import functools

from estimator_bridge.run.namespaces import load
from tf2_engine.types import Object


def _of_mapping(name: str) -> Object:
    """Returns TensorFlow's function with the first argument's name in `tf.contrib.lookup`."""
    function = load(f"tensorflow.python.ops.lookup_ops:{name}")

    @functools.wraps(function)
    def renamed(mapping: Object, *arguments: Object, **settings: Object) -> Object:
        return function(mapping, *arguments, **settings)

    return renamed


index_table_from_tensor = _of_mapping("index_table_from_tensor")
index_to_string_table_from_tensor = _of_mapping("index_to_string_table_from_tensor")
