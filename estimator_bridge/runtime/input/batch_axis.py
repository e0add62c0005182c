"""Splits each tensor of a batch over the cores along the axis that `batch_axis` names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.runtime.input.feature_splitting import split_batch
from estimator_bridge.runtime.program_types import Batch
from estimator_bridge.settings.legacy_spec import LegacySpec
from tf2_engine import tf_compat
from tf2_engine.types import Ids, Nest, Tensor

# (0 for features or 1 for labels, the path within them): sorted, the order of stock's infeed.
_Place = tuple[int, tuple[str | int, ...]]


def split_along(
    batch: Batch, axes: Sequence[int], num_cores: int, legacy: LegacySpec | None
) -> list[Batch]:
    """Splits features and labels, each tensor along its axis.

    As in stock the axes are those of the tensors that a TPU's infeed gets: features in the order of
    their keys, then labels. Ids and weights of embeddings are not among them, and are split along
    their first axis. Lengths of sequences, and ids and masks of tensor-core columns, are among
    them, by their keys, and have one row per sample.

    Args:
        batch: features and labels; the latter None when there are none.
        legacy: says which features are ids and weights; None means that none is.

    Returns:
        For each core features and labels.

    Raises:
        InvalidInput: there are more or fewer axes than tensors, a tensor has no such axis, or the
            number of cores does not divide it.
    """
    features, labels = batch
    ids, rest = _separate_ids(features, legacy)
    nest = [rest] if labels is None else [rest, labels]
    leaves = dict(_leaves(nest))
    places = sorted({*leaves, *_added_by_infeed(legacy)})
    if len(places) != len(axes):
        raise errors.InvalidInput(
            f"`batch_axis` has {len(axes)} axes, {tuple(axes)}, and there are {len(places)} "
            f"tensors to split: {[_shown(place) for place in places]}. Give one for each."
        )
    split = {}
    for place, axis in zip(places, axes, strict=True):
        if place in leaves:
            split[place] = _split(leaves[place], axis, num_cores, _shown(place))
        elif axis != 0:
            raise errors.InvalidInput(
                f"`batch_axis` is {axis} for {_shown(place)}, which has a row for each sample. "
                "Give it 0."
            )
    cores = []
    for core, ids_of_core in enumerate(split_batch(ids, num_cores)):
        parts = [split[place][core] for place in leaves]
        rest_of_core, *labels_of_core = tf.nest.pack_sequence_as(nest, parts)
        if ids:
            rest_of_core = {**rest_of_core, **ids_of_core}
        cores.append((rest_of_core, labels_of_core[0] if labels_of_core else None))
    return cores


def _separate_ids(features: Nest, legacy: LegacySpec | None) -> tuple[dict[str, Ids], Nest]:
    """Returns the features that columns look up, and the others."""
    if legacy is None or not isinstance(features, Mapping):
        return {}, features
    keys = {key for feature in legacy.features for key in (feature.key, feature.weight_key)}
    keys |= {column.key for column in legacy.tensor_core_columns}
    ids = {key: value for key, value in features.items() if key in keys}
    return ids, {key: value for key, value in features.items() if key not in keys}


def _added_by_infeed(legacy: LegacySpec | None) -> Iterator[_Place]:
    """Yields the tensors that stock's infeed adds to those of the input_fn."""
    if legacy is None:
        return
    for feature in legacy.features:
        if feature.max_sequence_length:
            yield 0, (tf_compat.sequence_length_key(feature.key),)
    for column in legacy.tensor_core_columns:
        yield from ((0, (column.key,)), (0, (tf_compat.mask_key(column.key),)))


def _leaves(nest: list[Nest]) -> Iterator[tuple[_Place, Ids]]:
    for position, part in enumerate(nest):
        for path, leaf in tf_compat.flatten_with_paths(part):
            yield (position, path), leaf


def _shown(place: _Place) -> str:
    position, path = place
    return ".".join((("features", "labels")[position], *map(str, path)))


def _split(leaf: Ids, axis: int, num_cores: int, name: str) -> list[Tensor]:
    if isinstance(leaf, tf.SparseTensor):
        raise errors.InvalidInput(
            f"{name} is sparse, but `batch_axis` is for dense tensors. Make it dense in the "
            "input_fn, or use InputPipelineConfig.PER_HOST_V2, which has no use for `batch_axis`."
        )
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
