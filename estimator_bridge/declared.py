"""How a program of TensorFlow 2 lets `verify` run it: it declares the class that trains."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

Kind = TypeVar("Kind", bound=type)

_recorders: list[Callable[[type], None]] = []


def verifiable(kind: Kind) -> Kind:
    """Declares, as a decorator, a class whose training `verify` may run as a side.

    `migrate --form tf2` writes such a class, `Trainer`. Outside of `verify` the class is as it is.
    Inside, these are called with other arguments than the program's, and overheard; `verify` gives
    all of them by name:

        __init__(model_fn, model_dir, embedding_config_spec, ...)
            model_dir is another one. The `model_fn` gets, of its caller, the activations among the
            features, by the names of the spec, and returns a NamedTuple with the `loss`. It is
            called once for each trace of a tf.function, or for each step. The gradients that the
            model's own optimizer applies are seen of those of `tf.compat.v1.train`.
        restore(checkpoint)
            takes all values from a checkpoint as `estimator-bridge convert` writes it.
        train(input_fn, steps, max_steps, callbacks)
            calls `on_train_begin()` of each callback when all variables have their values, and
            `on_train_batch_end(step)` after each step. `input_fn` returns a `tf.data.Dataset`.
        evaluate(input_fn, steps)
            returns metrics by name. A training may call it too.
        predict(input_fn)
            yields what is predicted of each sample: a dict of arrays.
        engine, step, variables
            the `tf2_engine.TPUEmbedding`; the variable that counts steps; every other variable by
            its legacy name, as soon as training begins.

    A class that exports has `export_saved_model(...)` besides, which returns the directory that it
    wrote.
    """
    for record in _recorders:
        record(kind)
    return kind


@contextlib.contextmanager
def recorded(record: Callable[[type], None]) -> Iterator[None]:
    """While it is open, `record` is called with each class that is declared."""
    _recorders.append(record)
    try:
        yield
    finally:
        _recorders.remove(record)
