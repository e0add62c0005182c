"""A callback of Keras that saves checkpoints of a `TableModel`."""

from __future__ import annotations

from tf2_engine.types import Object


class SavedModelStepsBase:
    """Saves a model every `save_steps` steps, and at the end of a training.

    Args:
        max_steps: the step at which training ends; None is the end of the data.
        save_steps: None saves at the end alone.
    """

    def __init__(
        self, model: Object, checkpoints: Object, max_steps: int | None, save_steps: int | None
    ) -> None:
        super().__init__()
        self._of, self._checkpoints = model, checkpoints
        self._max_steps, self._save_steps = max_steps, save_steps
        self._first, self._saved = 0, -1

    def on_train_begin(self, logs: Object = None) -> None:
        """Counts from the step at which the training begins, as estimators and epochs do."""
        self._first = self._of.global_step

    def on_train_batch_end(self, batch: int, logs: Object = None) -> None:
        """Saves if it is due; ends the training at the last step."""
        step = self._of.global_step
        if self._save_steps and (step - self._first) % self._save_steps == 0:
            self._save(step)
        if self._max_steps is not None and step >= self._max_steps:
            self._of.stop_training = True

    def on_train_end(self, logs: Object = None) -> None:
        """Saves the last step."""
        self._save(self._of.global_step)

    def _save(self, step: int) -> None:
        if step != self._saved:
            self._checkpoints.save()
            self._saved = step
