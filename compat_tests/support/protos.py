"""Helpers to compare device configurations."""

from __future__ import annotations

from typing import Any

from google.protobuf import text_format

from tf2_engine import tf_compat


def parse(text: str) -> Any:
    return text_format.Parse(text, tf_compat.TPUEmbeddingConfiguration())


def in_order_of_use(proto: Any) -> Any:
    """Returns the proto with its dynamic rates numbered in the order in which tables use them."""
    numbered = type(proto).FromString(proto.SerializeToString())
    numbers: dict[int, int] = {}
    for table in numbered.table_descriptor:
        rate = table.optimization_parameters.learning_rate
        if rate.HasField("dynamic"):
            rate.dynamic.tag = numbers.setdefault(rate.dynamic.tag, len(numbers))
    return numbered
