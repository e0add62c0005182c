"""Callbacks that end training at a step, by a function's result, or because of evaluations."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping

from tf2_engine import errors, log
from tf2_engine.pacing import Pace
from tf2_engine.summaries.evaluations import Comparison, Evaluations
from tf2_engine.types import Object

_EVERY_SECS = 60.0


class StopAtStepBase:
    """Ends the training of a `TableModel` at a step.

        model.fit(dataset, callbacks=[StopAtStep(num_steps=100)])

    Args:
        num_steps: the number of steps in this call of `fit`.
        last_step: the global step at which to stop. `fit` always runs at least one step.

    Raises:
        InvalidInput: both are given, or both are None.
    """

    model: Object

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        super().__init__()
        if (num_steps is None) == (last_step is None):
            raise errors.InvalidInput(
                f"StopAtStep: give one of `num_steps` and `last_step`; got {num_steps} and "
                f"{last_step}."
            )
        self._num_steps, self._last_step = num_steps, last_step

    def on_train_begin(self, logs: Object = None) -> None:
        if self._num_steps is not None:
            self._last_step = self.model.global_step + self._num_steps

    def on_train_batch_end(self, batch: int, logs: Object = None) -> None:
        if self.model.global_step >= self._last_step:
            self.model.stop_training = True


class StopWhenBase:
    """Ends the training of a `TableModel` once a function returns True.

    Args:
        should_stop: a function without arguments.
        every_secs, every_steps: the interval between calls of the function. One must be None.

    Raises:
        InvalidInput: both intervals are given, or both are None.
    """

    model: Object
    params: Mapping[str, Object]
    _is_due = False

    def __init__(
        self,
        should_stop: Callable[[], bool],
        every_secs: float | None = _EVERY_SECS,
        every_steps: int | None = None,
    ) -> None:
        super().__init__()
        self._should_stop, self._pace = should_stop, Pace(every_secs, every_steps)

    def on_train_batch_end(self, batch: int, logs: Object = None) -> None:
        """Leaves the last step of an epoch to `on_epoch_end`, which runs after the evaluation."""
        self._is_due = self._pace.is_due(self.model.global_step)
        if batch + 1 != self.params.get("steps"):
            self._look()

    def on_epoch_end(self, epoch: int, logs: Object = None) -> None:
        self._look()

    def _look(self) -> None:
        if self._is_due and self._should_stop():
            self.model.stop_training = True


class _StopByEvaluationsBase(StopWhenBase):
    _beyond: Comparison

    def __init__(
        self,
        metric: str,
        limit: float,
        min_steps: int = 0,
        every_secs: float | None = _EVERY_SECS,
        every_steps: int | None = None,
    ) -> None:
        super().__init__(self._is_reached, every_secs, every_steps)
        self._metric, self._limit, self._min_steps = metric, limit, min_steps

    def _is_reached(self) -> bool:
        raise NotImplementedError

    def _evaluations(self) -> Evaluations:
        if self.model.eval_dir is None:
            raise errors.InvalidInput(
                f"{type(self).__name__}: the model keeps no checkpoints, so no evaluations either. "
                "Call its `keep_checkpoints` with a folder before `fit`."
            )
        return Evaluations(self.model.eval_dir, self._metric, self._min_steps)


class _StopIfStuckBase(_StopByEvaluationsBase):
    def _is_reached(self) -> bool:
        return self._evaluations().stuck(int(self._limit), self._beyond)


class _StopIfCrossedBase(_StopByEvaluationsBase):
    def _is_reached(self) -> bool:
        return self._evaluations().crossed(self._limit, self._beyond)


class StopIfNoDecreaseBase(_StopIfStuckBase):
    """Ends the training of a `TableModel` if a metric has not decreased for a number of steps.

        model.fit(dataset, max_steps=9000, validation_data=test, callbacks=[
            StopIfNoDecrease("loss", 1000, every_secs=None, every_steps=100)])

    This callback reads the evaluations that all calls of `fit` wrote to the folder of checkpoints.

    Args:
        metric: the key of a metric in the evaluations.
        limit: the number of steps without improvement after which training ends.
        min_steps: evaluations before this step are ignored.
        every_secs, every_steps: the interval between readings. One must be None.

    Raises:
        InvalidInput: both intervals are given, or both are None; or, while training, the model
            keeps no checkpoints.
        MissingMetric: while training, if the metric is missing in an evaluation.
    """

    _beyond = staticmethod(operator.lt)


class StopIfNoIncreaseBase(_StopIfStuckBase):
    """Ends training if a metric has not increased for a number of steps; see `StopIfNoDecrease`."""

    _beyond = staticmethod(operator.gt)


class StopIfHigherBase(_StopIfCrossedBase):
    """Ends the training of a `TableModel` once a metric of an evaluation is above a threshold.

    Args:
        limit: the threshold.
        metric, min_steps, every_secs, every_steps: as in `StopIfNoDecrease`, with its errors.
    """

    _beyond = staticmethod(operator.gt)


class StopIfLowerBase(_StopIfCrossedBase):
    """Ends training once a metric of an evaluation is below a threshold; see `StopIfHigher`."""

    _beyond = staticmethod(operator.lt)


class StopIfNaNBase:
    """Ends training when the loss of a step is NaN, before a checkpoint is saved.

    Args:
        fail: True raises an error; False ends training with a warning.

    Raises:
        LossIsNaN: while training.
    """

    model: Object

    def __init__(self, fail: bool = True) -> None:
        super().__init__()
        self._fail = fail

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Object] | None = None) -> None:
        if not math.isnan(float((logs or {})["loss"])):
            return
        step = self.model.global_step
        if self._fail:
            raise errors.LossIsNaN(
                f"The loss of step {step} is NaN. Train from the latest checkpoint with a smaller "
                "learning rate, or look for the batch that causes it."
            )
        log.warning("The loss of step %d is NaN; the training ends here.", step)
        self.model.stop_training = True
