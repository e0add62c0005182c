"""Tables and features in dicts by name, as `tf.tpu.experimental` configures them for estimators."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping

import tensorflow as tf

from tf2_engine.keras.columns import ByStep, TableColumn, id_column
from tf2_engine.types import Initializer, Object

_TableConfig = tf.tpu.experimental.embedding.TableConfig


@dataclasses.dataclass(frozen=True)
class TableSettings:
    """A table.

    Args:
        learning_rate: replaces the rate of the optimizer.
        learning_rate_fn: computes the rate from the step.
        optimization_parameters: its optimizer. None is that of the model.
    """

    vocabulary_size: int
    dimension: int
    initializer: Initializer | None = None
    combiner: str = "mean"
    hot_id_replication: bool = False
    learning_rate: float | None = None
    learning_rate_fn: Callable[[Object], Object] | None = None
    optimization_parameters: Object = None

    def config(self, name: str, optimizer: Object) -> Object:
        """Returns the TableConfig, which has no optimizer if it has that of the model."""
        rate: Object = self.learning_rate
        if self.learning_rate_fn is not None:
            rate = ByStep(self.learning_rate_fn)
        own = self.optimization_parameters
        if rate is not None:
            own = copy.copy(optimizer if own is None else own)
            own.learning_rate = rate
        return _TableConfig(
            self.vocabulary_size, self.dimension, self.initializer, own, self.combiner, name
        )


@dataclasses.dataclass(frozen=True)
class FeatureSettings:
    """A feature: the name of its table, and how it is looked up."""

    table_id: str
    max_sequence_length: int = 0
    weight_key: str | None = None


def columns_of(
    tables: Mapping[str, TableSettings],
    features: Mapping[str, FeatureSettings],
    optimizer: Object = None,
) -> dict[str, TableColumn]:
    """Makes the columns of a `ColumnEmbedding` by the keys of features."""
    configs = {name: each.config(name, optimizer) for name, each in tables.items()}
    return {
        key: id_column(key, configs[each.table_id], each.max_sequence_length or 0, each.weight_key)
        for key, each in features.items()
    }
