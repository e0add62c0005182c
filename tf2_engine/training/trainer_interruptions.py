"""Ends a `Trainer` on a signal: after its step, or while it waits for its input; and saves."""

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
    """Counts the batches of training steps, where a step has got them from its input."""

    def __init__(self) -> None:
        with tf.device("/device:CPU:0"):
            # Not the strategy's: it is neither saved nor a variable of the model.
            self._number = tf_compat.plain_variable(
                initial_value=0, trainable=False, dtype=tf.int64, name="batches_arrived"
            )

    def count(self, batch: Nest) -> None:
        """Counts a batch, as soon as it is there; called while a step is traced, at its end.

        Ops that come before others would change the seeds that TensorFlow draws for those.
        """
        arrived = tf.nest.flatten(batch, expand_composites=True)
        with tf.control_dependencies(arrived), tf.device("/device:CPU:0"):
            self._number.assign_add(1)

    def start(self) -> None:
        """Begins at 0."""
        self._number.assign(0)

    def number(self) -> int:
        """Returns how many batches have arrived."""
        return int(self._number.numpy())


class TrainerSteps(interruptions.SavedSteps):
    """The steps of one call of `Trainer.train`.

    Args:
        arrivals: which the traced step counts.
    """

    def __init__(self, arrivals: Arrivals, checkpoints: Checkpoints) -> None:
        super().__init__()
        self._arrivals, self._checkpoints = arrivals, checkpoints
        self._cancellation = tf_compat.Cancellation()
        self._has_begun, self._is_running = False, False
        self._done = 0

    @property
    def has_begun(self) -> bool:
        """Whether variables have their values."""
        return self._has_begun

    @property
    def running(self) -> int | None:
        """The number of the step that runs."""
        return self._done if self._is_running else None

    def begin(self) -> None:
        """Has the steps begin."""
        self._arrivals.start()
        self._has_begun = True

    def must_stop(self) -> bool:
        """Returns whether a signal has asked for the end."""
        if self.stop_requested == signal.SIGTERM:
            log.warning("SIGTERM: the training stops after this step and saves.")
        return self.stop_requested is not None

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Marks the context as a step that runs."""
        self._is_running = True
        try:
            with self._cancellation.possible():
                yield
        finally:
            self._is_running = False
            self._done += 1

    def waits(self) -> bool:
        """Returns whether the step that runs waits for its input."""
        return self._arrivals.number() == self._done

    def rescue(self, still_waits: interruptions.Condition) -> bool:
        """Saves while a step waits for its input; returns whether it waited to the end of that."""
        return self._checkpoints.save_while(still_waits)

    def cancel(self) -> None:
        """Ends the step that runs."""
        self._cancellation.cancel()

    def state(self) -> str:
        """Returns whether and where the last step is saved, in words."""
        return self._checkpoints.state()


class TrainerReading(interruptions.ReadingSteps):
    """The steps of one call of `Trainer.evaluate` or `Trainer.predict`.

    Args:
        mode: which of the two.
        start: where the values of variables are from.
    """

    def __init__(self, mode: str, start: str) -> None:
        kind = "evaluation" if mode == ModeKeys.EVAL else "prediction"
        super().__init__(f"the {kind} of {start}")
        self._cancellation = tf_compat.Cancellation()
        self.canceller = self._cancellation.cancel

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Marks the context as a step that runs."""
        with super().step(), self._cancellation.possible():
            yield
