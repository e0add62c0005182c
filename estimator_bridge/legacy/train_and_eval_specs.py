"""What `train_and_evaluate` is told: `TrainSpec` and `EvalSpec`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.legacy.checks import NOT_NEGATIVE, POSITIVE, check
from estimator_bridge.legacy.exporters import Exporter
from estimator_bridge.legacy.spec_checks import checked_hooks


class _TrainSpec(NamedTuple):
    input_fn: Callable[..., Any]
    max_steps: int | None
    hooks: tuple[Any, ...]
    saving_listeners: tuple[Any, ...]


class TrainSpec(_TrainSpec):
    """The training half.

    Attributes:
        input_fn: as for `train`.
        max_steps: the global step to stop at; None is until the input ends.
        hooks: SessionRunHooks.
        saving_listeners: CheckpointSaverListeners.

    Raises:
        InvalidSpec: `max_steps` is not positive.
        WrongType: something cannot be called, or is no hook or listener.
    """

    def __new__(
        cls,
        input_fn: Callable[..., Any],
        max_steps: int | None = None,
        hooks: Iterable[Any] | None = None,
        saving_listeners: Iterable[Any] | None = None,
    ) -> TrainSpec:
        """Checks the settings."""
        _check_input_fn("TrainSpec", input_fn)
        if max_steps is not None:
            check("TrainSpec", "max_steps", max_steps, POSITIVE)
        return super().__new__(
            cls, input_fn, max_steps, checked_hooks(hooks), _checked_listeners(saving_listeners)
        )


class _EvalSpec(NamedTuple):
    input_fn: Callable[..., Any]
    steps: int | None
    name: str | None
    hooks: tuple[Any, ...]
    exporters: tuple[Any, ...]
    start_delay_secs: float
    throttle_secs: float


class EvalSpec(_EvalSpec):
    """The evaluation half.

    Attributes:
        input_fn: as for `evaluate`.
        steps: batches of an evaluation; None is until the input ends.
        name: of the evaluation.
        hooks: SessionRunHooks.
        exporters: called after each evaluation, in their order.
        start_delay_secs: seconds before an evaluator process starts; without one, unused.
        throttle_secs: seconds between the starts of two evaluations, at least; the last
            checkpoint is evaluated in any case.

    Raises:
        InvalidSpec: a number is outside its range, or names of exporters are missing or shared.
        WrongType: something cannot be called, or is no hook, exporter or name.
    """

    def __new__(
        cls,
        input_fn: Callable[..., Any],
        steps: int | None = 100,
        name: str | None = None,
        hooks: Iterable[Any] | None = None,
        exporters: Exporter | Iterable[Exporter] | None = None,
        start_delay_secs: float = 120,
        throttle_secs: float = 600,
    ) -> EvalSpec:
        """Checks the settings."""
        _check_input_fn("EvalSpec", input_fn)
        if steps is not None:
            check("EvalSpec", "steps", steps, POSITIVE)
        if name is not None and not isinstance(name, str):
            raise errors.WrongType(f"`EvalSpec`: `name` must be a str, got {name!r}.")
        check("EvalSpec", "start_delay_secs", start_delay_secs, NOT_NEGATIVE)
        check("EvalSpec", "throttle_secs", throttle_secs, NOT_NEGATIVE)
        return super().__new__(
            cls,
            input_fn,
            steps,
            name,
            checked_hooks(hooks),
            _checked_exporters(exporters),
            start_delay_secs,
            throttle_secs,
        )


def is_train_spec(thing: Any) -> bool:
    """Returns whether a thing is a `TrainSpec`, stock's or ours."""
    return isinstance(thing, tuple) and hasattr(thing, "saving_listeners")


def is_eval_spec(thing: Any) -> bool:
    """Returns whether a thing is an `EvalSpec`, stock's or ours."""
    return isinstance(thing, tuple) and hasattr(thing, "throttle_secs")


def _check_input_fn(owner: str, input_fn: Any) -> None:
    if not callable(input_fn):
        raise errors.WrongType(f"`{owner}`: `input_fn` must be callable, got {input_fn!r}.")


def _checked_listeners(listeners: Iterable[Any] | None) -> tuple[Any, ...]:
    made = tuple(listeners or ())
    for listener in made:
        if not isinstance(listener, tf.compat.v1.train.CheckpointSaverListener):
            raise errors.WrongType(
                f"`TrainSpec`: `saving_listeners` must be CheckpointSaverListeners, got "
                f"{listener!r}."
            )
    return made


def _is_exporter(thing: Any) -> bool:
    return hasattr(thing, "name") and callable(getattr(thing, "export", None))


def _checked_exporters(exporters: Any) -> tuple[Any, ...]:
    if not exporters:
        return ()
    several = [exporters] if _is_exporter(exporters) else exporters
    made = tuple(several) if isinstance(several, Iterable) else (several,)
    if not all(map(_is_exporter, made)):
        raise errors.WrongType(
            f"`EvalSpec`: `exporters` must be an Exporter or several, got {exporters!r}."
        )
    names = [exporter.name for exporter in made]
    for name in names:
        if not isinstance(name, str) or not name:
            raise errors.InvalidSpec(
                f"`EvalSpec`: an exporter's `name` must be a str that is not empty, got {names}."
            )
    if len(set(names)) < len(names):
        raise errors.InvalidSpec(
            f"`EvalSpec`: each exporter writes to a directory of its name, but they share names: "
            f"{names}."
        )
    return made
