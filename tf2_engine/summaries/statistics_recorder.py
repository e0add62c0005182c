"""Records statistics of tables in the steps of a tf.function, at an interval."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf2_engine import tf_compat
from tf2_engine.backends.interface import Gradients
from tf2_engine.batch import FeatureBatch
from tf2_engine.embedding import TPUEmbedding
from tf2_engine.graph_mode import run_if
from tf2_engine.plan import Plan
from tf2_engine.summaries import statistics
from tf2_engine.types import Tensor


class StatisticsRecorder:
    """Keeps the statistics of every `every`-th step, from the first one, in a variable.

    In other steps a condition in the graph skips the statistics. Trace step functions after this
    call.
    """

    def __init__(self, engine: TPUEmbedding, every: int) -> None:
        self._engine, self._every = engine, every
        with tf.init_scope():
            self._steps = tf_compat.plain_variable(
                initial_value=tf.zeros([], tf.int64), trainable=False
            )
            self._values = tf_compat.plain_variable(
                initial_value=tf.zeros([0, len(statistics.OF_STEP)]),
                trainable=False,
                shape=tf.TensorShape([None, len(statistics.OF_STEP)]),
            )
        engine.observe(self._observe)

    def stop(self) -> None:
        self._engine.observe(None)

    def read(self) -> dict[str, float]:
        """Reads the statistics of the latest recorded step, and of the tables now, by name."""
        rows = self._values.numpy()
        if not len(rows):
            return {}
        values: dict[str, float] = {}
        for table, row in zip(self._engine.plan.tables, rows, strict=True):
            values |= statistics.tagged(table, zip(statistics.OF_STEP, row, strict=True))
        for each in self._engine.tables.values():
            values |= statistics.tagged(each.plan, statistics.of_table(each).items())
        return values

    def _observe(
        self, plan: Plan, parts: Sequence[Sequence[FeatureBatch]], gradients: Gradients
    ) -> None:
        self._steps.assign_add(tf.ones([], tf.int64))
        due = tf.equal(tf.convert_to_tensor(self._steps) % self._every, 1 % self._every)

        def record() -> Tensor:
            rows = [statistics.of_step(plan, table, parts, gradients) for table in plan.tables]
            self._values.assign(tf.stack(rows))
            return tf.constant(True)

        # As a single op, because the executor visits each op of a branch that is not taken.
        as_one = tf.function(record, autograph=False, experimental_attributes={"_noinline": True})
        run_if(due, record if tf.executing_eagerly() else as_one)
