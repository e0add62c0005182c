"""Declares classes that train TensorFlow 2 models, so that `verify` can run them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

Kind = TypeVar("Kind", bound=type)

_recorders: list[Callable[[type], None]] = []
_used: list[tuple[type, dict[str, object]]] = []


def verifiable(kind: Kind) -> Kind:
    """Decorates a class so that `verify` can run its training; has no effect outside `verify`.

    `verify` records the calls to the following methods, replaces some of their arguments, and
    passes all arguments by name:

        __init__(model_fn, model_dir, embedding_config_spec, ...)
            `verify` replaces the model_dir. The class calls `model_fn` once for each trace of a
            tf.function, or once per step. `model_fn` gets features that include the activations,
            under the feature names of the spec, and returns a NamedTuple with the `loss`.
            Gradients of the model's own optimizer are recorded if this optimizer comes from
            `tf.compat.v1.train`.
        restore(checkpoint)
            Restores all variables from a checkpoint that `estimator-bridge convert` wrote.
        train(input_fn, steps, max_steps, callbacks)
            Calls `on_train_begin()` of each callback once all variables have their values, and
            `on_train_batch_end(step)` after each step. `input_fn` returns a `tf.data.Dataset`.
        evaluate(input_fn, steps)
            Returns a dict of metrics. `train` may call it too.
        predict(input_fn)
            Yields the predictions of each sample, as a dict of arrays.
        engine, step, variables
            `engine` is the `tf2_engine.TPUEmbedding`, `step` is the variable that counts steps, and
            `variables` maps legacy names to all other variables. They exist as soon as training
            begins.
        export_saved_model(...)
            Optional: returns the directory that it wrote.
    """
    for record in _recorders:
        record(kind)
    return kind


def used(kind: type) -> None:
    """Inside `recorded`, makes a library's class verifiable until that context ends."""
    if not _recorders or any(issubclass(kind, each) for each, _ in _used):
        return
    _used.append((kind, dict(vars(kind))))
    verifiable(kind)


@contextlib.contextmanager
def recorded(record: Callable[[type], None]) -> Iterator[None]:
    _recorders.append(record)
    try:
        yield
    finally:
        _recorders.remove(record)
        while _used:
            _put_back(*_used.pop())


def _put_back(kind: type, before: dict[str, object]) -> None:
    for name, value in dict(vars(kind)).items():
        if name not in before:
            delattr(kind, name)
        elif value is not before[name]:
            setattr(kind, name, before[name])
