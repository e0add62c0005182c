"""Stands in for the tables of a model that has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from tf2_engine.keras.observer import Observer
from tf2_engine.types import Object, Variable


class NoEngine(tf.Module):
    """An engine without tables: there is nothing to load, to retrieve or to save."""

    @property
    def tables(self) -> Mapping[str, Object]:
        """No tables."""
        return {}

    def load(self) -> None:
        """Does nothing."""

    def retrieve(self) -> None:
        """Does nothing."""


class _NoLayer(NamedTuple):
    embedding: NoEngine
    trainable_variables: tuple[()] = ()


class NoTables(tf.Module):
    """Takes the place of a `ColumnEmbedding` in a model without tables: it counts the steps.

    Attributes:
        step: the global step, int64.
        tables: a layer without variables.
        observer: that of the model; there is nothing here for it to see.
        columns, weights: none.
    """

    columns: tuple[()] = ()
    weights: tuple[()] = ()
    observer: Observer | None = None

    def __init__(self) -> None:
        super().__init__()
        self.step: Variable = tf.Variable(0, trainable=False, dtype=tf.int64, name="global_step")
        self.tables = _NoLayer(NoEngine())
