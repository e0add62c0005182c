"""A hook that evaluates a model while it is trained, by the values of the running session."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.checks import POSITIVE
from estimator_bridge.legacy.spec_checks import checked_hooks


class InMemoryEvaluatorHook(tf.train.SessionRunHook):
    """Evaluates at the start of a session, every so many steps, and at its end.

    The values go through a checkpoint in a temporary directory, which is deleted again; the
    model_dir gets the events of the evaluations only. So everything that an evaluation of a
    checkpoint can do works, custom savers included, at the cost of writing the variables once.

    Unlike stock's, each evaluation builds its graph anew.

    Args:
        estimator: what is being trained.
        input_fn, steps, hooks, name: as for `evaluate`.
        every_n_iter: steps from one evaluation to the next.

    Raises:
        InvalidInput: `every_n_iter` is not positive, or the job has parameter servers or several
            workers.
        WrongType: one of `hooks` is none.
    """

    def __init__(
        self,
        estimator: Any,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[Any] | None = None,
        name: str | None = None,
        every_n_iter: int = 100,
    ) -> None:
        if every_n_iter is None or POSITIVE.refused(every_n_iter):
            raise errors.InvalidInput(
                f"`InMemoryEvaluatorHook`: `every_n_iter` must be positive, got {every_n_iter!r}."
            )
        config = estimator.config
        if config.num_ps_replicas > 0 or config.num_worker_replicas > 1:
            raise errors.InvalidInput(
                "`InMemoryEvaluatorHook` needs all variables in one process; the job has "
                f"{config.num_ps_replicas} parameter servers and {config.num_worker_replicas} "
                "workers."
            )
        self._estimator = estimator
        self._input_fn = input_fn
        self._steps = steps
        self._hooks = list(checked_hooks(hooks))
        self._name = name
        self._timer = tf.train.SecondOrStepTimer(every_steps=every_n_iter)
        self._done = 0
        self._saver: Any = None

    def begin(self) -> None:
        """Prepares to copy the variables, before the graph is closed to new ops."""
        self._timer.reset()
        self._done = 0
        self._saver = tf.train.Saver(tf.global_variables(), max_to_keep=1)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Evaluates what training starts from."""
        self._evaluate(session)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Counts steps, and evaluates when it is time."""
        self._done += 1
        if self._timer.should_trigger_for_step(self._done):
            self._evaluate(run_context.session)

    def end(self, session: Any) -> None:
        """Evaluates what training came to."""
        self._evaluate(session)

    def _evaluate(self, session: Any) -> None:
        self._timer.update_last_triggered_step(self._done)
        with tempfile.TemporaryDirectory() as directory:
            # Not a checkpoint that anything else should find: no state file, no graph.
            path = self._saver.save(
                session,
                os.path.join(directory, "values"),
                write_meta_graph=False,
                write_state=False,
            )
            self._estimator.evaluate(
                self._input_fn,
                steps=self._steps,
                hooks=self._hooks,
                checkpoint_path=path,
                name=self._name,
            )
