"""Splits and pads batches, and separates the features of a core into ids, weights and the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.settings import render
from estimator_bridge.settings.legacy_spec import LegacyFeature, LegacySpec
from estimator_bridge.settings.row import DENSE_RANK_1, DENSE_RANK_2
from tf2_engine import log, tf_compat
from tf2_engine.batch import num_samples, pad
from tf2_engine.types import Ids, Nest, Object, SparseTensor, Tensor

_log = log.PlainLogger(__name__)

Notify = Callable[[str], None]  # called with the text of a warning


@dataclasses.dataclass(frozen=True)
class CoreInput:
    """One core's part of a batch; n is the batch size per core.

    Attributes:
        ids: each feature's ids, of any integer type, as a SparseTensor [n, length] (for sequences
            [n, T, ids per position]), or as a Tensor [n] with one id per sample.
        weights: each feature's weights, a float32 SparseTensor [n, length]; None means that all
            weights are 1.
        features: what the model_fn gets: all other features, nests of [n, ...], and the lengths of
            sequence features, int64 [n].
    """

    ids: dict[str, Ids]
    weights: dict[str, SparseTensor | None]
    features: dict[str, Nest]


def split_features(
    features: Mapping[str, Nest], legacy: LegacySpec, notify: Notify = _log.warning
) -> CoreInput:
    """Separates ids and weights from other features; warns about dense ids."""
    if not isinstance(features, Mapping):
        raise errors.WrongType(
            f"With an embedding config the input_fn must give features as a dict, got {features!r}."
        )
    rest = dict(features)
    ids: dict[str, Ids] = {}
    weights: dict[str, SparseTensor | None] = {}
    for feature in legacy.features:
        key = feature.key
        values: Object = _read_ids(features, feature)
        if isinstance(values, tf.SparseTensor):
            ids[key], weights[key] = values, _read_weights(features, feature)
        else:
            ids[key], weights[key] = _read_dense(values, feature, legacy, notify), None
        rest.pop(key, None)
        if weights[key] is not None:
            rest.pop(str(feature.weight_key), None)  # Several features can have the same weights.
        if feature.max_sequence_length:
            rest[tf_compat.sequence_length_key(key)] = _sequence_lengths(ids[key], feature)
    for column in legacy.tensor_core_columns:
        rest.update(_padded(features, column.key, column.padded_length))
    return CoreInput(ids, weights, rest)


def split_batch(nest: Nest, num_cores: int) -> list[Nest]:
    if num_cores == 1:
        return [nest]
    split = [_split(leaf, num_cores) for leaf in tf.nest.flatten(nest)]
    return [
        tf.nest.pack_sequence_as(nest, [leaf[core] for leaf in split]) for core in range(num_cores)
    ]


def _read_ids(features: Mapping[str, Nest], feature: LegacyFeature) -> Tensor | SparseTensor:
    ids = _as_tensor(features, feature.key, _where(feature))
    if not ids.dtype.is_integer:
        kind = type(ids).__name__
        raise errors.InvalidInput(
            f"{_where(feature)}: {kind} with {ids.dtype.name} as values are not supported: ids "
            "must be integers. With use_tpu=True, columns do not transform ids. Look up or hash "
            "strings in the input_fn."
        )
    ranks = (2, 3) if feature.max_sequence_length else (2,)
    if isinstance(ids, tf.SparseTensor) and ids.shape.rank not in (None, *ranks):
        raise errors.InvalidInput(
            f"{_where(feature)}: sparse ids must have rank 2, [batch, ids of a sample], or for a "
            "sequence rank 3, [batch, positions, ids of a position]; got shape "
            f"{ids.shape}, and max_sequence_length={feature.max_sequence_length}."
        )
    return ids if ids.dtype in (tf.int32, tf.int64) else tf.cast(ids, tf.int64)


def _read_weights(features: Mapping[str, Nest], feature: LegacyFeature) -> SparseTensor | None:
    if feature.weight_key is None:
        return None
    where = f"{_where(feature)}, weights {feature.weight_key!r}"
    hint = " Please check if the weights are present in feature dict."
    weights = _as_tensor(features, feature.weight_key, where, hint)
    if not isinstance(weights, tf.SparseTensor):
        raise errors.InvalidInput(
            f"{where}: Dense weights are not supported on TPU. Give a SparseTensor with the "
            f"indices of the ids, not {weights!r}."
        )
    return tf.cast(weights, tf.float32)


def _read_dense(ids: Tensor, feature: LegacyFeature, legacy: LegacySpec, notify: Notify) -> Ids:
    if feature.max_sequence_length:
        raise errors.InvalidInput(
            f"{_where(feature)}: a sequence needs a SparseTensor [batch, length], got dense ids of "
            f"shape {ids.shape}. Use tf.sparse.from_dense in the input_fn."
        )
    if legacy.table(feature.table).combiner is None:
        return _one_per_sample(ids, feature)
    if ids.shape.rank == 1:
        return _dense_of_rank_1(ids, feature, legacy.quirks, notify)
    if ids.shape.rank == 2:
        # Stock's conversion treats id 0 as padding, and -1 as an id.
        notify(_warning(feature, DENSE_RANK_2))
        return tf.sparse.from_dense(ids)
    raise errors.InvalidInput(
        f"{_where(feature)}: dense ids must have rank 1 or 2, got shape {ids.shape}. Reshape "
        "them in the input_fn."
    )


def _dense_of_rank_1(ids: Tensor, feature: LegacyFeature, quirks: str, notify: Notify) -> Tensor:
    notify(_warning(feature, DENSE_RANK_1, quirks))
    if quirks == "documented":
        return ids
    message = (
        f"{_where(feature)}: dense ids of rank 1 hold id 0, which stock drops, so fewer ids "
        'than samples are left. Give a SparseTensor, or use quirks="documented".'
    )
    zero = tf.zeros([], ids.dtype)
    with tf.control_dependencies([tf.compat.v1.assert_none_equal(ids, zero, message=message)]):
        return tf.identity(ids)


def _one_per_sample(ids: Tensor, feature: LegacyFeature) -> Tensor:
    if feature.weight_key is not None:
        raise errors.InvalidInput(
            f"{_where(feature)}: weights {feature.weight_key!r} need sparse ids and a combiner, "
            "but the ids are dense and the table has combiner=None."
        )
    if ids.shape.rank == 2 and ids.shape.as_list()[1] == 1:
        return tf.squeeze(ids, 1)
    if ids.shape.rank != 1:
        raise errors.InvalidInput(
            f"{_where(feature)}: with combiner=None dense ids must have shape [batch], got "
            f"{ids.shape}. Give the table a combiner, or one id per sample."
        )
    return ids


def _sequence_lengths(ids: Ids, feature: LegacyFeature) -> Tensor:
    ends = tf.math.unsorted_segment_max(
        ids.indices[:, 1] + 1, ids.indices[:, 0], num_segments=ids.dense_shape[0]
    )
    # Without ids the maximum is the lowest int64.
    lengths = tf.clip_by_value(ends, tf.constant(0, tf.int64), feature.max_sequence_length)
    return tf.ensure_shape(lengths, ids.shape.as_list()[:1])


def _padded(features: Mapping[str, Nest], key: str, padded_length: int) -> dict[str, Tensor]:
    mask_key = tf_compat.mask_key(key)
    if mask_key in features:
        raise errors.InvalidInput(
            f"Feature {mask_key!r} has the key that the mask of tensor-core column {key!r} needs. "
            "Give the feature another key."
        )
    ids = _as_tensor(features, key, f"Tensor-core column {key!r}")
    if not isinstance(ids, tf.SparseTensor) or not ids.dtype.is_integer:
        raise errors.InvalidInput(
            f"Tensor-core column {key!r}: ids must be a SparseTensor of integers, got {ids!r}."
        )
    padded, mask = tf_compat.pad_ids(ids, padded_length)
    shape = [ids.shape.as_list()[0], padded_length]
    return {key: tf.ensure_shape(padded, shape), mask_key: tf.ensure_shape(mask, shape)}


def _as_tensor(features: Mapping[str, Nest], key: str, where: str, hint: str = "") -> Object:
    if key not in features:
        raise errors.MissingFeature(
            f"{where}: the input_fn gives no {key!r}, only {sorted(features, key=str)}.{hint}"
        )
    value = features[key]
    if isinstance(value, tf.RaggedTensor):
        return value.to_sparse()
    return tf.compat.v1.convert_to_tensor_or_sparse_tensor(value)


def _split(leaf: Object, num_cores: int) -> Sequence[Ids | None]:
    if leaf is None:
        return [None] * num_cores
    if not isinstance(leaf, tf.RaggedTensor):
        leaf = tf.compat.v1.convert_to_tensor_or_sparse_tensor(leaf)
    if leaf.shape.rank == 0:
        raise errors.InvalidInput(
            f"{leaf!r} is a scalar, which cannot be split over {num_cores} cores. Give it a batch "
            "dimension, or pass it through `params`."
        )
    samples = None if leaf.shape.rank is None else leaf.shape.as_list()[0]
    if samples is not None and samples % num_cores:
        raise errors.InvalidInput(
            f"{leaf!r} has {samples} samples, which cannot be divided evenly among {num_cores} "
            "cores. Change the batch size or the number of cores; use drop_remainder=True for the "
            "last batch."
        )
    if isinstance(leaf, tf.SparseTensor):
        return tf.sparse.split(sp_input=leaf, num_split=num_cores, axis=0)
    if isinstance(leaf, tf.RaggedTensor):
        size = leaf.nrows() // num_cores
        return [leaf[core * size : (core + 1) * size] for core in range(num_cores)]
    return tf.split(leaf, num_cores)


def _where(feature: LegacyFeature) -> str:
    return f"Feature {feature.key!r} (table {feature.table!r})"


def _warning(feature: LegacyFeature, when: str, quirks: str | None = None) -> str:
    key = feature.weight_key
    weights = "" if key is None else f", weights {key!r} are ignored"
    return render.warning("dense_ids", when, quirks, where=f"{_where(feature)}: ", weights=weights)


def pad_batch(features: Nest, size: int) -> tuple[Nest, Tensor | None]:
    """Pads a batch with zeros and empty rows to the static shape [size, ...].

    Also returns the number of samples before padding, int64, or None if the batch is known to be
    full. If the batch has more than `size` samples, this function or the session raises an error.
    """
    leaves = [leaf for leaf in tf.nest.flatten(features) if leaf is not None and leaf.shape.rank]
    if all(num_samples(leaf) == size for leaf in leaves):
        return features, None
    too_large = f"A batch has more samples than `predict_batch_size`={size}."
    if any((num_samples(leaf) or 0) > size for leaf in leaves):
        raise errors.InvalidInput(too_large)
    real = _rows(leaves[0])
    fits = tf.debugging.assert_less_equal(real, tf.constant(size, tf.int64), message=too_large)
    with tf.control_dependencies([fits]):
        real = tf.identity(real)
    missing = size - real
    return tf.nest.map_structure(lambda leaf: pad(leaf, size, missing), features), real


def cut_predictions(predictions: Nest, size: int, real: Tensor | None) -> Nest:
    if real is None:
        return predictions

    def cut(value: Tensor) -> Tensor:
        return value[:real] if value.shape.rank and num_samples(value) in (None, size) else value

    return tf.nest.map_structure(cut, predictions)


def _rows(leaf: Ids) -> Tensor:
    if isinstance(leaf, tf.SparseTensor):
        return leaf.dense_shape[0]
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int64)
    return tf.shape(leaf, out_type=tf.int64)[0]
