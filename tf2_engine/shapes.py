"""Computes activation shapes from the spec, `build`'s arguments or a batch; checks gradients."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import tensorflow as tf

from tf2_engine import batch, errors, structure
from tf2_engine.calls import frames_to_the_caller
from tf2_engine.plan import FeaturePlan, Shape, agree
from tf2_engine.specs import EngineSpec, FeatureSpec
from tf2_engine.types import Ids, Nest, Object, Tensor


def per_core(batch_size: int | None, num_cores: int) -> int | None:
    if batch_size is None:
        return None
    if batch_size < 1 or batch_size % num_cores:
        raise errors.InvalidSpec(
            f"`batch_size`={batch_size} must be a positive multiple of the number of cores, "
            f"{num_cores}."
        )
    return batch_size // num_cores


def from_arguments(spec: EngineSpec, input_shapes: Nest, batch_size: int | None) -> list[Shape]:
    flat: list[Object] = [None] * len(spec.features)
    if input_shapes is not None:
        flat = structure.flatten_shapes(spec.structure, input_shapes, "per_replica_input_shapes")
    return with_batch_size(spec, list(map(_of_input, spec.features, flat)), batch_size)


def from_values(spec: EngineSpec, values: Sequence[Ids], cores: int = 1) -> list[Shape]:
    return [
        _of_ids(feature, value, cores) for feature, value in zip(spec.features, values, strict=True)
    ]


def with_batch_size(
    spec: EngineSpec, derived: Sequence[Shape | None], batch_size: int | None
) -> list[Shape]:
    return [
        _one(feature, shape, batch_size)
        for feature, shape in zip(spec.features, derived, strict=True)
    ]


def check(spec: EngineSpec, built: Sequence[Shape], of_batch: Sequence[Shape]) -> None:
    for feature, expected, actual in zip(spec.features, built, of_batch, strict=True):
        if not _agree(expected, actual):
            raise errors.InvalidInput(
                f"Feature {feature.name!r}: the engine is built for activations of shape "
                f"{tuple(expected)}, but this batch leads to {tuple(actual)}. Batches must keep "
                "their shape."
            )


def _of_ids(feature: FeatureSpec, ids: Ids, cores: int) -> Shape:
    length = 0 if feature.output_shape else feature.max_sequence_length
    first, *rest = batch.output_shape(feature.name, length, ids)
    if first is not None and first % cores:
        raise errors.InvalidInput(
            f"Feature {feature.name!r}: {first} samples cannot be split over the {cores} cores of "
            "a replica."
        )
    return (None if first is None else first // cores, *rest)


def _of_input(feature: FeatureSpec, shape: Object) -> Shape | None:
    if shape is None:
        return None
    sizes = tf.TensorShape(shape).as_list()
    if len(sizes) < 2:
        raise errors.InvalidSpec(
            f"Feature {feature.name!r}: an input shape must have rank 2 or above, got {shape}."
        )
    if feature.max_sequence_length and len(sizes) == 2 and feature.output_shape is None:
        return (sizes[0], feature.max_sequence_length)
    return tuple(sizes[:-1])


def _one(feature: FeatureSpec, derived: Shape | None, batch_size: int | None) -> Shape:
    declared = feature.output_shape
    shape = declared if declared is not None and None not in declared else derived or declared
    if shape is None and batch_size is not None:
        length = feature.max_sequence_length
        shape = (batch_size, length) if length else (batch_size,)
    if shape is None:
        raise errors.InvalidSpec(
            f"Feature {feature.name!r}: its output shape is not known. Give `build` the input "
            "shapes, or the feature an `output_shape`."
        )
    if declared is not None and derived is not None and not _agree(declared, derived):
        raise errors.InvalidSpec(
            f"Feature {feature.name!r}: its `output_shape` is {declared}, but the input leads to "
            f"{derived}."
        )
    if batch_size is not None and declared is None:
        if shape[0] not in (None, batch_size):
            raise errors.InvalidSpec(
                f"Feature {feature.name!r}: the batch size per core is {batch_size}, but the input "
                f"leads to {shape}."
            )
        shape = (batch_size, *shape[1:])
    return shape


def _agree(expected: Shape, actual: Shape) -> bool:
    # A ragged batch of rank 2 can fill an activation with more dimensions. The sizes are checked
    # when the ids are read.
    return len(actual) in (1, 2) if len(actual) < len(expected) else agree(expected, actual)


def read_gradient(feature: FeaturePlan, value: Object, cores_per_replica: int = 1) -> Tensor:
    """Checks the gradient of one feature's activation: [*output_shape, dim] float32.

    The first dimension covers all cores of a replica. If `value` is None, warns and returns zeros.
    """
    first, *rest = feature.output_shape
    expected = [None if first is None else first * cores_per_replica, *rest, feature.table.dim]
    if value is None:
        if feature.cells is None:
            raise errors.InvalidInput(
                f"{feature.where}: the gradient is None, and the batch size is not fixed, so the "
                "shape of a gradient of zeros is not known. Pass zeros of the activation's shape."
            )
        warnings.warn(
            f"{feature.where}: the gradient is None; zeros are used. Optimizers other than SGD "
            "may move rows at a zero gradient.",
            stacklevel=frames_to_the_caller(),
        )
        return tf.zeros(expected, tf.float32)
    if isinstance(value, tf.IndexedSlices):
        value = tf.convert_to_tensor(value)
    if not isinstance(value, tf.Tensor):
        raise errors.WrongKind(
            f"{feature.where}: found non-tensor type {type(value).__name__} for its gradient. Pass "
            "a tensor."
        )
    if value.dtype != tf.float32:
        raise errors.WrongType(
            f"{feature.where}: a gradient must be float32, got {value.dtype.name}."
        )
    if not value.shape.is_compatible_with(expected):
        raise errors.InvalidInput(
            f"{feature.where}: found a gradient of shape {value.shape}, expected {expected}."
        )
    # Sizes that are only known at run time are checked at run time.
    return value if value.shape.is_fully_defined() else tf.ensure_shape(value, expected)
