"""Callbacks that export a model after each evaluation, or after each new best evaluation."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping

import tensorflow as tf

from tf2_engine import errors, log
from tf2_engine.export_folders import keep_latest, names_of_exports
from tf2_engine.summaries.events import scalars_of_file
from tf2_engine.types import Nest, Object

Metrics = Mapping[str, Object]

_COMPARED = {"best_eval_result", "current_eval_result"}
_LOSS = "loss"


class LatestExporterBase:
    """Exports a `TableModel` after every evaluation of `fit`.

        exporter = LatestExporter("model/export/latest", spec, to_features, exports_to_keep=3)
        model.fit(dataset, max_steps=9000, validation_data=test, callbacks=[exporter])

    Args:
        export_dir_base: each export is written to a folder in this one, named after the time.
        inputs, to_features, tracked: as in `TableModel.export_saved_model`.
        exports_to_keep: the number of exports to keep; older exports are deleted. None keeps all.

    Raises:
        InvalidSpec: `exports_to_keep` is not positive.
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

    def _is_wanted(self, results: Metrics) -> bool:
        return True


class BestExporterBase(LatestExporterBase):
    """Exports a `TableModel` after each evaluation of `fit` that is better than all earlier ones.

    Args:
        export_dir_base, inputs, to_features, tracked, exports_to_keep: as in `LatestExporter`.
        compare_fn: called with `best_eval_result` and `current_eval_result`, two dicts of metrics;
            returns whether the current result is better. By default losses are compared.
        event_file_pattern: event files of earlier evaluations, below the folder of checkpoints.

    Raises:
        InvalidSpec: `compare_fn` has other arguments, or `exports_to_keep` is not positive.
        InvalidInput: while training, if an evaluation has no loss to compare.
        OutOfOrder: while training, if `fit` has no `validation_data`.
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
        self._best: Metrics | None = None
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

    def _is_wanted(self, results: Metrics) -> bool:
        if self._has_exported and not self._is_better(results):
            return False
        log.info("%s: exporting the best model so far.", self._folder)
        self._best, self._has_exported = results, True
        return True

    def _is_better(self, results: Metrics) -> bool:
        if self._best is None:
            return True
        return bool(self._compare(best_eval_result=self._best, current_eval_result=results))


def _loss_is_smaller(best_eval_result: Metrics, current_eval_result: Metrics) -> bool:
    for results in (best_eval_result, current_eval_result):
        if _LOSS not in results:
            raise errors.InvalidInput(
                f"BestExporter: an evaluation has no {_LOSS!r} to compare, only "
                f"{sorted(results)}. Pass a `compare_fn`."
            )
    return bool(best_eval_result[_LOSS] > current_eval_result[_LOSS])
