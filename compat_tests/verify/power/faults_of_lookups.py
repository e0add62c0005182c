"""Faults in lookups: combiners, weights, truncation, ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from compat_tests.verify.power import seams
from compat_tests.verify.power.fault import Subject, of_engine
from compat_tests.verify.power.program import LENGTH


def _with_combiner(combiner: str) -> Callable[[Any, Any], Any]:
    def change(plan: Any, raw: Any) -> Any:
        table = dataclasses.replace(plan.table, combiner=combiner)
        return dataclasses.replace(plan, table=table), raw

    return change


def _with_weights(change: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda plan, raw: (plan, dataclasses.replace(raw, weight=change(raw.weight)))


def _kept(keep: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """Creates a change that keeps only some of a feature's raw ids."""

    def change(plan: Any, raw: Any) -> Any:
        kept = keep(raw)
        return plan, dataclasses.replace(
            raw,
            index=tf.boolean_mask(raw.index, kept),
            ids=tf.boolean_mask(raw.ids, kept),
            weight=None if raw.weight is None else tf.boolean_mask(raw.weight, kept),
        )

    return change


def _first_of_each(raw: Any) -> Any:
    def first(indices: Any, ids: Any) -> Any:
        pairs = np.stack([indices[:, 0], ids], 1)
        kept = np.zeros(len(ids), bool)
        kept[np.unique(pairs, axis=0, return_index=True)[1]] = True
        return kept

    kept = tf.numpy_function(first, [raw.index, raw.ids], tf.bool)
    kept.set_shape([None])
    return kept


def _later_positions(plan: Any, raw: Any) -> Any:
    """Shifts a sequence by one, so that its first position is cut instead of its last ones."""
    column = raw.index[:, 1]
    moved = tf.where(tf.equal(column, 0), column + LENGTH, column - 1)
    return plan, dataclasses.replace(raw, index=tf.stack([raw.index[:, 0], moved], 1))


def _over_root(plan: Any, raw: Any) -> Any:
    """Divides by sqrt(sum of a sample's weights), not by sqrt(sum of the squared weights)."""
    sample = raw.index[:, 0]
    total = tf.math.unsorted_segment_sum(raw.weight, sample, tf.reduce_max(sample) + 1)
    table = dataclasses.replace(plan.table, combiner="sum")
    weight = raw.weight * tf.gather(tf.math.rsqrt(total), sample)
    return dataclasses.replace(plan, table=table), dataclasses.replace(raw, weight=weight)


def _to_other_row(plan: Any, raw: Any) -> Any:
    last = plan.table.vocabulary_size - 1
    return plan, dataclasses.replace(raw, ids=tf.minimum(raw.ids, last - 1))


LOOKUPS = {
    "mean as sum": of_engine(
        "a lookup that should return the mean returns the sum",
        Subject("combiner", "items", "combiner"),
        seams.occurrences("shown", _with_combiner("sum")),
    ),
    "sqrtn of weights": of_engine(
        "sqrtn divides by sqrt(sum of weights), not by sqrt(sum of squared weights)",
        Subject("combiner", "words", "combiner"),
        seams.occurrences("query", _over_root),
    ),
    "mean's gradient": of_engine(
        "the gradient of a mean is computed like the gradient of a sum",
        Subject("combiner", "items", "gradient combiner"),
        seams.sent("shown", lambda occurrences, g: g / occurrences.gain[:, tf.newaxis]),
    ),
    "lost weights": of_engine(
        "every weight is replaced by 1",
        Subject("weights", "words", "lost weight"),
        seams.occurrences("query", _with_weights(tf.ones_like)),
    ),
    "weights up to 1": of_engine(
        "weights above 1 are replaced by 1",
        Subject("weights", "words", "weights"),
        seams.occurrences("query", _with_weights(lambda weight: tf.minimum(weight, 1.0))),
    ),
    "gain twice": of_engine(
        "an id's factor in the lookup (weight, combiner) is applied to its gradient twice",
        Subject("weights", "words", "gradient combiner"),
        seams.sent("query", lambda occurrences, g: g * occurrences.gain[:, tf.newaxis]),
    ),
    "duplicates in a sample": of_engine(
        "an id that occurs twice in a sample counts only once",
        Subject("duplicates", "items", "dropped duplicate"),
        seams.occurrences("shown", _kept(_first_of_each)),
    ),
    "cut too early": of_engine(
        "sequences are cut off one position too early",
        Subject("truncation", "items", "truncation"),
        seams.occurrences("clicked", _kept(lambda raw: raw.index[:, 1] < LENGTH - 1)),
    ),
    "cut at the front": of_engine(
        "positions 1 to 3 of a sequence are kept, not positions 0 to 2",
        Subject("truncation", "items", "truncation"),
        seams.occurrences("clicked", _later_positions),
    ),
    "last row": of_engine(
        "the id of a table's last row is replaced by the id before it",
        Subject("sharding", "items", "wrong row"),
        seams.occurrences("clicked", _to_other_row),
    ),
    "id 0 as padding": of_engine(
        "id 0 is treated as padding",
        Subject("one row", "items", "id 0"),
        seams.occurrences("shown", _kept(lambda raw: raw.ids > 0)),
    ),
    "stale activations": of_engine(
        "rows are looked up before the previous step's update",
        Subject("pipelining", "users", "stale activation"),
        seams.planned(pipeline_execution_with_tensor_core=True),
    ),
    "not pipelined": of_engine(
        "a pipelined program runs without pipelining",
        Subject("pipelining", "pipelined", "stale activation"),
        seams.planned(pipeline_execution_with_tensor_core=False),
    ),
}
