"""The arguments of `train_and_evaluate`: `TrainSpec` and `EvalSpec`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.legacy import requirements
from estimator_bridge.legacy.estimator_spec import Hooks, checked_all, checked_hooks
from estimator_bridge.legacy.exporters import Exporter
from tf2_engine.types import Nest, Object

InputFn: TypeAlias = Callable[..., Nest]
Listener: TypeAlias = tf.compat.v1.train.CheckpointSaverListener

_HOOKS = "All hooks must be `SessionRunHook` instances"
_LISTENERS = "`TrainSpec`: All saving_listeners must be `CheckpointSaverListener` instances"
_ABOVE_ZERO = requirements.POSITIVE._replace(text="Must specify {name} > 0")
_AT_LEAST_ZERO = requirements.NOT_NEGATIVE._replace(text="Must specify {name} >= 0")
_TRAIN = {
    "input_fn": requirements.CALLABLE,
    "max_steps": requirements.optional(_ABOVE_ZERO),
}
_EVALUATION = {
    "input_fn": requirements.CALLABLE,
    "steps": requirements.optional(_ABOVE_ZERO),
    "name": requirements.optional(requirements.STRING),
    "start_delay_secs": _AT_LEAST_ZERO,
    "throttle_secs": _AT_LEAST_ZERO,
}


@requirements.checked
class TrainSpec(NamedTuple):
    """How `train_and_evaluate` trains.

    Attributes:
        input_fn, hooks, saving_listeners: as for `train`.
        max_steps: the global step to stop at; None trains until the input ends.

    Raises:
        InvalidSpec: `max_steps` is not positive.
        WrongType: `input_fn` is not callable, or a hook or listener has the wrong type.
    """

    input_fn: InputFn
    max_steps: int | None = None
    hooks: Hooks = None
    saving_listeners: Hooks = None

    def _checked(self) -> TrainSpec:
        requirements.check_settings("TrainSpec", self._asdict(), _TRAIN)
        listeners = checked_all(self.saving_listeners, Listener, _LISTENERS)
        return self._replace(hooks=checked_hooks(self.hooks, _HOOKS), saving_listeners=listeners)


@requirements.checked
class EvalSpec(NamedTuple):
    """How `train_and_evaluate` evaluates.

    Attributes:
        input_fn, steps, name, hooks: as for `evaluate`.
        exporters: called after each evaluation, in this order.
        start_delay_secs: seconds before an evaluator process starts; unused in other processes.
        throttle_secs: the least number of seconds between the starts of two evaluations. The last
            checkpoint is always evaluated.

    Raises:
        InvalidSpec: a number is out of range, or two exporters have the same name or one has none.
        WrongType: `input_fn` is not callable, or a hook, an exporter or a name has the wrong type.
    """

    input_fn: InputFn
    steps: int | None = 100
    name: str | None = None
    hooks: Hooks = None
    exporters: Object = None  # one or several; a tuple once checked
    start_delay_secs: float = 120
    throttle_secs: float = 600

    def _checked(self) -> EvalSpec:
        requirements.check_settings("EvalSpec", self._asdict(), _EVALUATION)
        exporters = _checked_exporters(self.exporters)
        return self._replace(hooks=checked_hooks(self.hooks, _HOOKS), exporters=exporters)


def is_train_spec(thing: Object) -> bool:
    return isinstance(thing, tuple) and hasattr(thing, "saving_listeners")


def is_eval_spec(thing: Object) -> bool:
    return isinstance(thing, tuple) and hasattr(thing, "throttle_secs")


def _is_exporter(thing: Object) -> bool:
    return hasattr(thing, "name") and callable(getattr(thing, "export", None))


def _checked_exporters(exporters: Object) -> tuple[Exporter, ...]:
    if not exporters:
        return ()
    alone = _is_exporter(exporters) or not isinstance(exporters, Iterable)
    checked: tuple[Object, ...] = (exporters,) if alone else tuple(exporters)
    if not all(map(_is_exporter, checked)):
        raise errors.WrongType(
            f"`EvalSpec`: `exporters` must be an Exporter, or several, got {exporters!r}."
        )
    names = [exporter.name for exporter in checked]
    if not all(names):
        raise errors.InvalidSpec(
            f"`EvalSpec`: An Exporter cannot have a name that is `None` or empty, got {names}."
        )
    if not all(isinstance(name, str) for name in names):
        raise errors.InvalidSpec(f"`EvalSpec`: An Exporter must have a string name, got {names}.")
    if len(set(names)) < len(names):
        raise errors.InvalidSpec(
            "`EvalSpec`: `exporters` must have unique names, which are also the names of their "
            "directories; "
            f"got {names}."
        )
    return checked
