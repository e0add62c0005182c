"""Twenty faults that `verify --watch` must find in a single job, without a second side."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from compat_tests.verify.power import seams
from compat_tests.verify.power.fault import Fault, Subject, of_engine, of_model, of_program
from compat_tests.verify.power.faults import FAULTS
from compat_tests.verify.power.program import ROWS

_SHARED = (
    *("Adam's epsilon", "Adam's beta2", "weights not clipped", "gradients not clipped"),
    *("no decay", "frozen slot", "coarse slot", "rate times 1.001", "mean as sum"),
    *("lost weights", "cut too early", "stale activations", "last sample", "frozen row"),
    *("untouched rows", "lost core"),
)
"""The faults that are also seeded into side B of comparisons."""


def _nan(one: seams.RowUpdate) -> Any:
    new = one.new()
    bad = {**new, "accumulators": new["accumulators"] * np.float32(np.nan)}
    return one.where(tf.equal(one.ids, 7), bad)


def _counted_twice(gradients: Any) -> Any:
    """Counts one extra step before the gradients are applied."""
    with tf.control_dependencies([tf.train.get_global_step().assign_add(1)]):
        return [(None if g is None else tf.identity(g), variable) for g, variable in gradients]


def _beyond_the_table(features: Any, number: Any, mode: str) -> Any:
    """Gives the first sample of batch 5 an id beyond the last row."""
    users = features["user"]
    is_first = tf.equal(tf.range(tf.size(users.values)), 0)
    wrong = tf.fill(tf.shape(users.values), tf.constant(ROWS["users"], tf.int64))
    values = tf.where(is_first & tf.equal(number, 5), wrong, users.values)
    return {**features, "user": tf.SparseTensor(users.indices, values, users.dense_shape)}


FAULTS_OF_JOBS: dict[str, Fault] = {
    **{name: FAULTS[name] for name in _SHARED},
    "NaN": of_engine(
        "a slot of one row becomes NaN",
        Subject("one row", "users", "finite"),
        seams.rows("users", _nan),
    ),
    "schedule late": of_engine(
        "the engine applies a learning rate schedule one step late",
        Subject("schedule", "places", "learning rate"),
        seams.rate("places", lambda rate: rate * 0.9 ** (-1 / 1000)),
    ),
    "steps counted twice": of_model(
        "every step adds 2 to the global step",
        Subject("late steps", "users", "global step"),
        trained=_counted_twice,
    ),
    "id beyond the table": of_program(
        "an id lies beyond the last row of its table",
        Subject("one row", "users", "ids"),
        changed=_beyond_the_table,
    ),
}
"""The faults, keyed by name."""
