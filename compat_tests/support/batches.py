"""Helpers for the tests of inputs: a spec, a batch for it, and tensors as lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from compat_tests.cases.legacy import Case, Feature, Optimizer, Table
from compat_tests.support import legacy_specs
from estimator_bridge.runtime.input.feature_splitting import CoreInput, split_batch, split_features
from estimator_bridge.settings.legacy_spec import LegacySpec
from estimator_bridge.translation.read_spec import read_spec

CASE = Case(
    name="inputs",
    optimizer=Optimizer("Adagrad", {"learning_rate": 0.1}),
    tables={"combined": Table(combiner="mean"), "single": Table(combiner=None)},
    features={
        "bag": Feature("combined"),
        "weighted": Feature("combined", weight_key="weight"),
        "sequence": Feature("combined", max_sequence_length=3),
        "one": Feature("single"),
    },
)


def sparse(rows: list[list[int]], dtype: Any = np.int64) -> tf.SparseTensor:
    """Creates a SparseTensor, [len(rows), longest row], with each row's ids at the row's start."""
    return tf.RaggedTensor.from_row_splits(
        np.array([i for row in rows for i in row], dtype),
        np.cumsum([0, *map(len, rows)]),
    ).to_sparse()


def batch() -> dict[str, Any]:
    """Creates four samples with empty rows, repeated ids, id 0 and a sequence that is too long."""
    return {
        "bag": sparse([[1, 0, 1], [], [4], []]),
        "weighted": sparse([[3], [3, 4], [], [5, 0]]),
        "weight": sparse([[2], [1, 1], [], [-1, 3]], np.float64),
        "sequence": sparse([[], [1, 2, 3, 4, 5], [6], []], np.int32),
        "one": tf.constant([7, 0, 2, 0]),
        "dense": tf.reshape(tf.range(8.0), [4, 2]),
    }


def legacy(quirks: str = "documented", **features: Feature) -> LegacySpec:
    """Reads the case's spec, in which `features` replace its own features."""
    case = CASE if not features else Case(**{**vars(CASE), **only(features)})
    return read_spec(legacy_specs.build(case), quirks)


def only(features: Mapping[str, Feature]) -> dict[str, Any]:
    table_names = {feature.table for feature in features.values()}
    tables = {name: table for name, table in CASE.tables.items() if name in table_names}
    return {"features": features, "tables": tables}


def split(features: Mapping[str, Any], legacy: LegacySpec, num_cores: int) -> list[CoreInput]:
    """Splits features among cores, as for a step."""
    return [split_features(part, legacy) for part in split_batch(features, num_cores)]


BAG = {"bag": Feature("combined")}
ONE = {"one": Feature("single")}


def plain(value: Any) -> Any:
    if isinstance(value, tf.SparseTensor):
        parts = (value.indices, value.values, value.dense_shape)
        return [plain(part) for part in parts]
    return None if value is None else (value.dtype.name, value.numpy().tolist())
