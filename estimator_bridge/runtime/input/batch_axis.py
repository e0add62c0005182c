"""`batch_axis`: along which axis each tensor of a batch is split over the cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.runtime.input.feature_splitting import split_batch
from estimator_bridge.translation.legacy_spec import LegacySpec
from tf2_engine import tf_compat


def split_along(
    batch: tuple[Any, Any], axes: Sequence[int], num_cores: int, legacy: LegacySpec | None
) -> list[tuple[Any, Any]]:
    """Splits features and labels, each tensor along an axis of its own.

    As in stock the axes are those of the tensors that a TPU's infeed gets: features in the order of
    their keys, then labels. Ids and weights of embeddings are not among them, and are split along
    their first axis; lengths of sequences, and ids and masks of tensor-core columns, are, by their
    keys, and have one row per sample.

    Args:
        batch: features and labels; the latter None when there are none.
        legacy: says which features are ids and weights; None is none.

    Returns:
        For each core features and labels.

    Raises:
        InvalidInput: there are more or fewer axes than tensors, a tensor has no such axis, or the
            cores do not divide it.
    """
    features, labels = batch
    ids, rest = _set_apart(features, legacy)
    leaves = dict(_leaves(rest, labels))
    named = sorted({**leaves, **dict.fromkeys(_added(legacy))})
    if len(named) != len(axes):
        raise errors.InvalidInput(
            f"`batch_axis` has {len(axes)} axes, {tuple(axes)}, and there are {len(named)} tensors "
            f"to split: {[_shown(name) for name in named]}. Give one for each."
        )
    split = {}
    for name, axis in zip(named, axes, strict=True):
        if name in leaves:
            split[name] = _split(leaves[name], axis, num_cores, _shown(name))
        elif axis != 0:
            raise errors.InvalidInput(
                f"`batch_axis` is {axis} for {_shown(name)}, which has a row for each sample. "
                "Give it 0."
            )
    cores = []
    for core, mine in enumerate(split_batch(ids, num_cores)):
        parts = [split[name][core] for name in leaves]
        rest_of_core, *labels_of_core = tf.nest.pack_sequence_as(_nest(rest, labels), parts)
        if ids:
            rest_of_core = {**rest_of_core, **mine}
        cores.append((rest_of_core, labels_of_core[0] if labels_of_core else None))
    return cores


# What is named by its place: features before labels, and in each of them by its path.
_Name = tuple[int, tuple[Any, ...]]


def _set_apart(features: Any, legacy: LegacySpec | None) -> tuple[dict[str, Any], Any]:
    """Returns the features that columns look up, and the others."""
    if legacy is None or not isinstance(features, Mapping):
        return {}, features
    keys = {key for feature in legacy.features for key in (feature.key, feature.weight_key)}
    keys |= {column.key for column in legacy.tensor_core_columns}
    ids = {key: value for key, value in features.items() if key in keys}
    return ids, {key: value for key, value in features.items() if key not in keys}


def _added(legacy: LegacySpec | None) -> Iterator[_Name]:
    """Yields what stock's infeed has besides the input_fn's own tensors."""
    if legacy is None:
        return
    for feature in legacy.features:
        if feature.max_sequence_length:
            yield 0, (tf_compat.sequence_length_key(feature.key),)
    for column in legacy.tensor_core_columns:
        yield from ((0, (column.key,)), (0, (tf_compat.mask_key(column.key),)))


def _nest(features: Any, labels: Any) -> list[Any]:
    return [features] if labels is None else [features, labels]


def _leaves(features: Any, labels: Any) -> Iterator[tuple[_Name, Any]]:
    for part, nest in enumerate(_nest(features, labels)):
        for path, leaf in tf_compat.flatten_with_paths(nest):
            yield (part, path), leaf


def _shown(name: _Name) -> str:
    part, path = name
    return ".".join((("features", "labels")[part], *map(str, path)))


def _split(leaf: Any, axis: int, num_cores: int, name: str) -> list[Any]:
    if isinstance(leaf, tf.SparseTensor):
        raise errors.InvalidInput(f"{name} is sparse; `batch_axis` is for dense tensors.")
    tensor = tf.convert_to_tensor(leaf)
    rank = tensor.shape.rank
    if rank is None or not 0 <= axis < rank:
        raise errors.InvalidInput(
            f"`batch_axis` is {axis} for {name}, which has the shape {tensor.shape}."
        )
    size = tensor.shape.as_list()[axis]
    if size is not None and size % num_cores:
        raise errors.InvalidInput(
            f"{name} has {size} samples along its axis {axis} (`batch_axis`), which {num_cores} "
            "cores do not divide."
        )
    return list(tf.split(tensor, num_cores, axis))
