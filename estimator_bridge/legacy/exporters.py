"""Exporters, which export every evaluated model, only the final model, or each new best model."""

from __future__ import annotations

import abc
import itertools
import os
from collections.abc import Callable, Iterable, Mapping

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy import requirements
from estimator_bridge.settings import render
from estimator_bridge.settings.quirks import default_quirks
from estimator_bridge.settings.row import EXPORT
from tf2_engine import export_folders, log
from tf2_engine.summaries.events import scalars_of_file
from tf2_engine.types import Object

EvalMetrics = Mapping[str, Object]

_COMPARED = ("best_eval_result", "current_eval_result")
_COMPARES = requirements.Requirement(
    lambda function: (
        function is None or set(requirements.argument_names(function)) != set(_COMPARED)
    ),
    f"`{{name}}` must take {' and '.join(_COMPARED)}",
)
_POSITIVE_NUMBER = requirements.POSITIVE._replace(text="`{name}` must be a positive number")
_LOSS = "loss"


class Exporter(abc.ABC):
    """Decides after an evaluation whether to export the model, and exports it."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name of the directory for the exports, below `<model_dir>/export`."""

    @abc.abstractmethod
    def export(
        self,
        estimator: Object,
        export_path: str,
        checkpoint_path: str,
        eval_result: EvalMetrics,
        is_the_final_export: bool,
    ) -> bytes | None:
        """Exports the evaluated checkpoint below `export_path`; returns the new path, or None."""


class _SavedModelExporter(Exporter):
    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Object] | None,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = None,
    ) -> None:
        kept = requirements.optional(_POSITIVE_NUMBER)
        requirements.check(type(self).__name__, "exports_to_keep", exports_to_keep, kept)
        self._name = name
        self._settings = {"assets_extra": assets_extra, "as_text": as_text}
        self._serving_input_receiver_fn = serving_input_receiver_fn
        self._exports_to_keep = exports_to_keep

    @property
    def name(self) -> str:
        return self._name

    def export(
        self,
        estimator: Object,
        export_path: str,
        checkpoint_path: str,
        eval_result: EvalMetrics,
        is_the_final_export: bool,
    ) -> bytes | None:
        if not self._is_wanted(estimator, export_path, eval_result, is_the_final_export):
            return None
        written: bytes = estimator.export_saved_model(
            export_path,
            self._serving_input_receiver_fn,
            checkpoint_path=checkpoint_path,
            **self._settings,
        )
        if self._exports_to_keep is not None:
            export_folders.keep_latest(export_path, self._exports_to_keep)
        return written

    def _is_wanted(
        self, estimator: Object, export_path: str, eval_result: EvalMetrics, is_final: bool
    ) -> bool:
        return True


class LatestExporter(_SavedModelExporter):
    """Exports after every evaluation; keeps the last `exports_to_keep` exports, or all if None.

    Raises:
        InvalidSpec: `exports_to_keep` is not positive.
    """

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Object],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep)


class FinalExporter(_SavedModelExporter):
    """Exports once, when training is over."""

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Object],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text)

    def _is_wanted(
        self, estimator: Object, export_path: str, eval_result: EvalMetrics, is_final: bool
    ) -> bool:
        if is_final:
            log.info("Exporter %r: exporting the model, since training is over.", self.name)
        return is_final


def loss_is_smaller(best_eval_result: EvalMetrics, current_eval_result: EvalMetrics) -> bool:
    for name, result in zip(_COMPARED, (best_eval_result, current_eval_result), strict=True):
        if not result or _LOSS not in result:
            raise errors.InvalidInput(f"`{name}` has no {_LOSS!r} to compare: {result}.")
    return bool(best_eval_result[_LOSS] > current_eval_result[_LOSS])


class BestExporter(_SavedModelExporter):
    """Exports a model that is better than all models evaluated before.

    After a restart, the exporter compares a model with the best earlier result in the event files.
    With quirks="stock", it always exports the first model after a restart.

    Args:
        event_file_pattern: matches event files below the model_dir. None or "" means no files.
        compare_fn: called with `best_eval_result` and `current_eval_result`; returns whether the
            current result is better.

    Raises:
        InvalidSpec: `compare_fn` is None or takes other arguments, or `exports_to_keep` is not
            positive.
    """

    def __init__(
        self,
        name: str = "best_exporter",
        serving_input_receiver_fn: Callable[[], Object] | None = None,
        event_file_pattern: str | None = "eval/*.tfevents.*",
        compare_fn: Callable[..., bool] = loss_is_smaller,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep)
        self._compare_fn = requirements.check("BestExporter", "compare_fn", compare_fn, _COMPARES)
        self._event_file_pattern = event_file_pattern
        self._model_dir: str | None = None
        self._best: EvalMetrics | None = None
        self._has_exported = False

    def _is_wanted(
        self, estimator: Object, export_path: str, eval_result: EvalMetrics, is_final: bool
    ) -> bool:
        if self._model_dir != estimator.model_dir:
            self._model_dir = estimator.model_dir
            quirks = getattr(estimator, "_quirks", None) or default_quirks()
            self._go_on(bool(export_folders.names_of_exports(export_path)), eval_result, quirks)
        if self._has_exported and not self._is_better(eval_result, self._best):
            return False
        log.info("Exporter %r: exporting the best model so far.", self.name)
        self._best = eval_result
        self._has_exported = True
        return True

    def _go_on(self, has_exports: bool, eval_result: EvalMetrics, quirks: str) -> None:
        results = self._earlier_results() if self._event_file_pattern else []
        # The event files already have the evaluation that is being exported.
        step = (eval_result or {}).get(tf.GraphKeys.GLOBAL_STEP)
        best = self._best_of(result for at, result in results if at != step)
        if quirks == "documented":
            # The first model is exported even if earlier results were better.
            self._has_exported, self._best = has_exports, best if has_exports else None
            return
        is_known = has_exports and not self._has_exported and bool(eval_result)
        if is_known and not self._is_better(eval_result, best):
            where = f"Exporter {self.name!r}: "
            log.warning("%s", render.warning("best_exporter", EXPORT, quirks, where=where))
        if self._event_file_pattern:
            self._best = self._best_of(result for _, result in results)

    def _earlier_results(self) -> list[tuple[int, EvalMetrics]]:
        files = tf.gfile.Glob(os.path.join(str(self._model_dir), str(self._event_file_pattern)))
        if not files:
            log.warning(
                "Exporter %r: there is no file %s in %s, so the best result of earlier runs "
                "is unknown. If the evaluation has a name, its events are in eval_NAME: give the "
                "exporter event_file_pattern='eval_NAME/*.tfevents.*'.",
                *(self.name, self._event_file_pattern, self._model_dir),
            )
        return [*itertools.chain.from_iterable(map(scalars_of_file, sorted(files)))]

    def _best_of(self, results: Iterable[EvalMetrics]) -> EvalMetrics | None:
        best = None
        for result in results:
            if self._is_better(result, best):
                best = result
        return best

    def _is_better(self, result: EvalMetrics, best: EvalMetrics | None) -> bool:
        return best is None or bool(
            self._compare_fn(best_eval_result=best, current_eval_result=result)
        )
