"""Finds the features of serialized tf.train.Examples that columns read, and creates receivers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tf2_engine import errors, preprocessing
from tf2_engine.keras.columns import ModelColumn, Numeric, SequenceNumeric
from tf2_engine.types import Object, Tensor

Column = ModelColumn | preprocessing.Column | str
Receiver = tuple[tf.TensorSpec, Callable[[Tensor], Mapping[str, Object]]]


def parse_example_spec(columns: Iterable[Column]) -> dict[str, Object]:
    """Creates the arguments of `tf.io.parse_example`, like `make_parse_example_spec`."""
    specs: dict[str, Object] = {}
    for column in columns:
        for key, spec in specs_of(column):
            if specs.setdefault(key, spec) != spec:
                raise errors.InvalidSpec(
                    f"Feature {key!r} is read by one column as {specs[key]} and by another as "
                    f"{spec}. Give all columns of a feature the same type and shape."
                )
    return specs


def parsing_receiver(
    feature_spec: Mapping[str, Object], default_batch_size: int | None = None
) -> Callable[[], Receiver]:
    """Creates a receiver of serialized Examples for `TableModel.export_saved_model`.

    The receiver returns the spec of the Examples, [batch] string, and a function that parses them.

    Args:
        feature_spec: see `tf.io.parse_example`.
        default_batch_size: None allows any batch size.
    """
    spec = tf.TensorSpec([default_batch_size], tf.string, "examples")
    return lambda: (spec, lambda examples: tf.io.parse_example(examples, feature_spec))


def specs_of(column: Column) -> Iterator[tuple[str, Object]]:
    if isinstance(column, str):  # inside a crossed column
        yield column, tf.io.VarLenFeature(tf.string)
    elif isinstance(column, Numeric):
        yield column.key, _fixed_spec(column, column.shape)
    elif isinstance(column, SequenceNumeric):
        yield column.key, tf.io.VarLenFeature(column.dtype)
    elif isinstance(column, preprocessing.Column):
        yield from _specs_of_ids(column)
    else:
        yield from _specs_of_ids(column.ids)


def _specs_of_ids(column: preprocessing.Column) -> Iterator[tuple[str, Object]]:
    if isinstance(column, preprocessing.Crossed):
        for each in column.keys:
            yield from specs_of(each)
    elif isinstance(column, (preprocessing.Sequence, preprocessing.Weighted)):
        yield from _specs_of_ids(column.column)
        if isinstance(column, preprocessing.Weighted):
            yield column.weight_key, tf.io.VarLenFeature(column.dtype)
    elif isinstance(column, preprocessing.Bucketized):
        yield column.key, _fixed_spec(column, (1,))
    else:
        key: str = column.key  # type: ignore[attr-defined]
        yield key, tf.io.VarLenFeature(getattr(column, "dtype", tf.int64))


def _fixed_spec(column: Numeric | preprocessing.Bucketized, shape: Sequence[int]) -> Object:
    default = column.default_value
    if default is not None and np.ndim(default) == 0:  # one number stands for all
        for size in reversed(shape):
            default = (default,) * size
    return tf.io.FixedLenFeature(shape, column.dtype, default)
