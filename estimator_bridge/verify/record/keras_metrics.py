"""Captures the inputs of a `TableModel`'s metrics, and computes the metrics once more.

That is what its `test_step` gives `update_metrics(...)`, and `mean_loss.update_state(loss)`, by the
names that `migrate --form keras` writes. A model without them has no such values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import tensorflow as tf

from estimator_bridge.verify.record.array_files import Values
from estimator_bridge.verify.record.capture import Capture, Function
from estimator_bridge.verify.record.metric_values import ARGUMENT
from estimator_bridge.verify.record.recording import LOSS
from estimator_bridge.verify.record.replay import names_of
from tf2_engine.graph_mode import do_not_convert
from tf2_engine.types import Nest, Object

_METRICS = "metrics"
_UPDATE, _MEAN_LOSS = "update_metrics", "mean_loss"


class KerasMetricValues:
    """The losses and the arguments of `update_metrics` of one evaluation, batch by batch."""

    def __init__(self) -> None:
        self._capture = Capture()
        self._model: Object = None
        self._structure: Nest = None

    @contextlib.contextmanager
    def attached(self, model: Object) -> Iterator[None]:
        """Captures the arguments of a model's metrics, in evaluations that are traced meanwhile."""
        self._model, self._structure = model, None
        with contextlib.ExitStack() as stack:
            if callable(getattr(model, _UPDATE, None)):
                update = self._capturing_update(getattr(model, _UPDATE))
                stack.enter_context(_replaced(model, _UPDATE, update))
            mean_loss = getattr(model, _MEAN_LOSS, None)
            if mean_loss is not None:
                update = self._capturing_loss(mean_loss.update_state)
                stack.enter_context(_replaced(mean_loss, "update_state", update))
            model.test_function = None  # to be traced anew
            yield
        model.test_function = None

    def _capturing_update(self, update: Function) -> Function:
        @do_not_convert
        def call(*args: Object, **kwargs: Object) -> Object:
            if args and kwargs:
                return update(*args, **kwargs)
            structure = kwargs or list(args)
            self._structure = tf.nest.map_structure(lambda _: None, structure)
            pairs = zip(names_of(ARGUMENT, structure), tf.nest.flatten(structure), strict=True)
            flat = [
                self._capture.tensor(_METRICS, name, tensor) if tf.is_tensor(tensor) else tensor
                for name, tensor in pairs
            ]
            return _called(update, tf.nest.pack_sequence_as(structure, flat))

        return call

    def _capturing_loss(self, update: Function) -> Function:
        @do_not_convert
        def call(loss: Object, *args: Object, **kwargs: Object) -> Object:
            return update(self._capture.tensor(_METRICS, LOSS, loss), *args, **kwargs)

        return call

    def begin(self) -> None:
        """Drops the values captured before an evaluation."""
        self._capture.flush()

    def batches(self) -> list[Values]:
        """Returns the values captured since `begin`, batch by batch."""
        return [step.get(_METRICS, {}) for step in self._capture.flush()]

    def recomputed(self, batches: Sequence[Values]) -> Values:
        """Returns the metrics of recorded batches, as the model's `update_metrics` computes them.

        Empty without such a method, or if it was given other values.
        """
        if self._structure is None or not batches:
            return {}
        names = names_of(ARGUMENT, self._structure)
        if any(name not in batch for batch in batches for name in names):
            return {}
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


@contextlib.contextmanager
def _replaced(owner: Object, name: str, value: Object) -> Iterator[None]:
    """Sets an attribute of an object while the context is open."""
    is_own, before = name in vars(owner), getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
