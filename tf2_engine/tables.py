"""Creates the resource variables of tables, and reads and writes their rows."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import tensorflow as tf

from tf2_engine import errors, initializers, sharding, small_types, tf_compat
from tf2_engine.placement import Servers
from tf2_engine.plan import Plan, TablePlan, shard_shapes
from tf2_engine.types import DType, Initializer, Object, Op, Tensor, Variable

PARAMETERS = sharding.PARAMETERS

Shards = tuple[Variable, ...]

VariableFactory = Callable[
    [TablePlan, str, Sequence[tuple[int, int]], Initializer], Sequence[Variable]
]
"""Creates a variable's shards from the table's plan, the variable's name ("parameters" or the name
of a slot), the shape of each shard, and an initializer. If the engine does not train, the variables
may be those of `serving_table`, in a small type.
"""


@dataclasses.dataclass(frozen=True)
class Table:
    """The variables of one table.

    `variables` maps "parameters" and each slot's name to a tuple of shards, each [rows of the
    shard, dim] float32. Parameters may have one of the `small_types` instead. `strategy` assigns
    rows to shards: "div", "mod" or, on parameter servers, "octaves", where the placement says which
    rows each server stores.
    """

    plan: TablePlan
    strategy: str
    variables: Mapping[str, Shards]

    @property
    def where(self) -> str:
        return f"Table {self.plan.name!r}"

    @property
    def num_shards(self) -> int:
        return len(self.variables[PARAMETERS])

    def gather(self, name: str, ids: Tensor) -> Tensor:
        """Reads rows, [num_ids, dim] float32."""
        return small_types.decode(self._gather(name, ids))

    def _gather(self, name: str, ids: Tensor) -> Tensor:
        shards = self.variables[name]
        if len(shards) == 1:
            return tf.gather(shards[0], ids)
        if self.strategy == "octaves":
            raise errors.InvalidInput(
                f'{self.where}: parameter servers hold its rows with layout="octaves", and only '
                'the "ps" driver can look up such rows. Restore a checkpoint of this table on one '
                "machine."
            )
        return tf.compat.v1.nn.embedding_lookup(list(shards), ids, partition_strategy=self.strategy)

    def scatter(self, rows: Mapping[str, Tensor], ids: Tensor) -> list[Op]:
        return [
            self.variables[name][shard].scatter_update(tf.IndexedSlices(part, local_rows))
            for shard, (local_rows, *parts) in enumerate(self._by_shard(ids, *rows.values()))
            for name, part in zip(rows, parts, strict=True)
        ]

    def rows_in_shard(self, ids: Tensor) -> Tensor:
        ((rows,),) = self._by_shard(ids)
        return rows

    def spread(self, ids: Tensor, rows: Tensor) -> Iterator[Tensor]:
        """Yields a tensor of each shard's shape with `rows` at their `ids`, and zeros elsewhere."""
        for shard, (local_rows, part) in enumerate(self._by_shard(ids, rows)):
            shape = tf.constant(self.variables[PARAMETERS][shard].shape.as_list(), tf.int64)
            yield tf.scatter_nd(local_rows[:, None], part, shape)

    def core_of(self, ids: Tensor, num_cores: int) -> Tensor:
        """Finds the owner core of each row: the row's index on the host modulo the host's cores."""
        cores_per_host = num_cores // self.num_shards
        shard, local_row = self._place(ids)
        return shard * cores_per_host + local_row % cores_per_host

    def _by_shard(self, ids: Tensor, *rows: Tensor) -> Iterator[list[Tensor]]:
        if self.num_shards == 1:
            yield [ids, *rows]
            return
        shard_of_id, local_rows = self._place(ids)
        for shard in range(self.num_shards):
            positions = tf.where(tf.equal(shard_of_id, shard))[:, 0]
            yield [tf.gather(values, positions) for values in (local_rows, *rows)]

    def _place(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        if self.num_shards == 1:
            return tf.zeros_like(ids), ids
        rows = self.plan.rows
        shard = sharding.shard_of(ids, rows, self.num_shards, self.strategy, tf.maximum)
        if self.strategy == "mod":
            return shard, ids // self.num_shards
        first_rows = [sharding.first_row(n, rows, self.num_shards) for n in range(self.num_shards)]
        return shard, ids - tf.gather(tf.constant(first_rows, tf.int64), shard)


def create_tables(plan: Plan, factory: VariableFactory | None = None) -> dict[str, Table]:
    factory = factory or variable_factory()
    return {table.name: _create(plan, table, factory) for table in plan.tables}


def on_devices(devices: Sequence[str]) -> AbstractContextManager[None]:
    following = itertools.cycle(devices)

    def create(next_creator: Callable[..., Variable], **settings: Object) -> Variable:
        with tf.device(next(following)):
            return next_creator(**settings)

    creator: AbstractContextManager[None] = tf.variable_creator_scope(create)
    return creator


def variable_factory(
    hosts: Sequence[str] | None = None, servers: Servers | None = None
) -> VariableFactory:
    """Creates a factory of variables that are neither mirrored over replicas nor trainable.

    The variables have stock's names, `<table>_<shard>` and `<table>/<slot>_<shard>`.

    Args:
        hosts: the device of each shard's host. If it is given, only hosts with a row of the
            vocabulary get a variable, as in stock. By default, all shards use the device in scope.
    """

    def make(
        table: TablePlan, name: str, shapes: Sequence[tuple[int, int]], initializer: Initializer
    ) -> list[Variable]:
        base = table.name if name == PARAMETERS else f"{table.name}/{name}"
        count = len(shapes) if hosts is None else min(len(shapes), table.vocabulary_size)
        devices = servers.devices_of(table.placement) if servers and table.placement else hosts
        variables = []
        for shard, shape in enumerate(shapes[:count]):
            with tf.device(devices[shard]) if devices else contextlib.nullcontext():
                variable = tf_compat.plain_variable(
                    initial_value=functools.partial(
                        initializers.initial_value, table.name, initializer, shard, shape
                    ),
                    shape=shape,
                    dtype=tf.float32,
                    trainable=False,
                    name=f"{base}_{shard}",
                )
            variables.append(variable)
        return variables

    return make


def default_initializer(dim: int) -> Initializer:
    return tf.compat.v1.truncated_normal_initializer(mean=0.0, stddev=1.0 / math.sqrt(dim))


def whole(shards: Sequence[Variable], name: str) -> Variable:
    return shards[0] if len(shards) == 1 else tf_compat.ShardedTable(list(shards), name)


def _create(plan: Plan, table: TablePlan, factory: VariableFactory) -> Table:
    shapes = shard_shapes(table, plan.num_hosts)

    def make(name: str, initializer: Initializer) -> Shards:
        return tuple(factory(table, name, shapes, initializer))

    variables = {PARAMETERS: make(PARAMETERS, _initializer(plan, table))}
    if plan.training and table.optimizer.slot_variable_creation_fn is not None:
        variables |= _slots_of_user(table, variables[PARAMETERS], make)
    elif plan.training:
        for slot, value in table.optimizer.slot_initial_values().items():
            variables[slot] = make(slot, initializers.filled(value))
    strategy = table.placement.layout if table.placement else plan.partition_strategy
    return Table(table, strategy, variables)


def _initializer(plan: Plan, table: TablePlan) -> Initializer:
    initializer = table.initializer or default_initializer(table.dim)
    if not initializers.takes_shard_info(initializer):
        return initializer
    shape = (table.vocabulary_size, table.dim)
    placement = table.placement
    if placement is None:
        shards, strategy = plan.num_hosts, plan.partition_strategy
    else:
        shards, strategy = len(placement.servers), placement.layout
    if strategy == "octaves" and shards > 1:
        raise errors.InvalidSpec(
            f"Table {table.name!r}: its initializer takes `shard_info`, but parameter servers hold "
            'its rows with layout="octaves", whose parts are not contiguous slices. Use an '
            'initializer that takes only a shape and a dtype, or use the layout "div".'
        )
    return initializers.ByShard(initializer, table.name, shape, shards, strategy)


def _slots_of_user(
    table: TablePlan, parameters: Shards, make: Callable[[str, Initializer], Shards]
) -> dict[str, Shards]:
    function = table.optimizer.slot_variable_creation_fn
    assert function is not None
    if table.placement is not None and not table.placement.is_whole:
        raise errors.InvalidSpec(
            f"Table {table.name!r}: `slot_variable_creation_fn` cannot make the slots of a table "
            "that is spread over parameter servers. Leave the function out."
        )
    values = table.optimizer.slot_initial_values()
    in_make = False

    def creator(next_creator: Callable[..., Variable], **settings: Object) -> Variable:
        nonlocal in_make
        if in_make:  # `make` is creating the variable of a shard.
            return next_creator(**settings)
        in_make = True
        try:
            name = str(settings.get("name") or "slot").split("/")[-1]
            initializer = _shard_by_shard(table, name, settings["initial_value"], len(parameters))
            return whole(make(name, initializer), name)
        finally:
            in_make = False

    with tf.variable_creator_scope(creator):
        created = function(
            whole(parameters, table.name),
            list(values),
            [tf.constant_initializer(value) for value in values.values()],
        )
    if not isinstance(created, dict) or set(created) != set(values):
        returned = sorted(created) if isinstance(created, dict) else repr(created)
        raise errors.InvalidSpec(
            f"Table {table.name!r}: `slot_variable_creation_fn` must return a dict with the slots "
            f"{sorted(values)}, but returned {returned}."
        )
    return {name: _checked_slot(table, name, created[name], parameters) for name in values}


def _shard_by_shard(
    table: TablePlan, name: str, initial_value: Object, num_shards: int
) -> Initializer:
    total = [table.rows, table.dim]
    starts = itertools.cycle(
        sharding.first_row(shard, table.rows, num_shards) for shard in range(num_shards)
    )

    def initialize(shape: tuple[int, int], dtype: DType = tf.float32) -> Tensor:
        start = next(starts)
        if not callable(initial_value):
            value = tf.convert_to_tensor(initial_value, dtype)
        elif isinstance(initial_value, functools.partial) and "shape" in initial_value.keywords:
            # Keras passes initializers as partials. This way only a shard is computed, not the
            # whole table.
            return initial_value.func(**{**initial_value.keywords, "shape": shape})
        else:
            value = initial_value()
        if not value.shape.is_compatible_with(total):
            raise errors.InvalidSpec(
                f"Table {table.name!r}: `slot_variable_creation_fn` must make variables of the "
                f"table's shape, {total}, but the initial value of {name!r} has the shape "
                f"{value.shape}."
            )
        return value[start : start + shape[0]]

    return initialize


def _checked_slot(table: TablePlan, name: str, slot: Object, parameters: Shards) -> Shards:
    shards = tuple(slot.variables) if isinstance(slot, tf_compat.ShardedTable) else (slot,)
    shapes, expected = ([one.shape.as_list() for one in each] for each in (shards, parameters))
    if shapes != expected or not all(isinstance(shard, tf.Variable) for shard in shards):
        raise errors.InvalidSpec(
            f"Table {table.name!r}: `slot_variable_creation_fn` must create the variables that it "
            f"returns, in the table's shape, but slot {name!r} is {slot!r}."
        )
    return shards
