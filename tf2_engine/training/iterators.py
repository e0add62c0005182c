"""Input functions of TensorFlow 1, which return what an iterator delivers and not a dataset."""

from __future__ import annotations

import threading
from collections.abc import Callable

import tensorflow as tf

from tf2_engine.graph_mode import do_not_convert
from tf2_engine.types import Dataset, Nest


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


def dataset_of(input_fn: Callable[[], Nest]) -> Nest:
    """Calls an input function, and returns the dataset of all that it would deliver.

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

    return dataset.map(deliver, tf.data.AUTOTUNE, deterministic=True)
