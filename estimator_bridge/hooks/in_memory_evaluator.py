"""A hook that evaluates a model during training, with the variables of the running session."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.estimator_spec import checked_hooks
from estimator_bridge.legacy.requirements import POSITIVE
from tf2_engine.types import Nest, Object, Session


class InMemoryEvaluatorHook(tf.train.SessionRunHook):
    """Evaluates when a session starts, every `every_n_iter` steps, and when the session ends.

    Each evaluation reads a temporary checkpoint, so this hook supports everything that `evaluate`
    supports. Unlike stock's hook, it builds a new graph for each evaluation.

    Args:
        input_fn, steps, hooks, name: as for `evaluate`.

    Raises:
        InvalidInput: `every_n_iter` is not positive, or the job has parameter servers or several
            workers.
        WrongType: one of `hooks` is not a SessionRunHook.
    """

    def __init__(
        self,
        estimator: Object,
        input_fn: Callable[..., Nest],
        steps: int | None = None,
        hooks: Sequence[tf.train.SessionRunHook] | None = None,
        name: str | None = None,
        every_n_iter: int = 100,
    ) -> None:
        if every_n_iter is None or POSITIVE.refused(every_n_iter):
            raise errors.InvalidInput(
                f"`InMemoryEvaluatorHook`: invalid every_n_iter={every_n_iter!r}. `every_n_iter` "
                "must be positive."
            )
        config = estimator.config
        if config.num_ps_replicas > 0 or config.num_worker_replicas > 1:
            raise errors.InvalidInput(
                "`InMemoryEvaluatorHook` supports only single machine jobs, with all variables in "
                f"one process; this job has {config.num_ps_replicas} parameter servers and "
                f"{config.num_worker_replicas} workers."
            )
        self._evaluate_checkpoint = functools.partial(
            estimator.evaluate, input_fn, steps=steps, hooks=list(checked_hooks(hooks)), name=name
        )
        self._timer = tf.train.SecondOrStepTimer(every_steps=every_n_iter)

    def begin(self) -> None:
        others = tf.get_collection(tf.GraphKeys.SAVEABLE_OBJECTS)
        if others:
            raise errors.InvalidInput(
                "`InMemoryEvaluatorHook` does not support saveables other than global variables, "
                f"but the graph has {others}. Use train_and_evaluate, which evaluates checkpoints."
            )
        self._timer.reset()
        self._steps_run = 0
        self._saver = tf.train.Saver(tf.global_variables(), max_to_keep=1)

    def after_create_session(self, session: Session, coord: Object) -> None:
        self._evaluate(session)

    def after_run(self, run_context: Object, run_values: Object) -> None:
        self._steps_run += 1
        if self._timer.should_trigger_for_step(self._steps_run):
            self._evaluate(run_context.session)

    def end(self, session: Session) -> None:
        self._evaluate(session)

    def _evaluate(self, session: Session) -> None:
        self._timer.update_last_triggered_step(self._steps_run)
        with tempfile.TemporaryDirectory() as directory:
            # The checkpoint has no state file and no graph, so that nothing else finds it.
            path = os.path.join(directory, "values")
            self._saver.save(session, path, write_meta_graph=False, write_state=False)
            self._evaluate_checkpoint(checkpoint_path=path)
