"""Saves a `Trainer` and ends its steps on a signal, after a step or while one waits for input."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import tensorflow as tf

from tf2_engine import interruptions, log, tf_compat
from tf2_engine.training.checkpoints import Checkpoints
from tf2_engine.training.trainer_specs import ModeKeys
from tf2_engine.types import Nest


class Arrivals:
    """Counts the batches that training steps have received from their input."""

    def __init__(self) -> None:
        with tf.device("/device:CPU:0"):
            # This is not a variable of the strategy or the model, and is not saved.
            self._number = tf_compat.plain_variable(
                initial_value=0, trainable=False, dtype=tf.int64, name="batches_arrived"
            )

    def count(self, batch: Nest) -> None:
        """Counts a batch as soon as it has arrived. Must be the last call in the trace of a step.

        Otherwise the seeds that TensorFlow derives for later ops would change.
        """
        arrived = tf.nest.flatten(batch, expand_composites=True)
        with tf.control_dependencies(arrived), tf.device("/device:CPU:0"):
            self._number.assign_add(1)

    def start(self) -> None:
        self._number.assign(0)

    def number(self) -> int:
        return int(self._number.numpy())


class TrainerSteps(interruptions.SavedSteps):
    """The steps of one call of `Trainer.train`.

    Args:
        arrivals: the counter of batches, which the traced step increments.
    """

    def __init__(self, arrivals: Arrivals, checkpoints: Checkpoints) -> None:
        super().__init__()
        self._arrivals, self._checkpoints = arrivals, checkpoints
        self._cancellation = tf_compat.Cancellation()
        self._has_begun, self._is_running = False, False
        self._done = 0

    @property
    def has_begun(self) -> bool:
        return self._has_begun

    @property
    def running(self) -> int | None:
        return self._done if self._is_running else None

    def begin(self) -> None:
        self._arrivals.start()
        self._has_begun = True

    def must_stop(self) -> bool:
        if self.stop_requested == signal.SIGTERM:
            log.warning("SIGTERM: the training stops after this step and saves.")
        return self.stop_requested is not None

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        self._is_running = True
        try:
            with self._cancellation.possible():
                yield
        finally:
            self._is_running = False
            self._done += 1

    def waits(self) -> bool:
        return self._arrivals.number() == self._done

    def rescue(self, still_waits: interruptions.Condition) -> bool:
        return self._checkpoints.save_while(still_waits)

    def cancel(self) -> None:
        self._cancellation.cancel()

    def state(self) -> str:
        return self._checkpoints.state()


class TrainerReading(interruptions.ReadingSteps):
    """The steps of one call of `Trainer.evaluate` or `Trainer.predict`.

    Args:
        mode: "eval" or "infer".
        start: the checkpoint whose values the variables have, for messages.
    """

    def __init__(self, mode: str, start: str) -> None:
        kind = "evaluation" if mode == ModeKeys.EVAL else "prediction"
        super().__init__(f"the {kind} of {start}")
        self._cancellation = tf_compat.Cancellation()
        self.canceller = self._cancellation.cancel

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        with super().step(), self._cancellation.possible():
            yield
