"""Replaces the tables in a model that has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from tf2_engine.keras.observer import Observer
from tf2_engine.types import Object, Variable


class NoEngine(tf.Module):
    """An engine without tables: nothing to load, retrieve or save."""

    @property
    def tables(self) -> Mapping[str, Object]:
        return {}

    def load(self) -> None:
        """Does nothing."""

    def retrieve(self) -> None:
        """Does nothing."""


class _NoLayer(NamedTuple):
    embedding: NoEngine
    trainable_variables: tuple[()] = ()


class NoTables(tf.Module):
    """Replaces the `ColumnEmbedding` in a model without tables. It counts the steps."""

    columns: tuple[()] = ()
    weights: tuple[()] = ()
    observer: Observer | None = None

    def __init__(self) -> None:
        super().__init__()
        self.step: Variable = tf.Variable(0, trainable=False, dtype=tf.int64, name="global_step")
        self.tables = _NoLayer(NoEngine())
