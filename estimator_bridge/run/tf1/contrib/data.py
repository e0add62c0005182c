"""Transformations of datasets that are arguments of other methods now."""

from __future__ import annotations

from collections.abc import Callable

from tf2_engine.types import Dataset, Nest

Transformation = Callable[[Dataset], Dataset]


def batch_and_drop_remainder(batch_size: int) -> Transformation:
    """Batches, and leaves out the last batch if it is smaller."""
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)


def padded_batch_and_drop_remainder(
    batch_size: int, padded_shapes: Nest, padding_values: Nest = None
) -> Transformation:
    """Pads and batches, and leaves out the last batch if it is smaller."""
    return lambda dataset: dataset.padded_batch(
        batch_size, padded_shapes, padding_values, drop_remainder=True
    )
