"""`CheckpointInputPipelineHook`: training goes on with the batch after the last one it saw."""

from __future__ import annotations

import os
from typing import Any

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.runtime.loop.training import InputStateHook
from estimator_bridge.runtime.saving.job_saver import JobSaver
from tf2_engine import tf_compat

_POLICIES = ("fail", "warn", "ignore")
_ITERATORS = "iterators"  # the collection to which TensorFlow adds each one


class CheckpointInputPipelineHook(InputStateHook):
    """Saves the state of the input's iterators with each checkpoint, and restores it.

    It is for an input_fn whose batches do not follow from the global step. The states are in
    `input.ckpt-<step>` beside `model.ckpt-<step>`, and come back with the model of the same step.
    (TensorFlow's own hook takes the latest of both by themselves: killed between the two, a job
    goes on with batches of another step.)

    Args:
        estimator: that which trains.
        external_state_policy: what to do with an input that depends on more than its iterators,
            such as random ops without a seed: "fail", the default; "warn" and "ignore" save
            without.

    Raises:
        InvalidInput: there is no such policy.
    """

    def __init__(self, estimator: Any, external_state_policy: str | None = None) -> None:
        self._policy = external_state_policy or "fail"
        if self._policy not in _POLICIES:
            raise errors.InvalidInput(
                f"`external_state_policy` must be one of {_POLICIES}, got "
                f"{external_state_policy!r}."
            )
        config = estimator.config
        self._name = "input"
        if config.num_worker_replicas > 1:
            self._name += f"_{config.task_type}_{config.task_id}"
        self._path = os.path.join(estimator.model_dir, f"{self._name}.ckpt")
        # One more than of the model: the states of a step are there before the model is.
        self._keep = config.keep_checkpoint_max and config.keep_checkpoint_max + 1
        self.listener = _SaveBefore(self)

    def begin(self) -> None:
        """Makes the ops."""
        self._global_step = tf.train.get_global_step()
        iterators = [
            tf_compat.iterator_saveable(resource, self._policy)
            for resource in tf.get_collection(_ITERATORS)
        ]
        self._saver = JobSaver(
            var_list=iterators,
            sharded=True,
            allow_empty=True,
            max_to_keep=self._keep,
            save_relative_paths=True,
        )

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Restores the states of the model's step; the input's own hooks have started them."""
        step = session.run(self._global_step)
        path = f"{self._path}-{step}"
        if tf.io.gfile.exists(f"{path}.index"):
            self._saver.restore(session, path)
            known = tf.train.get_checkpoint_state(os.path.dirname(path), self._state)
            self._saver.recover_last_checkpoints(known.all_model_checkpoint_paths if known else [])
        elif step:
            tf.logging.warning("There is no %s.index: the input starts from its beginning.", path)

    def save(self, session: Any, step: int) -> None:
        """Saves the states as those of a step."""
        self._saver.save(
            session,
            self._path,
            global_step=step,
            latest_filename=self._state,
            write_meta_graph=False,
        )

    @property
    def _state(self) -> str:
        return f"checkpoint_{self._name}"


class _SaveBefore(tf.train.CheckpointSaverListener):
    """Saves the states before the model, so that no model is without them."""

    def __init__(self, hook: CheckpointInputPipelineHook) -> None:
        self._hook = hook

    def before_save(self, session: Any, global_step_value: Any) -> None:
        """Saves."""
        self._hook.save(session, int(global_step_value))
