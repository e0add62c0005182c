"""Input functions of TensorFlow 1, which read arrays, or return what an iterator delivers."""

from __future__ import annotations

import threading
from collections.abc import Callable

import tensorflow as tf

from tf2_engine.graph_mode import do_not_convert
from tf2_engine.types import Dataset, Nest, Object


class _Reading(threading.local):
    element: Nest = None


_here = _Reading()


class _Wanted(BaseException):  # which no handler of a program catches
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
    """Makes an iterator for an input function that a `Trainer` calls, of either kind."""
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
    """Makes an input function of arrays, as that of `tf.compat.v1.estimator.inputs`.

    Args:
        x, y: the features and the labels, in arrays or dicts of them. Without `y` there are none.
        queue_capacity: the number of samples that are shuffled together.
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
    """Makes an input function of a DataFrame, and of a Series or DataFrame with the labels.

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
    """Calls an input function, and returns a dataset of everything that it would deliver.

    If it asks an iterator for its next element, the function is called again for a symbolic
    element, and becomes the last step of the dataset.
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

    # One after another, because the function may have effects, and ran so in an estimator.
    return dataset.map(deliver)
