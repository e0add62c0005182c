"""Makes exported graphs look up rows in variables with small types.

Each `gather` from a table is replaced by a `gather` from a small variable and a conversion:

    table  -> ResourceGather(ids)        -> ...      becomes
    stored -> ResourceGather(ids) decode -> ...
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tf2_engine import errors, log, small_types, tf_compat
from tf2_engine.types import Message, Op, Session, Tensor, Variable

v1 = tf.compat.v1

_ELEMENTS_AT_ONCE = 1 << 22
_READS = ("ReadVariableOp", "Identity")


@dataclasses.dataclass(frozen=True)
class _Replaced:
    table: str
    table_dtype: str
    first_row: int
    original: Variable
    stored: Variable


class SmallTables:
    """Replaces a graph's float32 tables by variables with small types, for an export.

        small = SmallTables({"words": [variable]}, {"words": "int8"})
        ...  # variables are restored in the session
        saver = tf.compat.v1.train.Saver(small.store(session, tf.compat.v1.global_variables()))

    Args:
        tables: maps each table's name to its variables (one variable, or the parts in order).
        table_dtypes: maps each table's name to its type, as `small_types.checked` returns it.
    """

    def __init__(
        self, tables: Mapping[str, Sequence[Variable]], table_dtypes: Mapping[str, str]
    ) -> None:
        self._replaced: list[_Replaced] = []
        for table, parts in tables.items():
            table_dtype, first_row = table_dtypes[table], 0
            if table_dtype == "float32":
                continue
            if not parts:
                log.warning(
                    "Table %r: `table_dtype`=%r has no effect, because the exported model does not "
                    "look the table up.",
                    *(table, table_dtype),
                )
            for part in parts:
                self._replaced.append(_replaced(table, table_dtype, first_row, part))
                first_row += int(part.shape[0])

    def check(self, signatures: Mapping[str, Message]) -> None:
        graph = v1.get_default_graph()
        originals = {each.original.op.name: each for each in self._replaced}
        for name in _outputs(signatures.values()):
            for op, reader in _ancestors(graph.get_tensor_by_name(name).op):
                if op.name in originals:
                    each = originals[op.name]
                    raise errors.InvalidInput(
                        f"Table {each.table!r}: `table_dtype`={each.table_dtype!r} replaces "
                        f"lookups in the model's graph, but the output {name!r} reads the table "
                        f"through the op {reader.name!r} ({reader.type}), for instance inside a "
                        "tf.function or tf.cond. Look the table up outside of these, or leave this "
                        "table float32: `table_dtype` may be a dict that maps names of tables to "
                        "types."
                    )

    def store(self, session: Session, variables: Iterable[Variable]) -> list[Variable]:
        """Stores the tables in the small variables, which replace them in the graph's collections.

        Returns `variables` with the same replacements, for export.
        """
        for each in self._replaced:
            _fill(session, each)
        dropped = {id(each.original) for each in self._replaced}
        graph = v1.get_default_graph()
        for key in graph.get_all_collection_keys():
            collection = graph.get_collection_ref(key)
            collection[:] = [each for each in collection if id(each) not in dropped]
        stored = [each.stored for each in self._replaced]
        graph.get_collection_ref(v1.GraphKeys.GLOBAL_VARIABLES).extend(stored)
        return [*(each for each in variables if id(each) not in dropped), *stored]


def _replaced(table: str, table_dtype: str, first_row: int, original: Variable) -> _Replaced:
    rows, dim = original.shape.as_list()
    shape = [rows, small_types.stored_width(dim, table_dtype)]
    with v1.name_scope(None), v1.control_dependencies(None):
        stored = v1.Variable(
            tf.zeros(shape, small_types.stored_dtype(table_dtype)),
            trainable=False,
            collections=[],
            name=f"{original.op.name}/{table_dtype}",
            use_resource=True,
        )
    with v1.name_scope("small_tables"), v1.control_dependencies(None):
        _redirect(original.op.outputs[0], stored)
    return _Replaced(table, table_dtype, first_row, original, stored)


def _redirect(table: Tensor, stored: Variable) -> None:
    whole: Tensor | None = None
    for op in table.consumers():
        if _gathers(op):
            rows = small_types.decode(tf.gather(stored, op.inputs[1]))
            tf_compat.replace_input(op.outputs[0].consumers(), op.outputs[0], rows)
        elif op.type in _READS:
            _redirect(op.outputs[0], stored)
        elif table.op.type in _READS:
            whole = small_types.decode(stored.read_value()) if whole is None else whole
            tf_compat.replace_input([op], table, whole)


def _gathers(op: Op) -> bool:
    if op.type == "ResourceGather":
        return op.get_attr("batch_dims") == 0
    if op.type != "GatherV2" or op.get_attr("batch_dims") != 0:
        return False
    axis = tf.get_static_value(op.inputs[2])
    return axis is not None and int(axis) == 0


def _fill(session: Session, each: _Replaced) -> None:
    shape, dtype = each.stored.shape.as_list(), each.stored.dtype.as_numpy_dtype
    values = np.empty(shape, dtype)
    start, stop = v1.placeholder(tf.int64, []), v1.placeholder(tf.int64, [])
    part = tf.gather(each.original, tf.range(start, stop))
    rows_at_once = max(1, _ELEMENTS_AT_ONCE // shape[1])
    for first in range(0, shape[0], rows_at_once):
        last = min(first + rows_at_once, shape[0])
        rows = session.run(part, {start: first, stop: last})
        where = f"Table {each.table!r}"
        values[first:last] = small_types.encode(
            rows, each.table_dtype, where, each.first_row + first
        )
    session.run(each.stored.initializer, {each.stored.initial_value: values})


def _outputs(signatures: Iterable[Message]) -> Iterator[str]:
    for signature in signatures:
        for info in signature.outputs.values():
            sparse = info.coo_sparse
            parts = info.composite_tensor.components
            names = [info.name, *(part.name for part in parts)]
            names += [
                sparse.values_tensor_name,
                sparse.indices_tensor_name,
                sparse.dense_shape_tensor_name,
            ]
            yield from filter(None, names)


def _ancestors(op: Op) -> Iterator[tuple[Op, Op]]:
    seen, waiting = {op.name}, [op]
    while waiting:
        reader = waiting.pop()
        for needed in (*(each.op for each in reader.inputs), *reader.control_inputs):
            if needed.name not in seen:
                seen.add(needed.name)
                waiting.append(needed)
                yield needed, reader
