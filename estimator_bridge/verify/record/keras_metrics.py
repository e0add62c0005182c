"""Captures the inputs of a `TableModel`'s metrics, and computes the metrics again.

The inputs are what `test_step` passes to `update_metrics(...)` and `mean_loss.update_state(loss)`,
the names that `migrate --form keras` writes. Models without them have no recorded inputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import tensorflow as tf

from estimator_bridge.verify.record.array_files import Values
from estimator_bridge.verify.record.capture import Function, replaced
from estimator_bridge.verify.record.metric_values import CapturedMetrics
from estimator_bridge.verify.record.recording import LOSS
from tf2_engine.graph_mode import do_not_convert
from tf2_engine.types import Nest, Object

_UPDATE, _MEAN_LOSS = "update_metrics", "mean_loss"


class KerasMetricValues(CapturedMetrics):
    """The losses and the arguments of `update_metrics` of one evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self._model: Object = None

    @contextlib.contextmanager
    def attached(self, model: Object) -> Iterator[None]:
        self._model, self._names = model, None
        with contextlib.ExitStack() as stack:
            if callable(getattr(model, _UPDATE, None)):
                update = self._capturing_update(getattr(model, _UPDATE))
                stack.enter_context(replaced(model, _UPDATE, update))
            mean_loss = getattr(model, _MEAN_LOSS, None)
            if mean_loss is not None:
                update = self._capturing_loss(mean_loss.update_state)
                stack.enter_context(replaced(mean_loss, "update_state", update))
            model.test_function = None  # so that it is traced again
            yield
        model.test_function = None

    def _capturing_update(self, update: Function) -> Function:
        @do_not_convert
        def call(*args: Object, **kwargs: Object) -> Object:
            if args and kwargs:
                return update(*args, **kwargs)
            return _called(update, self._keep_arguments(kwargs or list(args), keep))

        def keep(name: str, argument: Object) -> Object:
            return self._keep(name, argument) if tf.is_tensor(argument) else argument

        return call

    def _capturing_loss(self, update: Function) -> Function:
        @do_not_convert
        def call(loss: Object, *args: Object, **kwargs: Object) -> Object:
            return update(self._keep(LOSS, loss), *args, **kwargs)

        return call

    def _computed(self, names: Sequence[str], batches: Sequence[Values]) -> Values:
        metrics = [each for each in self._model.metrics if each.name != LOSS]
        _reset(metrics)
        for batch in batches:
            flat = [tf.constant(batch[name]) for name in names]
            _called(self._model.update_metrics, tf.nest.pack_sequence_as(self._structure, flat))
        results = {each.name: each.result().numpy() for each in metrics}
        _reset(metrics)
        return results


def _called(function: Function, structure: Nest) -> Object:
    return function(**structure) if isinstance(structure, dict) else function(*structure)


def _reset(metrics: Sequence[Object]) -> None:
    for each in metrics:
        each.reset_state()
