"""Declares the class of a TensorFlow 2 program that trains, so that `verify` can run it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

Kind = TypeVar("Kind", bound=type)

_recorders: list[Callable[[type], None]] = []
_used: list[tuple[type, dict[str, object]]] = []


def verifiable(kind: Kind) -> Kind:
    """Declares, as a decorator, a class whose training `verify` may run as a side.

    `tf2_engine.training.Trainer` is one without being declared, and `tf2_engine.keras.TableModel`
    is recorded by its own methods. Outside of `verify` the class stays
    as it is. `verify` records the calls of these methods, and replaces some of the program's
    arguments; it passes all of them by name:

        __init__(model_fn, model_dir, embedding_config_spec, ...)
            The model_dir is replaced. The caller of `model_fn` passes the activations among the
            features, by the names of the spec; it returns a NamedTuple with the `loss`. It is
            called once for each trace of a tf.function, or for each step. Gradients of the model's
            own optimizer are recorded if the optimizer is one of `tf.compat.v1.train`.
        restore(checkpoint)
            Restores all variables from a checkpoint that `estimator-bridge convert` wrote.
        train(input_fn, steps, max_steps, callbacks)
            Calls `on_train_begin()` of each callback when all variables have their values, and
            `on_train_batch_end(step)` after each step. `input_fn` returns a `tf.data.Dataset`.
        evaluate(input_fn, steps)
            Returns metrics by name. A training may call it too.
        predict(input_fn)
            Yields the predictions for each sample: a dict of arrays.
        engine, step, variables
            The `tf2_engine.TPUEmbedding`; the variable that counts steps; every other variable by
            its legacy name, as soon as training begins.

    A class that exports also has `export_saved_model(...)`, which returns the directory that it
    wrote.
    """
    for record in _recorders:
        record(kind)
    return kind


def used(kind: type) -> None:
    """Declares a class of a library, if it is recorded, before each of its instances is made.

    When the recording ends, the class is again as it was before.
    """
    if not _recorders or any(issubclass(kind, each) for each, _ in _used):
        return
    _used.append((kind, dict(vars(kind))))
    verifiable(kind)


@contextlib.contextmanager
def recorded(record: Callable[[type], None]) -> Iterator[None]:
    """Calls `record`, in the context, with each class that a program declares or uses."""
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
