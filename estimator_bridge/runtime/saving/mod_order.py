"""Reorders the rows of tables with partition_strategy="mod" if the number of parts has changed.

Part `k` of `n` holds the ids k, k + n, k + 2n, ...; there is a part for each host or parameter
server. A Saver alone would restore rows in the stored order.
"""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import Reader, RowLayout, StoredTensor
from estimator_bridge.runtime.step.table_variables import TableVariables
from tf2_engine import tf_compat
from tf2_engine.types import Array, Session, Variable

_BYTES_AT_ONCE = 64 << 20
"""Bytes of rows that go through this process at once. A message can hold 2 GiB."""


class RowsByMod:
    """The tables and slots of the default graph, with ops that overwrite their rows."""

    def __init__(self, tables: TableVariables) -> None:
        self._parts: dict[str, list[_Part]] = {}
        for variable in tf.global_variables():
            key, shape = tf_compat.checkpoint_key(variable), tf_compat.checkpoint_shape(variable)
            if shape is not None and tables.is_table_or_slot(key, shape):
                self._parts.setdefault(key, []).append(_Part(variable))

    def put_in_order(self, session: Session, reader: Reader) -> None:
        """Overwrites rows that were restored in another order than this job's.

        Raises:
            InvalidInput: a table is stored in parts that partition_strategy="mod" does not make.
        """
        for key, parts in self._parts.items():
            tensor = reader.tensors.get(key)
            if tensor is None:
                continue
            if tensor.part_rows is None:
                raise errors.InvalidInput(
                    f"{reader.prefix}: {tensor.name!r} is stored in parts that are not blocks of "
                    'rows, unlike the parts of hosts with partition_strategy="mod". Restore a '
                    "checkpoint of this model."
                )
            if tensor.hosts != len(parts):
                layout = RowLayout(tensor.shape[0], tensor.hosts, "mod")
                for number, part in enumerate(parts):
                    ids = np.arange(number, tensor.shape[0], len(parts))
                    part.read(session, reader, tensor, layout.stored(ids))


class _Part:
    def __init__(self, variable: Variable) -> None:
        dtype = variable.dtype.base_dtype
        self._ids = tf.placeholder(tf.int64, [None])
        self._rows = tf.placeholder(dtype, [None, *variable.shape[1:]])
        self._write = tf.scatter_update(variable, self._ids, self._rows)

    def read(self, session: Session, reader: Reader, tensor: StoredTensor, places: Array) -> None:
        at_once = max(1, _BYTES_AT_ONCE // max(1, tensor.row_size))
        for first in range(0, len(places), at_once):
            some = places[first : first + at_once]
            feed = {
                self._ids: np.arange(first, first + len(some)),
                self._rows: reader.rows(tensor, some),
            }
            session.run(self._write.op, feed)
