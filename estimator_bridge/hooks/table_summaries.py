"""A session hook that writes statistics of tables into event files."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.runtime.program_types import RunContext, RunValues
from estimator_bridge.runtime.step import engine_step
from tf2_engine.summaries import statistics
from tf2_engine.summaries.events import EventFile
from tf2_engine.summaries.projector import Labels, first_rows, write_projector
from tf2_engine.summaries.statistics import EVERY, checked_interval
from tf2_engine.types import Session, Tensor


class TableSummaryHook(tf.train.SessionRunHook):
    """Writes statistics of the tables of a TPUEstimator into event files, for TensorBoard.

        estimator.train(input_fn, hooks=[TableSummaryHook("model")], max_steps=10_000)

    docs/tensorboard.md lists the statistics. They are computed only in steps in which the hook
    writes. If one session call runs several steps (`iterations_per_loop`), the statistics are those
    of the last step.

    Args:
        output_dir: the directory of the event files, for instance the estimator's `model_dir`.
        every_n_steps: the minimum number of steps between two writes. The hook always writes in
            the first step.
        projector_rows: how many rows of each table to write for the embedding projector when
            training ends. 0 writes none.
        labels: maps a table's name to the names of its rows in the projector.

    Raises:
        InvalidInput: `every_n_steps` is less than 1; or, when training begins, the model has no
            tables in the engine.
    """

    def __init__(
        self,
        output_dir: str,
        every_n_steps: int = EVERY,
        projector_rows: int = 0,
        labels: Labels | None = None,
    ) -> None:
        self._directory, self._every = output_dir, checked_interval(every_n_steps)
        self._projector_rows, self._labels = projector_rows, labels

    def begin(self) -> None:
        tables = engine_step.tables_of_graph(tf.get_default_graph())
        if tables is None:
            raise errors.InvalidInput(
                "TableSummaryHook: this training run has no tables. Set use_tpu=True and an "
                "`embedding_config_spec`, or leave the hook out."
            )
        plan = tables.engine.plan
        parts, gradients = tables.parts(), tables.gradients_in_order()
        self._of_step = {
            table.name: statistics.of_step(plan, table, parts, gradients) for table in plan.tables
        }
        self._tables = tables.engine.tables if tables.is_current else {}
        self._of_tables = {name: statistics.of_table(table) for name, table in self._tables.items()}
        self._rows = first_rows(self._tables, self._projector_rows)
        self._plans = {table.name: table for table in plan.tables}
        # Without this dependency, the step could be read before or after it is incremented.
        with tf.control_dependencies([tables.train_op]):
            self._step: Tensor = tf.train.get_global_step().read_value()
        self._events = EventFile(self._directory)
        self._is_due = True
        self._next = 0  # the next step to write
        self._latest: int | None = None

    def before_run(self, run_context: RunContext) -> tf.train.SessionRunArgs:
        return tf.train.SessionRunArgs([self._step, self._of_step if self._is_due else {}])

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        step, of_step = int(run_values.results[0]), run_values.results[1]
        if of_step:
            self._write(step, of_step, run_context.session.run(self._of_tables))
            self._next = step + self._every
        # A loop runs several steps per call.
        steps = 1 if self._latest is None else step - self._latest
        self._latest = step
        self._is_due = step + steps >= self._next

    def end(self, session: Session) -> None:
        self._events.flush()
        if self._rows:
            write_projector(
                self._directory, session.run(self._rows), self._labels, self._projector_rows
            )

    def _write(self, step: int, of_step: object, of_tables: object) -> None:
        scalars: dict[str, float] = {}
        for name, plan in self._plans.items():
            row = zip(statistics.OF_STEP, of_step[name], strict=True)  # type: ignore[index]
            scalars |= statistics.tagged(plan, row)
        for name, values in of_tables.items():  # type: ignore[attr-defined]
            scalars |= statistics.tagged(self._plans[name], values.items())
        self._events.scalars(step, scalars)
