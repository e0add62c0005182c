"""Statistics of a table's rows, and of its training steps, recorded at an interval."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence

import tensorflow as tf

from tf2_engine import batch, errors, tf_compat
from tf2_engine.backends.host.kernels import row_gradients
from tf2_engine.backends.interface import Gradients
from tf2_engine.batch import FeatureBatch
from tf2_engine.embedding import TPUEmbedding
from tf2_engine.graph_mode import run_if
from tf2_engine.plan import Plan, TablePlan
from tf2_engine.summaries.events import EventFile
from tf2_engine.summaries.projector import Labels, first_rows, write_projector
from tf2_engine.tables import PARAMETERS, Table
from tf2_engine.types import Tensor, TensorLike

OF_STEP = (
    "ids",
    "ids_per_sample",
    "rows_touched",
    "out_of_vocabulary",
    "gradient_norm",
    "clipped_share",
)
"""The names of the statistics that `of_step` computes, in order."""

MOST_ROWS = 1 << 14
"""The largest number of rows that are read, so that the cost does not grow with the table."""


def of_step(
    plan: Plan,
    table: TablePlan,
    parts: Sequence[Sequence[FeatureBatch]],
    gradients: Gradients,
) -> Tensor:
    """Computes the statistics `OF_STEP` of a table in one training step, [6] float32.

    * ids: the number of ids in the batch of all cores.
    * ids_per_sample: the number of ids per sample, over all features of the table.
    * rows_touched: the number of distinct rows that the batch looks up.
    * out_of_vocabulary: the share of ids outside the table.
    * gradient_norm: the L2 norm of all rows' gradients, before clipping. A row's gradient is
      summed over the batch.
    * clipped_share: the share of gradient elements outside the optimizer's limits.
    """
    ids, rows, samples, num_ids = [], [], [], []
    for part, of_core in zip(parts, gradients, strict=True):
        for position in plan.features_of(table):
            feature = plan.features[position]
            raw = batch.read_unchecked(*part[position])
            inside = batch.occurrences(feature, raw, "drop")
            ids.append(inside.ids)
            rows.append(row_gradients(inside, of_core[position]))
            samples.append(tf.cast(raw.num_samples, tf.float32))
            num_ids.append(raw.ids)
    touched, position = tf.unique(tf.concat(ids, 0))
    distinct = tf.size(touched)
    sums = tf.math.unsorted_segment_sum(tf.concat(rows, 0), position, distinct)
    all_ids = tf.concat(num_ids, 0)
    outside = (all_ids < 0) | (all_ids >= table.vocabulary_size)
    total = tf.cast(tf.size(all_ids), tf.float32)
    limits = table.optimizer.clip_gradient_min, table.optimizer.clip_gradient_max
    return tf.stack(
        [
            total,
            tf.math.divide_no_nan(total, tf.add_n(samples)),
            tf.cast(distinct, tf.float32),
            _share(outside),
            tf.norm(sums),
            _share(_beyond(sums, limits, operator.lt, operator.gt)),
        ]
    )


def _beyond(
    values: Tensor,
    limits: tuple[float | None, float | None],
    below: Callable[[Tensor, float], Tensor],
    above: Callable[[Tensor, float], Tensor],
) -> Tensor:
    low, high = limits
    beyond: Tensor = tf.zeros_like(values, tf.bool)
    if low is not None:
        beyond |= below(values, low)
    if high is not None:
        beyond |= above(values, high)
    return beyond


def _share(condition: Tensor) -> Tensor:
    count = tf.reduce_sum(tf.cast(condition, tf.float32))
    return tf.math.divide_no_nan(count, tf.cast(tf.size(condition), tf.float32))


def of_table(table: Table) -> dict[str, Tensor]:
    """Computes norms of rows and ranges of slots: a dict of float32 scalars.

    "norm/mean" and "norm/max" are L2 norms of rows. "<slot>/min" and "<slot>/max" are the range of
    a slot's elements. "weights_at_limit" is the share of weights that reach a weight limit; it is
    left out if the optimizer has none. At most `MOST_ROWS` evenly spread rows are read.
    """
    size = table.plan.vocabulary_size
    rows = tf.range(0, size, -(-size // MOST_ROWS), tf.int64)
    values = {name: table.gather(name, rows) for name in table.variables}
    weights = values.pop(PARAMETERS)
    norms = tf.norm(weights, axis=1)
    scalars = {"norm/mean": tf.reduce_mean(norms), "norm/max": tf.reduce_max(norms)}
    for name, value in values.items():
        scalars |= {f"{name}/min": tf.reduce_min(value), f"{name}/max": tf.reduce_max(value)}
    optimizer = table.plan.optimizer
    if optimizer.clips_weights:
        limits = optimizer.clip_weight_min, optimizer.clip_weight_max
        scalars["weights_at_limit"] = _share(_beyond(weights, limits, operator.le, operator.ge))
    return scalars


def tagged(table: TablePlan, values: Iterable[tuple[str, TensorLike]]) -> dict[str, float]:
    return {
        f"tables/{table.name}/{statistic}": float(value)
        for statistic, value in values
        if statistic != "clipped_share" or table.optimizer.clips_gradients
    }


class StatisticsRecorder:
    """Stores, in a variable, the statistics of the first step and then of every `every`-th step.

    In other steps, a condition in the graph skips the computation. Create this object before
    tracing the functions that run steps.
    """

    def __init__(self, engine: TPUEmbedding, every: int) -> None:
        self._engine, self._every = engine, every
        with tf.init_scope():
            self._steps = tf_compat.plain_variable(
                initial_value=tf.zeros([], tf.int64), trainable=False
            )
            self._values = tf_compat.plain_variable(
                initial_value=tf.zeros([0, len(OF_STEP)]),
                trainable=False,
                shape=tf.TensorShape([None, len(OF_STEP)]),
            )
        engine.observe(self._observe)

    def stop(self) -> None:
        self._engine.observe(None)

    def read(self) -> dict[str, float]:
        rows = self._values.numpy()
        if not len(rows):
            return {}
        values: dict[str, float] = {}
        for table, row in zip(self._engine.plan.tables, rows, strict=True):
            values |= tagged(table, zip(OF_STEP, row, strict=True))
        for each in self._engine.tables.values():
            values |= tagged(each.plan, of_table(each).items())
        return values

    def _observe(
        self, plan: Plan, parts: Sequence[Sequence[FeatureBatch]], gradients: Gradients
    ) -> None:
        self._steps.assign_add(tf.ones([], tf.int64))
        due = tf.equal(tf.convert_to_tensor(self._steps) % self._every, 1 % self._every)

        def record() -> Tensor:
            rows = [of_step(plan, table, parts, gradients) for table in plan.tables]
            self._values.assign(tf.stack(rows))
            return tf.constant(True)

        # A single op, because the executor visits every op, even in a branch that is not taken.
        as_one = tf.function(record, autograph=False, experimental_attributes={"_noinline": True})
        run_if(due, record if tf.executing_eagerly() else as_one)


EVERY = 1000
"""The default interval in steps; docs/tensorboard.md gives the measured cost of recording."""


def checked_interval(every_n_steps: int) -> int:
    if every_n_steps < 1:
        raise errors.InvalidInput(f"`every_n_steps` must be at least 1, got {every_n_steps!r}.")
    return every_n_steps


class TableSummaries:
    """Writes statistics of tables, and data for the embedding projector at the end.

    The arguments are those of `TableSummaryHook`.
    """

    def __init__(
        self,
        output_dir: str | None = None,
        every_n_steps: int = EVERY,
        projector_rows: int = 0,
        labels: Labels | None = None,
    ) -> None:
        self.output_dir, self.every_n_steps = output_dir, checked_interval(every_n_steps)
        self._projector_rows, self._labels = projector_rows, labels
        self._engines: Sequence[TPUEmbedding] = ()
        self._recorders: list[StatisticsRecorder] = []
        self._events: EventFile | None = None
        self._steps = self._written = 0

    def watch(self, engines: Sequence[TPUEmbedding], default_dir: str | None = None) -> None:
        directory = self.output_dir or default_dir
        if directory is None:
            raise errors.InvalidInput("`output_dir` is missing. Give the directory for summaries.")
        self._engines, self.directory = engines, directory
        self._recorders = [StatisticsRecorder(each, self.every_n_steps) for each in engines]
        self._events = EventFile(directory)
        self._steps = self._written = 0

    def count(self, step: int, steps: int = 1) -> None:
        """Counts `steps` steps up to global step `step`, and writes statistics if they are due."""
        self._steps += steps
        if self._events is None or self._steps <= self._written:
            return
        due = 1 + (self._steps - 1) // self.every_n_steps * self.every_n_steps
        self._written = due + self.every_n_steps - 1
        for recorder in self._recorders:
            self._events.scalars(step - (self._steps - due), recorder.read())

    def close(self) -> None:
        for recorder in self._recorders:
            recorder.stop()
        if self._events is not None:
            self._events.flush()
        rows: dict[str, TensorLike] = {}
        for engine in self._engines:
            rows |= first_rows(engine.tables, self._projector_rows)
        if rows:
            write_projector(self.directory, rows, self._labels, self._projector_rows)
        self._recorders, self._events = [], None
