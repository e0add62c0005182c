"""From what a user enqueues to ids, cells and gains. Pure: tensors in, tensors out.

A *cell* is one position of a feature's activation, its batch and sequence dimensions flattened.
An *occurrence* is one id that contributes to one cell with some *gain*.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.plan import FeaturePlan


@dataclasses.dataclass(frozen=True)
class RawIds:
    """The ids of one feature on one core, as the enqueue ops take them.

    Attributes:
        kind: "dense", "sparse" or "ragged".
        index: sparse: [num_ids, rank] int64, coordinates; ragged: [rows + 1] int64, row splits;
            dense: None.
        ids: [num_ids] int64.
        weight: [num_ids] float32, or None for ones.
        num_samples: size of the first dimension, an int or a scalar int64 tensor.
    """

    kind: str
    index: Any
    ids: Any
    weight: Any
    num_samples: Any


@dataclasses.dataclass(frozen=True)
class Occurrences:
    """Which row goes where, and how much of it.

    Attributes:
        ids: [num_ids] int64.
        cell: [num_ids] int64; None when occurrence i belongs to cell i.
        gain: [num_ids] float32; None for ones.
        num_cells: an int or a scalar int64 tensor.
    """

    ids: Any
    cell: Any
    gain: Any
    num_cells: Any

    def combine(self, rows: Any) -> Any:
        """Returns [num_cells, dim] float32: the sum of each cell; one without ids is zero.

        Each row is multiplied by its gain, then rows are summed: the rounding order of the device.

        Args:
            rows: [num_ids, dim] float32, what is looked up for the ids.
        """
        if self.gain is not None:
            rows = self.gain[:, None] * rows
        if self.cell is not None:
            rows = tf.math.unsorted_segment_sum(rows, self.cell, self.num_cells)
        return rows

    def explicit(self) -> Occurrences:
        """Returns the same with `cell` and `gain` written out as tensors."""
        size = tf.size(self.ids, out_type=tf.int64)
        return Occurrences(
            ids=self.ids,
            cell=tf.range(size, dtype=tf.int64) if self.cell is None else self.cell,
            gain=tf.ones([size], tf.float32) if self.gain is None else self.gain,
            num_cells=tf.cast(self.num_cells, tf.int64),
        )

    def compact(self) -> Occurrences:
        """Returns the same with an empty tensor for a `cell` or `gain` of None.

        The native ops take it so.
        """
        return Occurrences(
            ids=self.ids,
            cell=tf.zeros([0], tf.int64) if self.cell is None else self.cell,
            gain=tf.zeros([0], tf.float32) if self.gain is None else self.gain,
            num_cells=tf.cast(self.num_cells, tf.int64),
        )


_Cells = tuple[Any, Any, Any, Any]
"""Of each occurrence the cell, or None for its own; how many cells there are; which occurrences are
kept, or None for all; and the weights."""

_KINDS = (tf.Tensor, tf.Variable, tf.SparseTensor, tf.RaggedTensor)


def output_shape(name: str, max_sequence_length: int, value: Any) -> tuple[int | None, ...]:
    """Returns the shape of the activation, without `dim`, that a batch leads to.

    Args:
        max_sequence_length: of the feature; 0 where it has an output shape of its own.
        value: a Tensor, SparseTensor or RaggedTensor of ids.

    Raises:
        WrongType: `value` is no tensor.
        InvalidInput: the rank of `value` is not possible.
    """
    check_kind(f"Feature {name!r}", value)
    if isinstance(value, tf.RaggedTensor):
        if value.ragged_rank != 1 or value.shape.rank != 2:
            raise errors.InvalidInput(
                f"Feature {name!r}: a ragged tensor must have rank 2, got shape {value.shape}."
            )
        shape: list[int | None] = [value.shape.as_list()[0]]
        return tuple(shape + ([max_sequence_length] if max_sequence_length else []))
    static = value.shape.as_list() if value.shape.rank is not None else None
    if isinstance(value, tf.SparseTensor):
        if static is None or len(static) < 2:
            raise errors.InvalidInput(
                f"Feature {name!r}: a sparse tensor must have a known rank of at least 2, got "
                f"shape {value.shape}."
            )
        if max_sequence_length:
            return (static[0], max_sequence_length)
        return tuple(static[:-1])
    if static is None or not static:
        raise errors.InvalidInput(
            f"Feature {name!r}: a dense tensor must have a known rank of at least 1, got shape "
            f"{value.shape}."
        )
    if len(static) > 1 and static[-1] != 1:
        raise errors.InvalidInput(
            f"Feature {name!r}: the last dimension of a dense tensor of rank {len(static)} must be "
            f"1 (one id per activation), got shape {tuple(static)}. For several ids per "
            "activation pass a sparse or ragged tensor."
        )
    return tuple(static[:-1]) if len(static) > 1 else tuple(static)


def read_ids(feature: FeaturePlan, value: Any, weight: Any) -> RawIds:
    """Returns one core's ids and weights in the form of the enqueue ops.

    Args:
        value: a Tensor, SparseTensor or RaggedTensor of int32 or int64.
        weight: None, or the same kind of tensor with a number per id.

    Raises:
        WrongType: `value` is of another type, or its ids are no integers, or the weights are of
            another kind than the ids.
        InvalidInput: weights for dense ids, or not one per id.
    """
    check_kind(feature.where, value)
    if value.dtype not in (tf.int32, tf.int64):
        raise errors.WrongType(
            f"{feature.where}: ids must be int32 or int64, got {value.dtype.name}. Look strings up "
            "in a vocabulary before the batch is enqueued."
        )
    kind, index, num_samples = _layout(value)
    if weight is not None:
        _check_weight(feature, value, weight)
    flat_weight = None if weight is None else tf.cast(_flat(weight), tf.float32)
    ids = tf.cast(_flat(value), tf.int64)
    if flat_weight is not None and not flat_weight.shape.is_compatible_with(ids.shape):
        raise errors.InvalidInput(
            f"{feature.where}: there must be one weight per id, got {flat_weight.shape[0]} weights "
            f"for {ids.shape[0]} ids."
        )
    return RawIds(kind, index, ids, flat_weight, num_samples)


def as_tensor(value: Any) -> Any:
    """Returns a numpy array as a tensor, and anything else, to be judged by its feature, as is."""
    return (
        tf.convert_to_tensor(value)
        if hasattr(value, "__array__") and not isinstance(value, (tf.Tensor, tf.Variable))
        else value
    )


def check_kind(where: str, value: Any) -> None:
    """Refuses ids that are no tensor.

    Args:
        where: how the message names the feature.

    Raises:
        WrongType: they are not.
    """
    if not isinstance(value, _KINDS):
        raise errors.WrongType(
            f"{where}: ids must be a Tensor, SparseTensor or RaggedTensor, got "
            f"{type(value).__name__}."
        )


def occurrences(feature: FeaturePlan, raw: RawIds, out_of_range: str = "error") -> Occurrences:
    """Returns which row goes to which cell of the activation, with which gain.

    The gain of an occurrence is its weight times the scale of the combiner: "sum" 1, "mean"
    1 / sum of the cell's weights, "sqrtn" 1 / sqrt(sum of its squared weights), and 0 where the
    denominator is 0 (as in the scale functions of TensorFlow's SparseCore kernels). Gains come
    first and are float32, then rows are summed: the rounding order of the device.

    Args:
        out_of_range: "error": an id outside the table fails the step with a message that names
            it; "drop": it is treated as absent.

    Raises:
        InvalidInput: the batch does not fit the feature's output shape.
    """
    check_layout(feature, raw)
    cell, num_cells, keep, weight = _CELLS[raw.kind](feature, raw)
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
    return Occurrences(ids, cell, gain, num_cells)


def check_layout(feature: FeaturePlan, raw: RawIds) -> int | None:
    """Checks a batch as far as its shape is known before it runs.

    Returns:
        How many activations a row of the input has, which is not 1 for ragged sequences; None where
        only the run can tell.

    Raises:
        InvalidInput: the batch does not fit the feature's output shape.
    """
    return _LAYOUTS[raw.kind](feature, raw)


def checks_samples(feature: FeaturePlan, raw: RawIds) -> bool:
    """Returns whether only the run can tell that a batch has the size that is planned."""
    return feature.cells is not None and tf.get_static_value(raw.num_samples) is None


def _layout(value: Any) -> tuple[str, Any, Any]:
    if isinstance(value, tf.SparseTensor):
        return "sparse", value.indices, value.dense_shape[0]
    if isinstance(value, tf.RaggedTensor):
        return "ragged", tf.cast(value.row_splits, tf.int64), value.nrows(out_type=tf.int64)
    return "dense", None, tf.shape(value, out_type=tf.int64)[0]


def _flat(value: Any) -> Any:
    if isinstance(value, (tf.SparseTensor, tf.RaggedTensor)):
        return value.values
    return tf.reshape(value, [-1])


def _check_weight(feature: FeaturePlan, value: Any, weight: Any) -> None:
    kinds = (tf.SparseTensor, tf.RaggedTensor)
    if not isinstance(value, kinds):
        raise errors.InvalidInput(
            f"{feature.where}: weights are given, but the ids are dense. Pass ids and weights as "
            "sparse or ragged tensors, or drop the weights."
        )
    if type(weight) is not type(value):
        raise errors.WrongType(
            f"{feature.where}: weights must be of the same kind as the ids, a "
            f"{type(value).__name__}, got {type(weight).__name__}."
        )
    if not (weight.dtype.is_floating or weight.dtype.is_integer):
        raise errors.WrongType(
            f"{feature.where}: weights must be numbers, got {weight.dtype.name}."
        )


def _size_checks(feature: FeaturePlan, raw: RawIds) -> list[Any]:
    """Returns checks of what only the run can tell: one weight per id, the size that is planned."""
    checks = []
    if raw.weight is not None and not raw.weight.shape.is_fully_defined():
        one_each = tf.equal(tf.size(raw.weight), tf.size(raw.ids))
        message = f"{feature.where}: there must be one weight per id, but they are"
        checks.append(tf.debugging.Assert(one_each, [message, tf.size(raw.weight)]))
    if not checks_samples(feature, raw):
        return checks
    if raw.kind == "ragged" and feature.takes_any_rows:
        rows = raw.num_samples
        fits = (rows > 0) & tf.equal(tf.constant(feature.cells, tf.int64) % tf.maximum(rows, 1), 0)
        return [*checks, tf.debugging.Assert(fits, [*_ragged_misfit(feature, rows)])]
    planned, found = feature.output_shape[0], raw.num_samples
    if raw.kind == "dense":
        planned, found = feature.cells, tf.size(raw.ids, out_type=tf.int64)
    fits = tf.equal(found, tf.constant(planned, tf.int64))
    message = f"{feature.where}: the engine is built for {planned} samples, but this batch has"
    return [*checks, tf.debugging.Assert(fits, [message, found])]


def _num_cells(feature: FeaturePlan, raw: RawIds) -> Any:
    return feature.cells or raw.num_samples * feature.cells_per_sample


def _dense_layout(feature: FeaturePlan, raw: RawIds) -> int:
    found, wanted = raw.ids.shape.as_list()[0], feature.cells
    if found is not None and wanted is not None and found != wanted:
        raise errors.InvalidInput(
            f"{feature.where}: {found} dense ids do not fill an activation of "
            f"{feature.output_shape}, which takes {wanted}."
        )
    return 1


def _sparse_layout(feature: FeaturePlan, raw: RawIds) -> int:
    sizes = feature.output_shape
    rank = raw.index.shape.as_list()[-1]
    # A sequence has one id per (sample, position), or several: then the third column counts them.
    coordinates = len(sizes) if feature.max_sequence_length else rank - 1
    if coordinates != len(sizes) or rank < len(sizes):
        raise errors.InvalidInput(
            f"{feature.where}: a sparse tensor of rank {rank} does not fit an activation of "
            f"{sizes}."
        )
    return 1


def _ragged_layout(feature: FeaturePlan, raw: RawIds) -> int | None:
    # With as many rows as activations a row is combined into one; with fewer, it is a sequence.
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


_LAYOUTS: dict[str, Callable[[FeaturePlan, RawIds], int | None]] = {
    "dense": _dense_layout,
    "sparse": _sparse_layout,
    "ragged": _ragged_layout,
}


def _dense_cells(feature: FeaturePlan, raw: RawIds) -> _Cells:
    size = tf.size(raw.ids, out_type=tf.int64) if feature.cells is None else feature.cells
    return None, size, None, raw.weight


def _sparse_cells(feature: FeaturePlan, raw: RawIds) -> _Cells:
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
                    message=f"{feature.where}: a coordinate lies outside {sizes}, axis {axis}.",
                )
            )
    cell = raw.index[:, 0]
    for axis, size in enumerate(sizes[1:], start=1):
        cell = cell * size + raw.index[:, axis]
    return _after(checks, cell), _num_cells(feature, raw), keep, raw.weight


def _ragged_cells(feature: FeaturePlan, raw: RawIds) -> _Cells:
    row = tf.searchsorted(raw.index[1:], tf.range(tf.size(raw.ids, out_type=tf.int64)), "right")
    row = tf.cast(row, tf.int64)
    per_row: Any = check_layout(feature, raw)
    num_cells = _num_cells(feature, raw)
    if per_row == 1:
        return row, num_cells, None, raw.weight
    known = per_row is not None
    if not known:
        per_row = tf.constant(feature.cells, tf.int64) // tf.maximum(raw.num_samples, 1)
    position = tf.range(tf.size(raw.ids, out_type=tf.int64)) - tf.gather(raw.index, row)
    cell, keep = row * per_row + position, position < per_row
    # A ragged sequence has one id per position: nothing to weigh or combine.
    if known:
        return cell, num_cells, keep, None
    combined = tf.equal(per_row, 1)
    weight = raw.weight
    if weight is not None:
        weight = tf.where(combined, weight, tf.ones_like(weight))
    return tf.where(combined, row, cell), num_cells, combined | keep, weight


def _ragged_misfit(feature: FeaturePlan, rows: Any) -> tuple[str, Any, str]:
    return (
        f"{feature.where}: ",
        rows,
        f" ragged rows fit neither {feature.cells} activations nor a whole number of positions "
        f"each ({feature.output_shape}).",
    )


_CELLS: dict[str, Callable[[FeaturePlan, RawIds], _Cells]] = {
    "dense": _dense_cells,
    "sparse": _sparse_cells,
    "ragged": _ragged_cells,
}


def _gain(combiner: str, weight: Any, cell: Any, num_cells: Any) -> Any:
    if combiner == "sum":
        return weight
    ones = tf.ones_like(cell, tf.float32) if weight is None else weight
    if combiner == "mean":
        denominator = tf.math.unsorted_segment_sum(ones, cell, num_cells)
    else:
        denominator = tf.sqrt(tf.math.unsorted_segment_sum(tf.square(ones), cell, num_cells))
    return ones * tf.gather(tf.math.divide_no_nan(1.0, denominator), cell)


def _assert_in_range(feature: FeaturePlan, ids: Any) -> Any:
    rows = feature.table.vocabulary_size
    # Two reductions find out; which id it is only matters once there is one.
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


def _after(checks: list[Any], value: Any) -> Any:
    done = [check for check in checks if check is not None]
    if not done:
        return value
    with tf.control_dependencies(done):
        return tf.identity(value)
