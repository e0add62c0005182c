"""Converts the tensors that a user enqueues into the occurrences of a batch.

A *cell* is one position of a feature's activation, with the batch and sequence dimensions
flattened. An *occurrence* is one id that contributes to one cell. The id's row is multiplied by the
occurrence's *gain*.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.graph_mode import run_after, run_if
from tf2_engine.native import loading
from tf2_engine.plan import FeaturePlan
from tf2_engine.row_sums import add_rows
from tf2_engine.specs import FeatureSpec
from tf2_engine.types import Ids, Object, Op, Tensor


class FeatureBatch(NamedTuple):
    """The ids of one feature on one core, and their weights, if any."""

    ids: Ids
    weights: Ids | None


@dataclasses.dataclass(frozen=True)
class Batch:
    """The batch of one `enqueue` call.

    `parts` maps each replica's index to that replica's batch, which is for one or several cores. If
    `of_replicas` is False, the only key is the index of the core whose device the user passed.
    """

    parts: Mapping[int, Sequence[FeatureBatch]]
    of_replicas: bool = True


@dataclasses.dataclass(frozen=True)
class FlatBatch:
    """A `FeatureBatch` in the form that the enqueue ops take.

    Attributes:
        kind: "dense", "sparse" or "ragged".
        index: coordinates [num_ids, rank] int64 if sparse, row splits [rows + 1] int64 if ragged,
            None if dense.
        ids: [num_ids] int64.
        weight: [num_ids] float32, or None if every weight is 1.
        num_samples: the size of the enqueued tensor's first dimension.
    """

    kind: str
    index: Tensor | None
    ids: Tensor
    weight: Tensor | None
    num_samples: Tensor | int


@dataclasses.dataclass(frozen=True)
class Occurrences:
    """The occurrences of one feature on one core, as tensors of shape [num_ids].

    Ids and cells are int64. If `cell` is None, occurrence i belongs to cell i. Gains are float32,
    or None if every gain is 1. `num_cells` is an int or a scalar int64 tensor.

    If ids are sorted by cell and all ids of a cell have the same gain, `splits` can replace `cell`.
    It holds row splits for native ops, [1, rows + 1] int64: cell i has the ids from splits[0, i] to
    splits[0, i + 1]. Gains are then [rows] float32, one per cell. Cells after the first `rows` have
    no ids.

    If `raw` is set, the occurrences are not computed yet: the op that looks up `raw` does that.
    """

    feature: FeaturePlan
    ids: Tensor
    cell: Tensor | None
    gain: Tensor | None
    num_cells: Tensor | int
    splits: Tensor | None = None
    raw: FlatBatch | None = None

    def combine(self, rows: Tensor) -> Tensor:
        """Multiplies rows, [num_ids, dim] float32, by the gains, and sums the rows of each cell."""
        if self.gain is not None:
            rows = self.gain[:, None] * rows
        if self.cell is not None:
            rows = tf.math.unsorted_segment_sum(rows, self.cell, self.num_cells)
        return rows

    def explicit(self) -> KernelColumns:
        if self.splits is not None:
            return self._by_cells(self.splits).explicit()
        size = tf.size(self.ids, out_type=tf.int64)
        return self._as_tensors(
            lambda: tf.range(size, dtype=tf.int64), lambda: tf.ones([size], tf.float32)
        )

    def compact(self) -> KernelColumns:
        by_splits = self if self.splits is None else dataclasses.replace(self, cell=self.splits)
        return by_splits._as_tensors(
            lambda: tf.zeros([0], tf.int64), lambda: tf.zeros([0], tf.float32)
        )

    def _by_cells(self, splits: Tensor) -> Occurrences:
        lengths = splits[0, 1:] - splits[0, :-1]
        cell = tf.repeat(tf.range(tf.size(lengths, out_type=tf.int64)), lengths)
        cell = tf.ensure_shape(cell, [None])  # In graphs, tf.repeat loses the rank.
        gain = None if self.gain is None else tf.gather(self.gain, cell)
        return Occurrences(self.feature, self.ids, cell, gain, self.num_cells)

    def _as_tensors(self, cell: Callable[[], Tensor], gain: Callable[[], Tensor]) -> KernelColumns:
        return (
            self.ids,
            cell() if self.cell is None else self.cell,
            gain() if self.gain is None else self.gain,
            tf.cast(self.num_cells, tf.int64),
        )


KernelColumns: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]


class _Cells(NamedTuple):
    cell: Tensor | None
    num_cells: Tensor | int
    keep: Tensor | None
    weight: Tensor | None


_KINDS = (tf.Tensor, tf.Variable, tf.SparseTensor, tf.RaggedTensor)


def output_shape(name: str, max_sequence_length: int, value: Ids) -> tuple[int | None, ...]:
    check_kind(f"Feature {name!r}", value)
    rank, is_dense = value.shape.rank, not isinstance(value, (tf.SparseTensor, tf.RaggedTensor))
    if isinstance(value, tf.RaggedTensor):
        fits, rule = value.ragged_rank == 1 and rank == 2, "a ragged tensor must have rank 2"
    elif isinstance(value, tf.SparseTensor):
        fits, rule = (rank or 0) >= 2, "a sparse tensor must have a known rank of at least 2"
    else:
        fits, rule = (rank or 0) >= 1, "a dense tensor must have a known rank of at least 1"
    if not fits:
        raise errors.InvalidInput(f"Feature {name!r}: {rule}, got shape {value.shape}.")
    first, *rest = value.shape.as_list()
    if is_dense and rest and rest[-1] != 1:
        raise errors.InvalidInput(
            f"Feature {name!r}: the last dimension of a dense tensor of rank {rank} must be 1 (one "
            f"id per activation), got shape {(first, *rest)}. For several ids per activation, "
            "pass a sparse or ragged tensor."
        )
    if max_sequence_length and not is_dense:
        return (first, max_sequence_length)
    return (first, *rest[:-1])


def read_ids(feature: FeaturePlan, value: Ids, weight: Ids | None) -> FlatBatch:
    check_ids(feature, value, weight)
    return read_unchecked(value, weight)


def read_unchecked(value: Ids, weight: Ids | None) -> FlatBatch:
    kind, index, num_samples = _layout(value)
    flat_weight = None if weight is None else tf.cast(_flat(weight), tf.float32)
    return FlatBatch(kind, index, tf.cast(_flat(value), tf.int64), flat_weight, num_samples)


def check_ids(feature: FeaturePlan | FeatureSpec, value: Ids, weight: Ids | None) -> None:
    if value.dtype not in (tf.int32, tf.int64):
        raise errors.WrongType(
            f"{feature.where}: ids must be int32 or int64, got {value.dtype.name}. Look strings up "
            "in a vocabulary before the batch is enqueued."
        )
    if weight is None:
        return
    if not isinstance(value, (tf.SparseTensor, tf.RaggedTensor)):
        raise errors.InvalidInput(
            f"{feature.where}: Weight specified for dense input: weights are given, but the ids "
            "are dense. Pass ids and weights as sparse or ragged tensors, or drop the weights."
        )
    if type(weight) is not type(value):
        raise errors.WrongKind(
            f"{feature.where}: weights are of type {type(weight).__name__}, which does not match "
            f"type input which is {type(value).__name__}. Pass weights of the same kind as the ids."
        )
    if not (weight.dtype.is_floating or weight.dtype.is_integer):
        raise errors.WrongType(
            f"{feature.where}: weights must be numbers, got {weight.dtype.name}."
        )
    ids, weights = _flat(value).shape, _flat(weight).shape
    if not weights.is_compatible_with(ids):
        raise errors.InvalidInput(
            f"{feature.where}: there must be one weight per id, got {weights.as_list()[0]} weights "
            f"for {ids.as_list()[0]} ids."
        )


def as_tensor(value: Object) -> Object:
    return (
        tf.convert_to_tensor(value)
        if hasattr(value, "__array__") and not isinstance(value, (tf.Tensor, tf.Variable))
        else value
    )


def check_kind(where: str, value: Object) -> None:
    if not isinstance(value, _KINDS):
        raise errors.WrongType(
            f"{where}: ids must be a Tensor, SparseTensor or RaggedTensor, got "
            f"{type(value).__name__}."
        )


def num_samples(ids: Ids) -> int | None:
    return ids.shape.as_list()[0] if ids.shape.rank else None


def pad(ids: Ids | None, size: int, missing: Tensor) -> Ids | None:
    """Adds `missing` samples (a scalar int64): zeros, "" or empty rows. Scalars stay unchanged."""
    if ids is None or not ids.shape.rank or num_samples(ids) == size:
        return ids
    if isinstance(ids, tf.SparseTensor):
        shape = tf.concat([tf.constant([size], tf.int64), ids.dense_shape[1:]], 0)
        # The new shape does not depend on `missing`, but the check of `missing` has to run.
        with tf.control_dependencies([missing]):
            return tf.SparseTensor(tf.identity(ids.indices), ids.values, shape)
    if isinstance(ids, tf.RaggedTensor):
        splits = tf.concat([ids.row_splits, tf.fill([missing], ids.row_splits[-1])], 0)
        return tf.RaggedTensor.from_row_splits(ids.values, splits, validate=False)
    around = tf.concat([tf.reshape(missing, [1]), tf.zeros([ids.shape.rank - 1], tf.int64)], 0)
    more = tf.pad(ids, tf.stack([tf.zeros_like(around), around], 1))
    return tf.ensure_shape(more, [size, *ids.shape.as_list()[1:]])


def occurrences(feature: FeaturePlan, raw: FlatBatch, out_of_range: str = "error") -> Occurrences:
    """Checks a batch, and computes the row, cell and gain of each occurrence.

    The gain is the weight times the combiner's scale: 1 for "sum", 1 / (sum of the cell's weights)
    for "mean", 1 / sqrt(sum of squared weights) for "sqrtn", and 0 if the denominator is 0. As on a
    TPU, gains are rounded to float32 before rows are summed.

    Ids outside the table make the step fail ("error"), are ignored ("drop"), or are left to
    `after_range_checks` ("unchecked").
    """
    return occurrences_in(feature, raw, check_layout(feature, raw), out_of_range)


def occurrences_in(
    feature: FeaturePlan, raw: FlatBatch, per_row: int | None, out_of_range: str
) -> Occurrences:
    cell, num_cells, keep, weight = _CELLS[raw.kind](feature, raw, per_row)
    ids = _after(_size_checks(feature, raw), raw.ids)
    if out_of_range == "drop":
        inside = (ids >= 0) & (ids < feature.table.vocabulary_size)
        cell = tf.range(tf.size(ids, out_type=tf.int64)) if cell is None else cell
        keep = inside if keep is None else keep & inside
    if keep is not None:
        ids, cell = tf.boolean_mask(ids, keep), tf.boolean_mask(cell, keep)
        weight = None if weight is None else tf.boolean_mask(weight, keep)
    if out_of_range == "error":
        ids = _after([_assert_in_range(feature, ids)], ids)
    gain = weight if cell is None else _gain(feature.table.combiner, weight, cell, num_cells)
    return Occurrences(feature, ids, cell, gain, num_cells)


def after_range_checks(of_features: Sequence[Occurrences]) -> list[Occurrences]:
    """Makes ids wait for one check of all features: the host waits for the GPU in every check."""
    inside = tf.stack([_all_in_range(each.feature, each.ids) for each in of_features])
    check = run_if(
        tf.logical_not(tf.reduce_all(inside)),
        lambda: tf.group(*[_assert_in_range(each.feature, each.ids) for each in of_features]),
    )
    with run_after([check]):
        return [dataclasses.replace(each, ids=tf.identity(each.ids)) for each in of_features]


def by_cell(feature: FeaturePlan, raw: FlatBatch) -> FlatBatch:
    """Converts ids to sparse ids with one row per activation. Long sequences are cut off."""
    cell, num_cells, keep, weight = _CELLS[raw.kind](feature, raw, check_layout(feature, raw))
    assert cell is not None
    ids = _after(_size_checks(feature, raw), raw.ids)
    if keep is not None:
        ids, cell = tf.boolean_mask(ids, keep), tf.boolean_mask(cell, keep)
        weight = None if weight is None else tf.boolean_mask(weight, keep)
    index = tf.stack([cell, tf.zeros_like(cell)], 1)
    return FlatBatch("sparse", index, ids, weight, num_cells)


def check_layout(feature: FeaturePlan, raw: FlatBatch) -> int | None:
    """Checks the static shape of a batch, and returns the number of activations per input row.

    The number is 1 except for ragged sequences, and None if it is only known at run time.
    """
    return _LAYOUTS[raw.kind](feature, raw)


def checks_samples(feature: FeaturePlan, raw: FlatBatch) -> bool:
    return feature.cells is not None and tf.get_static_value(raw.num_samples) is None


def _layout(value: Ids) -> tuple[str, Tensor | None, Tensor]:
    if isinstance(value, tf.SparseTensor):
        return "sparse", value.indices, value.dense_shape[0]
    if isinstance(value, tf.RaggedTensor):
        return "ragged", tf.cast(value.row_splits, tf.int64), value.nrows(out_type=tf.int64)
    return "dense", None, tf.shape(value, out_type=tf.int64)[0]


def _flat(value: Ids) -> Tensor:
    if isinstance(value, (tf.SparseTensor, tf.RaggedTensor)):
        return value.values
    return tf.reshape(value, [-1])


def _size_checks(feature: FeaturePlan, raw: FlatBatch) -> list[Op]:
    checks = []
    if raw.weight is not None and not raw.weight.shape.is_fully_defined():
        one_each = tf.equal(tf.size(raw.weight), tf.size(raw.ids))
        message = f"{feature.where}: there must be one weight per id; the number of weights is"
        checks.append(tf.debugging.Assert(one_each, [message, tf.size(raw.weight)]))
    if not checks_samples(feature, raw):
        return checks
    if raw.kind == "ragged" and feature.takes_any_rows:
        rows = raw.num_samples
        fits = (rows > 0) & tf.equal(tf.constant(feature.cells, tf.int64) % tf.maximum(rows, 1), 0)
        return [*checks, tf.debugging.Assert(fits, [*_ragged_misfit(feature, rows)])]
    planned, actual = feature.output_shape[0], raw.num_samples
    if raw.kind == "dense":
        planned, actual = feature.cells, tf.size(raw.ids, out_type=tf.int64)
    fits = tf.equal(actual, tf.constant(planned, tf.int64))
    message = f"{feature.where}: the engine is built for {planned} samples, but this batch has"
    return [*checks, tf.debugging.Assert(fits, [message, actual])]


def _num_cells(feature: FeaturePlan, raw: FlatBatch) -> Tensor | int:
    return feature.cells or raw.num_samples * feature.cells_per_sample


def _dense_layout(feature: FeaturePlan, raw: FlatBatch) -> int:
    actual, expected = raw.ids.shape.as_list()[0], feature.cells
    if None not in (actual, expected) and actual != expected:
        raise errors.InvalidInput(
            f"{feature.where}: {actual} dense ids do not fill an activation of shape "
            f"{feature.output_shape}, which takes {expected} ids."
        )
    return 1


def _sparse_layout(feature: FeaturePlan, raw: FlatBatch) -> int:
    assert raw.index is not None
    rank, axes = raw.index.shape.as_list()[-1], len(feature.output_shape)
    # A sequence may have several ids per (sample, position), which a third index column numbers.
    if rank < axes or (not feature.max_sequence_length and rank - 1 != axes):
        raise wrong_rank(feature, rank)
    return 1


def wrong_rank(feature: FeaturePlan, rank: int) -> errors.InvalidInput:
    return errors.InvalidInput(
        f"{feature.where}: a sparse tensor of rank {rank} does not fit an activation of "
        f"shape {feature.output_shape}."
    )


def _ragged_layout(feature: FeaturePlan, raw: FlatBatch) -> int | None:
    # If there are as many rows as activations, each row is combined. Otherwise each row is a
    # sequence.
    assert raw.index is not None
    splits = raw.index.shape.as_list()[0]
    rows = None if splits is None else splits - 1
    if feature.cells is None or (rows is None and not feature.takes_any_rows):
        return feature.cells_per_sample
    if rows is None:
        return None
    fits = rows > 0 and feature.cells % rows == 0
    if not fits or (not feature.takes_any_rows and rows != feature.output_shape[0]):
        raise errors.InvalidInput("".join(map(str, _ragged_misfit(feature, rows))))
    return feature.cells // rows


_LAYOUTS: dict[str, Callable[[FeaturePlan, FlatBatch], int | None]] = {
    "dense": _dense_layout,
    "sparse": _sparse_layout,
    "ragged": _ragged_layout,
}


def _dense_cells(feature: FeaturePlan, raw: FlatBatch, per_row: int | None) -> _Cells:
    size = tf.size(raw.ids, out_type=tf.int64) if feature.cells is None else feature.cells
    return _Cells(None, size, None, raw.weight)


def _sparse_cells(feature: FeaturePlan, raw: FlatBatch, per_row: int | None) -> _Cells:
    assert raw.index is not None
    sizes = feature.output_shape
    checks, keep = [], None
    for axis, size in enumerate(sizes):
        if axis == 1 and feature.max_sequence_length:
            keep = raw.index[:, axis] < size
        elif size is not None:
            checks.append(
                tf.debugging.assert_less(
                    raw.index[:, axis],
                    tf.cast(size, tf.int64),
                    message=f"{feature.where}: a coordinate on axis {axis} is outside {sizes}.",
                )
            )
    cell = raw.index[:, 0]
    for axis, size in enumerate(sizes[1:], start=1):
        cell = cell * size + raw.index[:, axis]
    return _Cells(_after(checks, cell), _num_cells(feature, raw), keep, raw.weight)


def _ragged_cells(feature: FeaturePlan, raw: FlatBatch, per_row: int | None) -> _Cells:
    assert raw.index is not None
    numbers = tf.range(tf.size(raw.ids, out_type=tf.int64))
    # These tensors are int64, because TensorFlow keeps int32 tensors on the host, even for ops
    # on a GPU.
    row = tf.searchsorted(raw.index[1:], numbers, "right", out_type=tf.int64)
    num_cells = _num_cells(feature, raw)
    if per_row == 1:
        return _Cells(row, num_cells, None, raw.weight)
    positions: Tensor | int | None = per_row
    if positions is None:
        positions = tf.constant(feature.cells, tf.int64) // tf.maximum(raw.num_samples, 1)
    position = tf.range(tf.size(raw.ids, out_type=tf.int64)) - tf.gather(raw.index, row)
    cell, keep = row * positions + position, position < positions
    # A ragged sequence has one id per position, so there are no weights or combiners.
    if per_row is not None:
        return _Cells(cell, num_cells, keep, None)
    combined = tf.equal(positions, 1)
    weight = raw.weight
    if weight is not None:
        weight = tf.where(combined, weight, tf.ones_like(weight))
    return _Cells(tf.where(combined, row, cell), num_cells, combined | keep, weight)


def _ragged_misfit(feature: FeaturePlan, rows: Tensor | int) -> tuple[str, Tensor | int, str]:
    return (
        f"{feature.where}: ",
        rows,
        f" ragged rows do not fit the {feature.cells} activations of the output shape "
        f"{feature.output_shape}. Each row must be for one activation, or every row for the same "
        "number of activations.",
    )


_CELLS: dict[str, Callable[[FeaturePlan, FlatBatch, int | None], _Cells]] = {
    "dense": _dense_cells,
    "sparse": _sparse_cells,
    "ragged": _ragged_cells,
}


def _gain(
    combiner: str, weight: Tensor | None, cell: Tensor, num_cells: Tensor | int
) -> Tensor | None:
    if combiner == "sum":
        return weight
    ones = tf.ones_like(cell, tf.float32) if weight is None else weight
    if combiner == "mean":
        denominator = _sums(ones, cell, num_cells)
    else:
        denominator = tf.sqrt(_sums(tf.square(ones), cell, num_cells))
    return ones * tf.gather(tf.math.divide_no_nan(1.0, denominator), cell)


def _sums(values: Tensor, cell: Tensor, num_cells: Tensor | int) -> Tensor:
    if loading.on_gpu():
        # On a GPU, unsorted_segment_sum adds in a random order.
        return add_rows(values[:, None], None, cell, num_cells)[:, 0]
    total: Tensor = tf.math.unsorted_segment_sum(values, cell, num_cells)
    return total


def _all_in_range(feature: FeaturePlan, ids: Tensor) -> Tensor:
    rows = feature.table.vocabulary_size
    inside = tf.raw_ops.ClipByValue(
        t=ids,
        clip_value_min=tf.constant(0, tf.int64),
        clip_value_max=tf.constant(rows - 1, tf.int64),
    )
    return tf.reduce_all(tf.equal(inside, ids))


def _assert_in_range(feature: FeaturePlan, ids: Tensor) -> Op:
    rows = feature.table.vocabulary_size
    # Two reductions are enough, because only the smallest and the largest id can be reported.
    low, high = tf.reduce_min(ids), tf.reduce_max(ids)
    some = tf.size(ids) > 0
    return tf.debugging.Assert(
        ~some | ((low >= 0) & (high < rows)),
        [
            f"{feature.where}: an id lies outside the table, which has rows 0 to {rows - 1}. Fix "
            "the ids, or set out_of_range_ids='drop' to treat such ids as absent. The id:",
            tf.where(low < 0, low, high),
        ],
    )


def _after(checks: list[Op], value: Tensor) -> Tensor:
    # In eager mode, a check has already passed, so there is no op to wait for.
    ops = [check for check in checks if check is not None]
    if not ops:
        return value
    with tf.control_dependencies(ops):
        return tf.identity(value)
