"""Functions for Savers of graphs: the keys of variables, and storage in several slices."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.python.checkpoint import checkpoint as _checkpoint
from tensorflow.python.checkpoint import graph_view as _graph_view
from tensorflow.python.data.ops import iterator_ops as _iterator_ops
from tensorflow.python.ops import resource_variable_ops as _resource_variable_ops
from tensorflow.python.training import saver as _saver
from tensorflow.python.training.saving import saveable_object as _saveable_object

from tf2_engine import errors
from tf2_engine.types import Object, Op, Tensor, Variable


def save_as(variable: Variable, name: str) -> None:
    shape = variable.shape.as_list()
    whole = tf.Variable.SaveSliceInfo(name, shape, [0] * len(shape), shape)
    variable._set_save_slice_info(whole)


def checkpoint_key(variable: Variable) -> str:
    """Returns a variable's key in checkpoints. All parts of a tensor have the tensor's key."""
    part = variable._get_save_slice_info()
    return str(part.full_name if part else variable.op.name)


def checkpoint_shape(variable: Variable) -> tuple[int, ...] | None:
    part = variable._get_save_slice_info()
    if part:
        return tuple(part.full_shape)
    return tuple(variable.shape) if variable.shape.is_fully_defined() else None


def part_of(variable: Variable) -> tuple[int, int] | None:
    """Finds the axis along which a tensor was split, and the variable's first index on it."""
    part = variable._get_save_slice_info()
    sizes = () if part is None else enumerate(zip(part.var_shape, part.full_shape, strict=True))
    split = (axis for axis, (size, whole) in sizes if size != whole)
    return next(((axis, int(part.var_offset[axis])) for axis in split), None)


class RowRanges(tf.Variable.SaveSliceInfo):
    """The rows of a stored tensor that a variable contains; a range is (first row, row count)."""

    def __init__(
        self, full_name: str, full_shape: Sequence[int], ranges: Sequence[tuple[int, int]]
    ) -> None:
        rows = [sum(count for _, count in ranges), *full_shape[1:]]
        super().__init__(full_name, list(full_shape), [0] * len(rows), rows)
        self.ranges = tuple(ranges)

    @property
    def spec(self) -> str:
        """Raises an error, because TensorFlow's Savers store a variable as one block of rows."""
        raise errors.InvalidInput(
            f'{self.full_name!r}: parameter servers hold its rows with layout="octaves". Only the '
            "estimator's Saver can save and restore such rows. Leave out the program's own Saver "
            'and `warm_start_from`, or use the layout "div".'
        )


def set_row_ranges(variable: Variable, ranges: RowRanges) -> None:
    variable._set_save_slice_info(ranges)


def row_ranges(variable: Object) -> tuple[tuple[int, int], ...] | None:
    """Lists the blocks of a stored tensor's rows that a variable contains; see `RowRanges`.

    Returns None for a variable that is not a numeric resource variable of known shape, or that is
    split along other axes.
    """
    if not isinstance(variable, _resource_variable_ops.BaseResourceVariable):
        return None
    has_numbers = variable.dtype.is_floating or variable.dtype.is_integer
    if not has_numbers or not variable.shape.rank or not variable.shape.is_fully_defined():
        return None
    part = variable._get_save_slice_info()
    if part is None:
        return ((0, int(variable.shape[0])),)
    if isinstance(part, RowRanges):
        return part.ranges
    has_rows = list(part.var_shape[1:]) == list(part.full_shape[1:])
    return ((int(part.var_offset[0]), int(part.var_shape[0])),) if has_rows else None


class VariableInSlices(_saveable_object.SaveableObject):
    """A resource variable that a Saver stores as several slices of rows.

    `SaverBuilderOfSlices` restores one slice after another, so only one is in memory at a time.
    `slices` has pairs (first row in the stored tensor, number of rows) in the order of the
    variable's rows.
    Storing a slice needs no copy if its size and its offset are multiples of 64 bytes.
    """

    def __init__(self, variable: Variable, slices: Sequence[tuple[int, int]]) -> None:
        self._variable = variable
        key, shape = checkpoint_key(variable), checkpoint_shape(variable)
        assert shape is not None  # Variables with ranges of rows have a known shape.
        offsets, rows = [0] * (len(shape) - 1), list(shape[1:])
        self._edges = list(itertools.accumulate((count for _, count in slices), initial=0))
        specs = [
            _saveable_object.SaveSpec(
                functools.partial(self._read, number),
                tf.Variable.SaveSliceInfo(key, list(shape), [first, *offsets], [count, *rows]).spec,
                key,
                dtype=variable.dtype.base_dtype,
                device=variable.device,
            )
            for number, (first, count) in enumerate(slices)
        ]
        super().__init__(variable, specs, variable.op.name)

    @functools.cached_property
    def _value(self) -> Tensor:
        # Unless this op runs first, reading copies a variable whose rows were looked up. (The op of
        # `read_value_no_copy` is not part of a step in a graph.)
        handle, dtype = self._variable.handle, self._variable.dtype.base_dtype
        with tf.control_dependencies([tf.raw_ops.DisableCopyOnRead(resource=handle)]):
            return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)

    def _read(self, number: int) -> Tensor:
        begin, end = self._edges[number : number + 2]
        rest = self._variable.shape.rank - 1
        with tf.device(self._variable.device):
            return tf.slice(self._value, [begin, *[0] * rest], [end - begin, *[-1] * rest])

    def restore(self, restored_tensors: Sequence[Object], restored_shapes: object) -> Op:
        order: _OneByOne = restored_tensors[0]
        handle, dtype = self._variable.handle, self._variable.dtype.base_dtype
        with tf.device(self._variable.device):
            with tf.control_dependencies(order.before):
                # Frees the old value before the new value is read.
                empty = tf.raw_ops.Empty(shape=self._variable.shape.as_list(), dtype=dtype)
                order.before = [tf.raw_ops.AssignVariableOp(resource=handle, value=empty)]
            edges = tf.constant(self._edges, tf.int64)
            specs = tf.constant([spec.slice_spec for spec in self.specs])

            def restore_slice(number: Tensor) -> Tensor:
                (rows,) = tf.raw_ops.RestoreV2(
                    prefix=order.file,
                    tensor_names=[self.specs[0].name],
                    shape_and_slices=specs[number : number + 1],
                    dtypes=[dtype],
                )
                written = tf.raw_ops.ResourceStridedSliceAssign(
                    ref=handle,
                    begin=edges[number : number + 1],
                    end=edges[number + 1 : number + 2],
                    strides=tf.ones([1], tf.int64),
                    value=rows,
                )
                with tf.control_dependencies([written]):
                    return number + 1

            with tf.control_dependencies(order.before):
                # A loop, because separate ops for all slices of a large table would fill the
                # chief's memory.
                done = tf.while_loop(
                    lambda number: number < len(self.specs),
                    restore_slice,
                    [tf.constant(0)],
                    parallel_iterations=1,
                )
            order.before = [done[0].op]
        return order.before[0]


class _OneByOne:
    def __init__(self, file: Tensor) -> None:
        self.file = file
        self.before: list[Op] = []


class SaverBuilderOfSlices(_saver.BulkSaverBuilder):
    """Makes Savers restore the slices of `VariableInSlices` one after another on each device."""

    def bulk_restore(
        self,
        filename_tensor: Tensor,
        saveables: Sequence[Object],
        preferred_shard: int,
        restore_sequentially: bool,
    ) -> list[Object]:
        others = [each for each in saveables if not isinstance(each, VariableInSlices)]
        arguments = filename_tensor, others, preferred_shard, restore_sequentially
        tensors = iter(super().bulk_restore(*arguments) if others else ())
        order = _OneByOne(filename_tensor)
        return [
            order if isinstance(each, VariableInSlices) else next(tensors)
            for each in saveables
            for _ in each.specs
        ]


def iterator_saveable(resource: Tensor, external_state_policy: str) -> Object:
    """Creates the object with which a Saver saves an iterator.

    `resource` is from the graph's collection "iterators". `external_state_policy` is "fail", "warn"
    or "ignore".
    """
    policy = tf.data.experimental.ExternalStatePolicy[external_state_policy.upper()]
    return _iterator_ops._IteratorSaveable(resource, resource.name, policy)


def saver_of_graph(saver: Object) -> Object:
    """Replaces a `tf.train.Checkpoint` by a Saver with the same keys, for SavedModel builders."""
    if not isinstance(saver, (tf.train.Checkpoint, tf.compat.v1.train.Checkpoint)):
        return saver
    objects = _graph_view.ObjectGraphView(saver).frozen_saveable_objects()
    return tf.compat.v1.train.Saver(objects, sharded=True)


def saver_by_object(root: Object) -> Object:
    """Creates a Saver that has the keys of `tf.train.Checkpoint`, and can also restore by name."""
    objects = _graph_view.ObjectGraphView(root).frozen_saveable_objects()
    saver = tf.compat.v1.train.Saver(objects, sharded=True)
    saver._object_restore_saver = _checkpoint.frozen_saver(root)
    return saver
