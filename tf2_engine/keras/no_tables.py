"""Stand-ins for the engine and the embedding layer, for models without tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from tf2_engine.keras.observer import Observer
from tf2_engine.types import Object, Variable


class NoEngine(tf.Module):
    """An engine without tables. Its methods do nothing."""

    @property
    def tables(self) -> Mapping[str, Object]:
        return {}

    def load(self) -> None:
        """There is nothing to load."""

    def retrieve(self) -> None:
        """There is nothing to retrieve."""


class _NoLayer(NamedTuple):
    embedding: NoEngine
    trainable_variables: tuple[()] = ()


class NoTables(tf.Module):
    """Replaces the `ColumnEmbedding` in a model without tables, and counts the steps."""

    columns: tuple[()] = ()
    weights: tuple[()] = ()
    observer: Observer | None = None

    def __init__(self) -> None:
        super().__init__()
        self.step: Variable = tf.Variable(0, trainable=False, dtype=tf.int64, name="global_step")
        self.tables = _NoLayer(NoEngine())
