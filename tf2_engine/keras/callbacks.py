"""Callbacks for `fit` that end training, log, or export, for any version of Keras."""

from __future__ import annotations

import inspect
import math
import operator
import os
from collections.abc import Callable, Mapping

import tensorflow as tf

from tf2_engine import errors, log
from tf2_engine.embedding import TPUEmbedding
from tf2_engine.export_folders import keep_latest, names_of_exports
from tf2_engine.keras.layer_bases.embedding_layer import EmbeddingLayer
from tf2_engine.pacing import Pace
from tf2_engine.summaries.events import Evaluations, scalars_of_file
from tf2_engine.summaries.statistics import EVERY, TableSummaries
from tf2_engine.types import Nest, Object

_EVERY_SECS = 60.0


class StopAtStepBase:
    """Ends the training of a `TableModel` after a number of steps, or at a global step.

        model.fit(dataset, callbacks=[StopAtStep(num_steps=100)])

    Args:
        num_steps: how many steps a call to `fit` runs.
        last_step: the global step at which to stop. `fit` always runs at least one step.
    """

    model: Object

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        super().__init__()
        if (num_steps is None) == (last_step is None):
            raise errors.InvalidInput(
                f"StopAtStep: give either `num_steps` or `last_step`; got {num_steps} and "
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
        every_secs, every_steps: the interval between calls to the function, in seconds or steps.
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
        """Skips the last step of an epoch, which `on_epoch_end` handles after the evaluation."""
        self._is_due = self._pace.is_due(self.model.global_step)
        if batch + 1 != self.params.get("steps"):
            self._look()

    def on_epoch_end(self, epoch: int, logs: Object = None) -> None:
        self._look()

    def _look(self) -> None:
        if self._is_due and self._should_stop():
            self.model.stop_training = True


class _StopByEvaluationsBase(StopWhenBase):
    _is_beyond: Callable[[Evaluations, float], bool]

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
        if self.model.eval_dir is None:
            raise errors.InvalidInput(
                f"{type(self).__name__}: the model saves no checkpoints and no evaluations. "
                "Call its `keep_checkpoints` with a folder before `fit`."
            )
        evaluations = Evaluations(self.model.eval_dir, self._metric, self._min_steps)
        return self._is_beyond(evaluations, self._limit)


class StopIfNoDecreaseBase(_StopByEvaluationsBase):
    """Ends the training of a `TableModel` if a metric has not decreased for a number of steps.

        model.fit(dataset, max_steps=9000, validation_data=test, callbacks=[
            StopIfNoDecrease("loss", 1000, every_secs=None, every_steps=100)])

    The callback reads the evaluations that all calls to `fit` wrote to the checkpoint folder.

    Args:
        metric: the key of a metric in the evaluations.
        limit: training ends if the metric has not improved for this number of steps.
        min_steps: evaluations before this step are ignored.
        every_secs, every_steps: the interval between readings, in seconds or steps.

    Raises:
        InvalidInput: while training, if the model keeps no checkpoints.
        MissingMetric: while training, if an evaluation lacks the metric.
    """

    _is_beyond = staticmethod(lambda seen, limit: seen.stuck(int(limit), operator.lt))


class StopIfNoIncreaseBase(_StopByEvaluationsBase):
    """Ends training if a metric has not increased for a number of steps; see `StopIfNoDecrease`."""

    _is_beyond = staticmethod(lambda seen, limit: seen.stuck(int(limit), operator.gt))


class StopIfHigherBase(_StopByEvaluationsBase):
    """Ends the training of a `TableModel` once a metric of an evaluation is above a threshold.

    Args:
        limit: the threshold.
        metric, min_steps, every_secs, every_steps: as in `StopIfNoDecrease`, with the same errors.
    """

    _is_beyond = staticmethod(lambda seen, limit: seen.crossed(limit, operator.gt))


class StopIfLowerBase(_StopByEvaluationsBase):
    """Ends training once a metric of an evaluation is below a threshold; see `StopIfHigher`."""

    _is_beyond = staticmethod(lambda seen, limit: seen.crossed(limit, operator.lt))


class StopIfNaNBase:
    """Ends training when the loss of a step is NaN, before a checkpoint is saved.

    Args:
        fail: True raises an error; False ends training with a warning.

    Raises:
        LossIsNaN: while training, if `fail` is True.
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
        log.warning("The loss of step %d is NaN; training ends here.", step)
        self.model.stop_training = True


class TableSummaryCallbackBase:
    """Writes statistics of tables with "tpu" arithmetic to event files; see docs/tensorboard.md.

        model.fit(dataset, callbacks=[TableSummaryCallback("logs/train")])

    Args:
        every_n_steps, projector_rows, labels: as in `tf2_engine.training.TableSummaryHook`.

    Raises:
        OutOfOrder: the model runs under a TPUStrategy.
    """

    model: Object

    def __init__(
        self,
        output_dir: str,
        every_n_steps: int = EVERY,
        projector_rows: int = 0,
        labels: Object = None,
    ) -> None:
        super().__init__()
        self._summaries = TableSummaries(output_dir, every_n_steps, projector_rows, labels)
        self._step = self._of_epoch = 0

    def set_model(self, model: Object) -> None:
        super().set_model(model)  # type: ignore[misc]
        engines = [
            layer.embedding
            for layer in model._flatten_layers()
            if isinstance(layer, EmbeddingLayer) and isinstance(layer.embedding, TPUEmbedding)
        ]
        if not engines:
            raise errors.InvalidInput(
                'TableSummaryCallback: the model has no TPUEmbedding layer with "tpu" arithmetic. '
                'Pass `arithmetic`="tpu" to the layer, or leave the callback out.'
            )
        self._engines = engines

    def on_train_begin(self, logs: Object = None) -> None:
        self._summaries.watch(self._engines)
        self.model.make_train_function(force=True)
        self._step = 0

    def on_epoch_begin(self, epoch: int, logs: Object = None) -> None:
        self._of_epoch = 0

    def on_train_batch_end(self, batch: int, logs: Object = None) -> None:
        steps, self._of_epoch = batch + 1 - self._of_epoch, batch + 1
        self._step += steps
        self._summaries.count(self._step, steps)

    def on_train_end(self, logs: Object = None) -> None:
        self._summaries.close()


class StepLogBase:
    """Logs the loss and the global step of a `TableModel` at the first step, then at intervals.

    Args:
        every_steps, every_secs: the interval, in steps or seconds. With `at_end`, both may be None.
        at_end: whether to log the last step, too.
    """

    model: Object

    def __init__(
        self,
        every_steps: int | None = None,
        every_secs: float | None = None,
        at_end: bool = False,
    ) -> None:
        super().__init__()
        only_at_end = at_end and every_secs is None and every_steps is None
        self._pace = None if only_at_end else Pace(every_secs, every_steps)
        self._at_end = at_end
        self._steps, self._loss = 0, float("nan")

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Object] | None = None) -> None:
        self._loss = float((logs or {})["loss"])
        if self._pace is not None and self._pace.is_due(self._steps):
            self._log()
        self._steps += 1

    def on_train_end(self, logs: Object = None) -> None:
        if self._at_end and self._steps:
            self._log()

    def _log(self) -> None:
        log.info("loss = %s, step = %d", self._loss, self.model.global_step)


EvaluationMetrics = Mapping[str, Object]

_COMPARED = {"best_eval_result", "current_eval_result"}
_LOSS = "loss"


class LatestExporterBase:
    """Exports a `TableModel` after every evaluation of `fit`.

        exporter = LatestExporter("model/export/latest", spec, to_features, exports_to_keep=3)
        model.fit(dataset, max_steps=9000, validation_data=test, callbacks=[exporter])

    Args:
        export_dir_base: the folder of all exports. Each export is a new folder in it, with a
            timestamp as its name.
        inputs, to_features, tracked: as in `TableModel.export_saved_model`.
        exports_to_keep: how many of the latest exports to keep. None keeps all.

    Raises:
        OutOfOrder: while training, if `fit` has no `validation_data`.
    """

    model: Object

    def __init__(
        self,
        export_dir_base: str,
        inputs: Nest,
        to_features: Callable[..., Object],
        *tracked: Object,
        exports_to_keep: int | None = 5,
    ) -> None:
        super().__init__()
        if exports_to_keep is not None and exports_to_keep <= 0:
            raise errors.InvalidSpec(
                f"`exports_to_keep` must be positive, or None to keep all; got {exports_to_keep}."
            )
        self._folder, self._arguments = export_dir_base, (inputs, to_features, *tracked)
        self._exports_to_keep = exports_to_keep

    def on_epoch_end(self, epoch: int, logs: Object = None) -> None:
        results = self.model.latest_evaluation
        if results is None or results["global_step"] != self.model.global_step:
            raise errors.OutOfOrder(
                f"{type(self).__name__}: the model has not been evaluated. Pass `validation_data` "
                "to `fit`."
            )
        if not self._is_wanted(results):
            return
        self.model.export_saved_model(self._folder, *self._arguments)
        if self._exports_to_keep is not None:
            keep_latest(self._folder, self._exports_to_keep)

    def _is_wanted(self, results: EvaluationMetrics) -> bool:
        return True


class BestExporterBase(LatestExporterBase):
    """Exports a `TableModel` after each evaluation of `fit` that is better than all earlier ones.

    Args:
        export_dir_base, inputs, to_features, tracked, exports_to_keep: as in `LatestExporter`, with
            the same errors.
        compare_fn: called with `best_eval_result` and `current_eval_result`, two dicts of metrics;
            returns whether the current result is better. By default losses are compared.
        event_file_pattern: a glob pattern for the event files with earlier evaluations, relative to
            the checkpoint folder.

    Raises:
        InvalidInput: while training, if an evaluation has no loss to compare.
    """

    def __init__(
        self,
        export_dir_base: str,
        inputs: Nest,
        to_features: Callable[..., Object],
        *tracked: Object,
        compare_fn: Callable[..., bool] | None = None,
        event_file_pattern: str | None = "eval/*.tfevents.*",
        exports_to_keep: int | None = 5,
    ) -> None:
        super().__init__(
            export_dir_base, inputs, to_features, *tracked, exports_to_keep=exports_to_keep
        )
        if compare_fn is not None and {*inspect.signature(compare_fn).parameters} != _COMPARED:
            raise errors.InvalidSpec(
                f"`compare_fn` must take {' and '.join(sorted(_COMPARED))}, got {compare_fn!r}."
            )
        self._compare = compare_fn or _loss_is_smaller
        self._pattern = event_file_pattern
        self._best: EvaluationMetrics | None = None
        self._has_exported = False

    def on_train_begin(self, logs: Object = None) -> None:
        checkpoints = self.model.checkpoints
        if not self._pattern or checkpoints is None or self._best is not None:
            return
        for path in sorted(tf.io.gfile.glob(os.path.join(checkpoints.directory, self._pattern))):
            for _, results in scalars_of_file(path):
                if self._is_better(results):
                    self._best = results
        self._has_exported = bool(names_of_exports(self._folder))

    def _is_wanted(self, results: EvaluationMetrics) -> bool:
        if self._has_exported and not self._is_better(results):
            return False
        log.info("%s: exporting the best model so far.", self._folder)
        self._best, self._has_exported = results, True
        return True

    def _is_better(self, results: EvaluationMetrics) -> bool:
        if self._best is None:
            return True
        return bool(self._compare(best_eval_result=self._best, current_eval_result=results))


def _loss_is_smaller(
    best_eval_result: EvaluationMetrics, current_eval_result: EvaluationMetrics
) -> bool:
    for results in (best_eval_result, current_eval_result):
        if _LOSS not in results:
            raise errors.InvalidInput(
                f"BestExporter: an evaluation has no {_LOSS!r} to compare, only "
                f"{sorted(results)}. Pass a `compare_fn`."
            )
    return bool(best_eval_result[_LOSS] > current_eval_result[_LOSS])
