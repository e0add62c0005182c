"""Creates the variables of tables, with the names that they have in stock's checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Callable, Mapping, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.settings.legacy_spec import LegacySpec
from estimator_bridge.settings.optimizer_rows import OPTIMIZERS
from tf2_engine import Optimizer, tf_compat
from tf2_engine.placement import Servers, TablePlacement
from tf2_engine.plan import TablePlan
from tf2_engine.tables import PARAMETERS, VariableFactory, on_devices
from tf2_engine.types import Graph, Tensor, Variable

NAMES: weakref.WeakKeyDictionary[Graph, Mapping[str, str]] = weakref.WeakKeyDictionary()
"""For each graph of a step, maps a table's name to its variable's name without a scope."""

TABLES = "tpu_embedding_table_shards"  # a collection of the variables with rows, without slots
VariableShapes = Mapping[str, tuple[int, ...]]  # maps a variable's name to its shape


@dataclasses.dataclass(frozen=True)
class TableVariables:
    """Tells which variables are the tables of an embedding spec, and which are their slots."""

    # The shapes of the tables, keyed by the variables' names without a scope.
    shapes: VariableShapes = dataclasses.field(default_factory=dict)
    strategy: str = "div"  # "div" or "mod": how checkpoints of several hosts spread rows
    # Maps each table's name to the name of its variable, without a scope.
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def is_slot(self, key: str, shape: Sequence[int]) -> bool:
        """Whether `key` is a slot of a table: `<table>/...`, with the same shape as the table."""
        return any(
            f"/{name}/" in f"/{key}" and tuple(shape) == table_shape
            for name, table_shape in self.shapes.items()
        )

    def is_table_or_slot(self, key: str, shape: Sequence[int]) -> bool:
        return self.is_slot(f"{key}/", shape)


def variable_names(legacy: LegacySpec, scopes: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Maps each table to the name of its variable.

    `scopes` maps the name of a variable without its scope to (scope, name within the scope).
    """
    if legacy.form == "dict":
        return {table.name: table.name for table in legacy.tables}
    names = {}
    for table in legacy.tables:
        if table.embedding_name not in scopes:
            raise errors.ColumnsNotUsed(
                f"Table {table.name!r}: no feature column of this table was used in model_fn, so "
                "the name of the table's variable is not known. Use every column of the embedding "
                "config, for instance in tf.keras.layers.DenseFeatures."
            )
        scope, name = scopes[table.embedding_name]
        names[table.name] = f"{scope}/{name}" if scope else name
        same = [other for other, each in names.items() if each == names[table.name]]
        if len(same) > 1:
            raise errors.InvalidSpec(
                f"Tables {same[0]!r} and {same[1]!r}: both variables would be called "
                f"{names[table.name]}, because their columns are in DenseFeatures layers with the "
                "same name (stock fails in the same way). Pass all columns to one DenseFeatures, "
                "or call each layer in a different tf.compat.v1.variable_scope."
            )
    return names


def slot_suffix(optimizer: Optimizer, slot: str) -> str:
    row = next(row for row in OPTIMIZERS.values() if row.engine is type(optimizer))
    return row.slots[slot]


def table_factory(names: Mapping[str, str], servers: Servers | None = None) -> VariableFactory:
    """Makes a function that creates the variables of a table: global and not trainable.

    The shards are named `<name>/part_0` to `<name>/part_<n-1>`, and saved as one tensor `<name>`.
    """

    def make(
        table: TablePlan,
        part: str,
        shapes: Sequence[tuple[int, int]],
        initializer: Callable[..., Tensor],
    ) -> list[Variable]:
        name = names[table.name]
        if part != PARAMETERS:
            name = f"{name}/{slot_suffix(table.optimizer, part)}"
        placement = table.placement
        devices = servers.devices_of(placement) if servers and placement else ()
        collections = [tf.GraphKeys.GLOBAL_VARIABLES, *([TABLES] if part == PARAMETERS else [])]
        variable = functools.partial(
            tf.get_variable,
            dtype=tf.float32,
            initializer=initializer,
            trainable=False,
            collections=collections,
            use_resource=True,
        )
        with on_devices(devices) if devices else contextlib.nullcontext():
            if placement and placement.layout == "octaves" and not placement.is_whole:
                return _in_octaves(name, placement, shapes, variable)
            shape = [sum(rows for rows, _ in shapes), table.dim]
            partitioner = tf.fixed_size_partitioner(len(shapes))
            return list(variable(name, shape=shape, partitioner=partitioner))

    return make


def _in_octaves(
    name: str,
    placement: TablePlacement,
    shapes: Sequence[tuple[int, int]],
    variable: Callable[..., Variable],
) -> list[Variable]:
    whole = (placement.size.rows, placement.size.dim)
    parts = [variable(f"{name}/part_{number}", shape=shape) for number, shape in enumerate(shapes)]
    for number, part in enumerate(parts):
        key = part.op.name.rpartition("/part_")[0]
        ranges = [(each.first, each.rows) for each in placement.ranges_of(number)]
        tf_compat.set_row_ranges(part, tf_compat.RowRanges(key, whole, ranges))
    return parts
