"""Dummy variables, which represent tables in the `var_list` of an optimizer.

TPUEstimator has dummies with the same names: a loss trains the tables whose dummies are in its
`var_list`. A dummy is trainable, has a single element, 0, and is not saved in checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import tensorflow as tf

from tf2_engine.types import Object, Variable

PREFIX = "tpu_embedding_dummy_table_variable_"


def create(tables: Iterable[str]) -> dict[str, Variable]:
    return {table: tf.Variable([0.0], name=f"{PREFIX}{table}") for table in tables}


def table_of(variable: Object, dummies: Mapping[str, Variable]) -> str | None:
    return next((table for table, dummy in dummies.items() if dummy is variable), None)
