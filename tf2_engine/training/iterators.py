"""Helpers for input functions of TensorFlow 1, which read arrays or use iterators."""

from __future__ import annotations

import threading
from collections.abc import Callable

import tensorflow as tf

from tf2_engine.graph_mode import do_not_convert
from tf2_engine.types import Dataset, Nest, Object


class _Reading(threading.local):
    element: Nest = None


_here = _Reading()


class _Wanted(BaseException):  # not caught by `except Exception`
    def __init__(self, dataset: Dataset) -> None:
        super().__init__()
        self.dataset = dataset


class _Iterator:
    initializer = None

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def get_next(self, name: str | None = None) -> Nest:
        if _here.element is None:
            raise _Wanted(self._dataset)
        return _here.element


def make_iterator(dataset: Dataset, *unused: object, **others: object) -> _Iterator:
    """Creates an iterator (one-shot or initializable) for an input function of a `Trainer`."""
    return _Iterator(dataset)


def numpy_input_fn(
    x: Nest,
    y: Nest = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
) -> Callable[[], Dataset]:
    """Creates an input function from arrays, as in `tf.compat.v1.estimator.inputs`.

    Args:
        x, y: features and labels, as arrays or dicts of arrays. `y` is optional.
        queue_capacity: the size of the shuffle buffer, in samples.
        num_threads: has no effect.
    """

    def input_fn() -> Dataset:
        dataset = tf.data.Dataset.from_tensor_slices(x if y is None else (x, y))
        dataset = dataset.shuffle(queue_capacity) if shuffle else dataset
        return dataset.repeat(num_epochs).batch(batch_size)

    return input_fn


def pandas_input_fn(
    x: Object, y: Object = None, *args: Object, target_column: str = "target", **settings: Object
) -> Callable[[], Dataset]:
    """Creates an input function from a DataFrame, and a Series or DataFrame with the labels.

    Args:
        target_column: has no effect.
        args, settings: as in `numpy_input_fn`.
    """
    features = {name: x[name].to_numpy() for name in x.columns}
    labels = None if y is None else y.to_numpy()
    if hasattr(y, "columns"):
        labels = {name: y[name].to_numpy() for name in y.columns}
    return numpy_input_fn(features, labels, *args, **settings)


def dataset_of(input_fn: Callable[[], Nest]) -> Nest:
    """Calls an input function, and returns a dataset of all batches that it would deliver.

    If the function asks an iterator for the next element, the function becomes the last `map` of
    the iterator's dataset. Inside `map`, the function is called again, and the iterator returns the
    symbolic element.
    """
    try:
        return input_fn()
    except _Wanted as wanted:
        dataset = wanted.dataset

    @do_not_convert
    def deliver(*parts: Nest) -> Nest:
        before, _here.element = _here.element, parts
        if not isinstance(dataset.element_spec, tuple):
            (_here.element,) = parts
        try:
            result = input_fn()
        finally:
            _here.element = before
        has_labels = not isinstance(result, tuple) or result[-1] is not None
        return result if has_labels else result[0]

    # Elements are mapped one after another, because the function may have side effects.
    return dataset.map(deliver)
