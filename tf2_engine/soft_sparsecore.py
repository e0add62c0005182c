"""The SparseCores of the software TPU: CPU kernels for the ops of stock's TPUEmbeddingV2."""

from __future__ import annotations

import ctypes
import threading
from typing import Literal, get_args

import tensorflow as tf

from tf2_engine import errors, tf_compat
from tf2_engine.native import build
from tf2_engine.types import Ids, Object, Tensor

OPTIMIZERS = ("Adagrad", "AdagradMomentum", "Adam", "Ftrl", "Sgd")

KERNELS = (
    "ConvertToListOfSparseCoreCooTensors",
    "ConvertToSparseCoreCsrWrappedCooTensor",
    "GetStatsFromListOfSparseCoreCooTensors",
    "SortListOfSparseCoreCooTensors",
    *("TPUAnnotateTensorsWithDynamicShape", "TPUCopyWithDynamicShape"),
    *(f"XlaSparseDenseMatmulGradWith{name}AndStaticBufferSize" for name in OPTIMIZERS),
    "XlaSparseDenseMatmulWithStaticBufferSize",
)
"""The ops for which the software SparseCores have kernels."""

SOURCE = "software_sparsecore/software_sparsecore.cc"

ON_DEVICE = "XlaSparseDenseMatmul"
"""The prefix of ops that run on the device. A table's op runs once for all cores together."""

OutOfRangeIds = Literal["error", "hardware"]

MOST_SPARSE_CORES = 4
"""The largest number of SparseCores per core that stock's TPUEmbeddingV2 supports."""

_library: ctypes.CDLL | None = None
_loading = threading.Lock()
_out_of_range_ids: OutOfRangeIds = "error"


def check(num_cores: int, sparse_cores: int, out_of_range_ids: str) -> None:
    if not tf_compat.has_ops(KERNELS):
        raise errors.InvalidSpec(
            f"hardware='sparsecore': TensorFlow {tf.__version__} has no TPUEmbeddingV2 and no ops "
            "for SparseCores. Use TensorFlow 2.21, or hardware='v1'."
        )
    total = num_cores * sparse_cores
    if not 1 <= sparse_cores <= MOST_SPARSE_CORES or total & (total - 1):
        raise errors.InvalidSpec(
            f"`sparse_cores`={sparse_cores} with {num_cores} core(s): a core has 1, 2 or 4 "
            "SparseCores, and the total of all cores must be a power of two. Use 4 as on a v5p, or "
            "2 as on a v6e, with 1, 2, 4, ... cores."
        )
    if out_of_range_ids not in get_args(OutOfRangeIds):
        raise errors.InvalidSpec(
            f"`out_of_range_ids` must be 'error' or 'hardware', got {out_of_range_ids!r}."
        )


def start(num_cores: int, sparse_cores: int, out_of_range_ids: OutOfRangeIds = "error") -> None:
    check(num_cores, sparse_cores, out_of_range_ids)
    global _library, _out_of_range_ids
    with _loading:
        if _library is None:
            taken = [name for name in KERNELS if tf_compat.num_kernels(name)]
            library = build.load_kernels("A software SparseCore", SOURCE, taken)
            library.software_sparsecore_waiting.restype = ctypes.c_int64
            tf_compat.around_sparse_core_ids(_before, _after)
            tf_compat.reach_sharded_variables_by_position()
            _library = library
        _out_of_range_ids = out_of_range_ids
    _library.software_sparsecore_start(num_cores, sparse_cores)


def num_waiting() -> int:
    return int(_library.software_sparsecore_waiting()) if _library is not None else 0


def _as_the_hardware() -> bool:
    return _library is None or _out_of_range_ids == "hardware"


def mark(op: tf.Operation, table: str, rows: int, feature: str | None) -> None:
    """Makes the op that reads a feature's ids check them against the table's number of rows."""
    if _as_the_hardware():
        return
    of_feature = "a feature" if feature is None else f"feature {feature!r}"
    tf_compat.set_attributes(
        op,
        {
            "_software_sparsecore_rows": rows,
            "_software_sparsecore_feature": f"{of_feature} (table {table!r})",
        },
    )


def as_int32(ids: Tensor) -> Tensor:
    """Converts ids to int32.

    Ids that do not fit are clipped, so they stay out of range. On real SparseCores, and with
    out_of_range_ids="hardware", they are cast: 2^32 + 3 becomes 3.
    """
    if ids.dtype != tf.int64 or _as_the_hardware():
        return tf.cast(ids, tf.int32)
    return tf.cast(tf.clip_by_value(ids, tf.int32.min, tf.int32.max), tf.int32)


def _before(ids: Ids) -> Ids:
    if ids.dtype != tf.int64:
        return ids
    if isinstance(ids, tf.Tensor):
        return as_int32(ids)
    return ids.with_values(as_int32(ids.values))


def _after(output: Tensor, feature: Object) -> None:
    if not hasattr(output, "graph"):
        return  # Eager ops have no attributes to set.
    layout = feature.table.layout
    mark(output.op, layout.table_name, layout.unsharded_shape[0], feature.name)
