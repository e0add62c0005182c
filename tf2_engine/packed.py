"""Packs a batch of ids into four tensors, and unpacks these tensors.

A tf.function handles each argument separately: passing the 104 tensors of 26 ragged features with
weights takes longer than the lookup itself. During tracing, the class of a packed batch says which
part of each tensor belongs to which feature.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from tf2_engine import batch, errors, shapes, structure, tf_compat
from tf2_engine.graph_mode import run_after
from tf2_engine.native import gpu_ops, loading
from tf2_engine.specs import EngineSpec
from tf2_engine.types import Ids, Nest, RaggedTensor, SparseTensor, Tensor


class FeatureLayout(NamedTuple):
    """The static properties of a feature's batches.

    Attributes:
        kind: "dense", "sparse" or "ragged".
        shape: the shape of the ids (for ragged ids, only the number of rows). A size is None if it
            is only known at run time, or if it has no effect (the last size of a sparse tensor).
    """

    name: str
    kind: str
    shape: tuple[int | None, ...]
    weighted: bool

    @property
    def num_sizes(self) -> int:
        return 1 + self.weighted + len(self.shape)


PackedLayout = tuple[FeatureLayout, ...]


class PackedBatch(NamedTuple):
    """The ids and weights of all features, in the engine's order, made by `TPUEmbedding.pack`.

    Each combination of features, kinds and shapes has its own class, for which a tf.function is
    traced once.

    Attributes:
        ids: [num_ids] int64.
        offsets: int64: row splits of ragged ids, and flattened coordinates of sparse ids.
        weights: [num_weights] float32, empty without weights.
        sizes: int64: for each feature, the number of ids; the number of weights, if there are any;
            and the shape of the ids (for ragged ids only the number of rows).
    """

    ids: Tensor
    offsets: Tensor
    weights: Tensor
    sizes: Tensor


_DTYPES = PackedBatch(tf.int64, tf.int64, tf.float32, tf.int64)


def pack(spec: EngineSpec, features: Nest, weights: Nest = None) -> PackedBatch:
    with gpu_ops.where_ids_are():
        return _packed(spec, *flattened(spec, features, weights))


def _packed(spec: EngineSpec, ids: list[Ids], flat_weights: Sequence[Ids | None]) -> PackedBatch:
    shapes.from_values(spec, ids)  # checks kinds and ranks
    for feature, value, weight in zip(spec.features, ids, flat_weights, strict=True):
        batch.check_ids(feature, value, weight)
    raw = list(itertools.starmap(batch.read_unchecked, zip(ids, flat_weights, strict=True)))
    layout = tuple(
        FeatureLayout(feature.name, one.kind, _static_shape(value), one.weight is not None)
        for feature, value, one in zip(spec.features, ids, raw, strict=True)
    )
    offsets = [tf.reshape(each.index, [-1]) for each in raw if each.index is not None]
    sizes = []
    for value, one in zip(ids, raw, strict=True):
        counted = [one.ids] if one.weight is None else [one.ids, one.weight]
        sizes += [[tf.size(each, out_type=tf.int64) for each in counted], _shape(value)]
    return class_of(layout)(
        tf.concat([each.ids for each in raw], 0),
        _joined(offsets, tf.int64),
        _joined([each.weight for each in raw if each.weight is not None], tf.float32),
        tf.concat(sizes, 0),
    )


def flattened(
    spec: EngineSpec, features: Nest, weights: Nest
) -> tuple[list[Ids], Sequence[Ids | None]]:
    ids = structure.flatten(spec.structure, features, "features")
    of_ids: Sequence[Ids | None] = [None] * len(ids)
    if weights is not None:
        of_ids = structure.flatten(spec.structure, weights, "weights")
    return list(map(batch.as_tensor, ids)), of_ids


def unpacked(spec: EngineSpec, features: Nest, weights: Nest) -> tuple[Nest, Nest]:
    if not isinstance(features, PackedBatch):
        return features, weights
    if weights is not None:
        raise errors.InvalidInput(
            "`weights` are passed together with a packed batch, which contains its weights. Pass "
            "them to `pack`."
        )
    if tf_compat.tpu_computation_graph() is not None:
        raise errors.InvalidInput(
            "A packed batch cannot be unpacked inside `strategy.run` on a TPU: ids must come "
            "from the host unchanged. Call `enqueue` outside of `strategy.run`; or, with "
            "SparseCores or a Keras layer, pass the batch as it was before `pack`."
        )
    layout: PackedLayout = getattr(features, "layout", ())
    order = _order(spec, layout)
    # Under a strategy, Keras 3 builds models with float32 placeholders.
    with gpu_ops.where_ids_are():
        packed = PackedBatch(*map(tf.cast, features, _DTYPES))
        tensors = _tensors(*_completed(packed, layout))
    ids, of_ids = zip(*(tensors[position] for position in order), strict=True)
    nest = structure.pack(spec.structure, ids)
    has_weights = any(weight is not None for weight in of_ids)
    return nest, structure.pack(spec.structure, of_ids) if has_weights else None


@functools.cache
def class_of(layout: PackedLayout) -> type[PackedBatch]:
    """Creates the class for packed batches with this layout.

    The class name depends on the layout, because TensorFlow tells named tuples apart by class name.
    """
    digest = hashlib.sha256(repr(layout).encode()).hexdigest()[:16]
    attributes = {"__slots__": (), "__module__": __name__, "layout": layout}
    return type(f"PackedBatch_{digest}", (PackedBatch,), attributes)


def _order(spec: EngineSpec, layout: PackedLayout) -> list[int]:
    positions = {feature.name: position for position, feature in enumerate(layout)}
    names = [feature.name for feature in spec.features]
    missing, unknown = set(names) - set(positions), set(positions) - set(names)
    if missing or unknown:
        raise errors.InvalidInput(
            "The batch was packed for another engine, or was not made by `pack`. Missing features: "
            f"{sorted(missing)}; unknown features: {sorted(unknown)}. Pack the batch with the "
            "`pack` of the engine or layer that takes it."
        )
    return [positions[name] for name in names]


def _completed(packed: PackedBatch, layout: PackedLayout) -> tuple[PackedBatch, PackedLayout]:
    """Fills in the sizes of an empty batch. Raises an error if a batch was changed after `pack`.

    At the end of the data, a strategy passes empty tensors to some replicas.
    """
    expected = sum(feature.num_sizes for feature in layout)
    shape = packed.sizes.shape
    if shape.rank == 1 and shape[0] == expected:
        return packed, layout
    message = (
        "The packed batch was batched or split after it was packed: its sizes must have the shape "
        f"{(expected,)}. Batch first, then pack; under a strategy, pack each replica's batch: "
        "`strategy.distribute_datasets_from_function(lambda context: ...)`. The shape is"
    )
    if shape.rank != 1 or shape[0] not in (None, 0):
        raise errors.InvalidInput(f"{message} {shape}.")
    size = tf.size(packed.sizes)
    is_empty = tf.equal(size, 0)
    fits = tf.debugging.Assert(is_empty | tf.equal(size, expected), [message, size])
    with run_after([fits]):
        sizes = tf.pad(packed.sizes, [[0, expected - size]])
    sizes.set_shape([expected])
    # The row splits for zero rows are a single 0.
    num_ragged = sum(feature.kind == "ragged" for feature in layout)
    offsets = tf.pad(packed.offsets, [[0, tf.where(is_empty, num_ragged, 0)]])
    of_any_size = (feature._replace(shape=(None, *feature.shape[1:])) for feature in layout)
    return packed._replace(offsets=offsets, sizes=sizes), tuple(of_any_size)


class _Piece(NamedTuple):
    """A part of a packed tensor. The length of the part is `factor` * sizes[position] + `more`."""

    position: int
    factor: int = 1
    more: int = 0


def _tensors(packed: PackedBatch, layout: PackedLayout) -> list[tuple[Ids, Ids | None]]:
    starts = list(itertools.accumulate((each.num_sizes for each in layout), initial=0))
    placed = list(zip(layout, starts, strict=False))
    known = [_num_ids(feature) for feature in layout]
    if None in known:
        ids = _split(packed.ids, packed.sizes, [_Piece(start) for _, start in placed])
    else:
        ids = _parts_of(packed.ids, [size for size in known if size is not None])
    offsets = iter(_split(packed.offsets, packed.sizes, _pieces_of_offsets(placed)))
    of_weights = [_Piece(start + 1) for feature, start in placed if feature.weighted]
    weights = iter(_split(packed.weights, packed.sizes, of_weights))
    pairs: list[tuple[Ids, Ids | None]] = []
    for (feature, start), values in zip(placed, ids, strict=True):
        end = start + feature.num_sizes
        shape = functools.partial(_part, packed.sizes, end - len(feature.shape), end)
        if feature.kind == "dense":
            pairs.append((_dense(feature, shape, values), None))
            continue
        make = _sparse if feature.kind == "sparse" else _ragged
        index = next(offsets)
        weight = make(feature, shape, index, next(weights)) if feature.weighted else None
        pairs.append((make(feature, shape, index, values), weight))
    return pairs


def _pieces_of_offsets(placed: Sequence[tuple[FeatureLayout, int]]) -> list[_Piece]:
    pieces = []
    for feature, start in placed:
        if feature.kind == "ragged":
            pieces.append(_Piece(start + feature.num_sizes - 1, more=1))
        elif feature.kind == "sparse":
            pieces.append(_Piece(start, factor=len(feature.shape)))
    return pieces


def _split(values: Tensor, sizes: Tensor, pieces: Sequence[_Piece]) -> list[Tensor]:
    if not pieces:
        return []
    position, factor, more = (list(column) for column in zip(*pieces, strict=True))
    lengths = tf.gather(sizes, position) * tf.constant(factor, tf.int64)
    lengths += tf.constant(more, tf.int64)
    return _parts_of(values, lengths)


def _parts_of(values: Tensor, lengths: Tensor | list[int]) -> list[Tensor]:
    num = len(lengths) if isinstance(lengths, list) else lengths.shape[0]
    if not loading.on_gpu():
        parts: list[Tensor] = tf.split(values, lengths, num=num)
        return parts
    # On a GPU, TensorFlow can slice integers, but not split them.
    ends = tf.unstack(tf.cast(tf.cumsum(lengths), tf.int32), num)
    return [values[start:end] for start, end in itertools.pairwise([0, *ends])]


def _part(sizes: Tensor, start: int, end: int) -> Tensor:
    return sizes[start:end]


def _num_ids(feature: FeatureLayout) -> int | None:
    known = [size for size in feature.shape if size is not None]
    is_known = feature.kind == "dense" and len(known) == len(feature.shape)
    return math.prod(known) if is_known else None


def _dense(feature: FeatureLayout, shape: Callable[[], Tensor], values: Tensor) -> Tensor:
    rest = feature.shape[1:]
    if rest:
        values = tf.reshape(values, shape() if None in rest else [-1, *rest])
    values.set_shape(feature.shape)
    return values


def _sparse(
    feature: FeatureLayout, shape: Callable[[], Tensor], offsets: Tensor, values: Tensor
) -> SparseTensor:
    sparse = tf.SparseTensor(tf.reshape(offsets, [-1, len(feature.shape)]), values, shape())
    if not tf.executing_eagerly():
        sparse.set_shape(feature.shape)
    return sparse


def _ragged(
    feature: FeatureLayout, shape: Callable[[], Tensor], offsets: Tensor, values: Tensor
) -> RaggedTensor:
    (rows,) = feature.shape
    offsets.set_shape([None if rows is None else rows + 1])
    return tf.RaggedTensor.from_row_splits(values, offsets, validate=False)


def _static_shape(value: Ids) -> tuple[int | None, ...]:
    sizes = value.shape.as_list()
    if isinstance(value, tf.SparseTensor):
        return (*sizes[:-1], None)
    return tuple(sizes[:1] if isinstance(value, tf.RaggedTensor) else sizes)


def _shape(value: Ids) -> Tensor:
    if isinstance(value, tf.SparseTensor):
        return value.dense_shape
    if isinstance(value, tf.RaggedTensor):
        return tf.reshape(value.nrows(out_type=tf.int64), [1])
    return tf.shape(value, out_type=tf.int64)


def _joined(parts: Sequence[Tensor], dtype: tf.DType) -> Tensor:
    return tf.concat(parts, 0) if parts else tf.zeros([0], dtype)
