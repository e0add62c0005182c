"""A hook that saves the state of the input, so that a restarted job reads the next batch."""

from __future__ import annotations

import os

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.runtime.saving.job_saver import BeforeSave, JobSaver, SavingHook
from tf2_engine import log, tf_compat
from tf2_engine.types import Object, Session

_POLICIES = ("fail", "warn", "ignore")
_ITERATORS = "iterators"  # the collection to which TensorFlow adds every iterator


class CheckpointInputPipelineHook(SavingHook):
    """Saves the state of the input's iterators with each checkpoint, and restores it.

    Use it if the global step does not determine the next batch of the input_fn. The states are in
    `input.ckpt-<step>` beside `model.ckpt-<step>`, and are restored with the model of the same
    step. (After a job has been killed, TensorFlow's hook may restore the states of another step.)

    A worker that trains asynchronously saves its states in `input_worker_<i>.ckpt-<step>`. It
    restores the latest of these states, because workers and the chief save at different steps.

    Args:
        external_state_policy: what to do if the input has state besides its iterators, such as
            random ops without a seed: "fail" (the default) raises an error; "warn" and "ignore"
            save only the iterators.

    Raises:
        InvalidInput: `external_state_policy` is not one of these values.
    """

    def __init__(self, estimator: Object, external_state_policy: str | None = None) -> None:
        self._policy = external_state_policy or "fail"
        if self._policy not in _POLICIES:
            raise errors.InvalidInput(
                f"`external_state_policy` must be one of {_POLICIES}, got {self._policy!r}."
            )
        config = estimator.config
        is_alone = config.num_worker_replicas <= 1
        name = "input" if is_alone else f"input_{config.task_type}_{config.task_id}"
        self._saves_alone = not config.is_chief
        self._path = os.path.join(estimator.model_dir, f"{name}.ckpt")
        self._state_file = f"checkpoint_{name}"
        # One more than for the model, because a step's states are saved before its model.
        self._keep = config.keep_checkpoint_max and config.keep_checkpoint_max + 1
        # Saving the states first ensures that every checkpoint of the model has them.
        self.listener = BeforeSave(self.save)

    def begin(self) -> None:
        self._global_step = tf.train.get_global_step()
        resources = tf.get_collection(_ITERATORS)
        iterators = [tf_compat.iterator_saveable(each, self._policy) for each in resources]
        self._num_iterators = len(iterators)
        self._saver = JobSaver(
            var_list=iterators,
            sharded=True,
            allow_empty=True,
            max_to_keep=self._keep,
            save_relative_paths=True,
        )

    def after_create_session(self, session: Session, coord: Object) -> None:
        step = session.run(self._global_step)
        path = f"{self._path}-{step}"
        if self._saves_alone:
            path = tf.train.latest_checkpoint(os.path.dirname(path), self._state_file) or path
        if tf.io.gfile.exists(f"{path}.index"):
            self._restore(session, path)
            state = tf.train.get_checkpoint_state(os.path.dirname(path), self._state_file)
            self._saver.recover_last_checkpoints(state.all_model_checkpoint_paths if state else [])
        elif step:
            log.warning("There is no %s.index: the input starts from its beginning.", path)

    def _restore(self, session: Session, path: str) -> None:
        num_stored = len(tf.train.list_variables(path))
        if num_stored == self._num_iterators:
            self._saver.restore(session, path)
            return
        log.warning(
            "%s has the states of %d iterator(s), but the input has %d; perhaps the number of "
            "hosts that read the input has changed. The input starts from its beginning.",
            *(path, num_stored, self._num_iterators),
        )

    def save(self, session: Session, step: int) -> None:
        options = {"latest_filename": self._state_file, "write_meta_graph": False}
        self._saver.save(session, self._path, step, **options)
