"""Recognises tables, their slots and their optimizers in a checkpoint, without a spec."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import variable_names
from estimator_bridge.checkpoint_files.object_graph import Objects
from estimator_bridge.checkpoint_files.variable_names import COLUMN_VARIABLE, Shapes
from estimator_bridge.settings.legacy_spec import TABLE_PREFIX
from estimator_bridge.settings.optimizer_rows import OPTIMIZERS

# The names that the versions of Keras give to each of the engine's slots.
KERAS_SLOTS: Mapping[str, tuple[str, ...]] = {
    "accumulators": ("accumulator",),
    "linears": ("linear",),
    "momenta": ("m", "momentum"),
    "velocities": ("v", "velocity"),
}
# The optimizers that Keras has too, with the same slots.
KERAS_KINDS = tuple(
    f"{name}Parameters" for name in ("Adagrad", "Adam", "Ftrl", "StochasticGradientDescent")
)

_OF_COLUMN = re.compile(rf"(?:^|/)([^/]+)_embedding/{COLUMN_VARIABLE}$")
_OF_SHARED = re.compile(r"(?:^|/)([^/]+_shared_embedding)$")
# Checkpoints do not contain stock's dummy variable of a table, but they contain its slots.
_OF_DUMMY = re.compile(r"^tpu_embedding_dummy_table_variable_(.+)/[^/]+$")
# A name that only tables have, or a name without a scope, unlike the variables of layers.
_LIKE_A_TABLE = re.compile(rf"_embedding(_\d+)?$|(^|/){COLUMN_VARIABLE}(_\d+)?$|^[^/]+$")


def tables_of_checkpoint(shapes: Shapes, hosts: Mapping[str, int]) -> dict[str, str]:
    """Maps each table's name to its variable, for the variables that are certainly tables.

    Such a variable is named like a column's table, has a TPU's slots, has a dummy variable, or was
    stored by several hosts.
    """
    matrices = _matrices(shapes)
    columns = {name: _OF_COLUMN.search(name) or _OF_SHARED.search(name) for name in matrices}
    tables = {TABLE_PREFIX + column[1]: name for name, column in columns.items() if column}
    for table, variable in _tables_of_dummies(shapes, matrices).items():
        if table not in tables and variable not in tables.values():
            tables[table] = variable
    for name in matrices:
        of_hosts = hosts[name] > 1
        if name not in tables.values() and (of_hosts or _has_slots_of_a_tpu(name, shapes)):
            tables[name] = name
    return tables


def may_be_tables(shapes: Shapes, known: Mapping[str, str], *, listed: bool) -> list[str]:
    """Lists the variables, except the `known` ones, that may be tables.

    A variable may be a table if it has a TPU's slots or a dummy variable. A variable that is named
    like a table counts, too, unless the user has `listed` all tables.
    """
    others = [name for name in _matrices(shapes) if name not in known.values()]
    dummies = _tables_of_dummies(shapes, others).items()
    likely = {variable for table, variable in dummies if table not in known}
    likely.update(name for name in others if _has_slots_of_a_tpu(name, shapes))
    return [n for n in others if n in likely or (not listed and _LIKE_A_TABLE.search(n))]


def kind_of_variable(variable: str, shapes: Shapes) -> str:
    best, most = "StochasticGradientDescentParameters", 0
    for kind in OPTIMIZERS:
        for place in variable_names.places_of(kind):
            slots = variable_names.slot_variables(kind, variable, place).values()
            present = sum(shapes.get(slot) == shapes[variable] for slot in slots)
            # Keras's names identify the optimizer. Keras's RMSprop may have no momentum slot.
            if present > most and (present == len(slots) or place == "keras"):
                best, most = kind, present
    return best


def keras_slots(objects: Objects, key: str) -> dict[str, str]:
    """Maps each slot name of the engine to the key of this table's slot in a Keras optimizer.

    The object graph lists the slots of legacy optimizers. Slots of later optimizers are named
    <optimizer>/m/users from Keras 2.11 on, and <optimizer>/users_momentum in Keras 3.
    """
    slots, of_legacy, table = {}, objects.slots.get(key, {}), objects.names.get(key)
    for slot, names in KERAS_SLOTS.items():
        fitting = {of_legacy[name] for name in names if name in of_legacy}
        if table is not None:
            ends = [f"/{name}/{table}" for name in names]
            ends += [f"/{table.replace('/', '_')}_{name}" for name in names]
            named = objects.names.items()
            fitting |= {other for other, name in named if f"/{name}".endswith(tuple(ends))}
        keys = sorted(fitting)
        if len(keys) > 1:
            raise errors.InvalidInput(
                f"{key!r}: each of {keys} may be the slot {slot!r} of this variable. Save the "
                "checkpoint with the one Keras optimizer that trains the tables."
            )
        if keys:
            slots[slot] = keys[0]
    return slots


def _tables_of_dummies(shapes: Shapes, variables: Collection[str]) -> dict[str, str]:
    tables = {}
    for table in sorted({match[1] for match in map(_OF_DUMMY.match, shapes) if match}):
        known = variable_names.KnownTable(table)
        names = variable_names.own_names(known)
        fitting = variable_names.fitting(known, variables)
        exact = [variable for variable in fitting if variable in names]
        if exact or len(fitting) == 1:
            tables[table] = (exact or fitting)[0]
    return tables


def _matrices(shapes: Shapes) -> list[str]:
    rows = OPTIMIZERS.values()
    suffixes = {s for row in rows for s in (*row.slots.values(), *row.cpu_slots.values())}
    ends = tuple(f"/{suffix}" for suffix in suffixes)
    scopes = tuple(f"{row.keras_scope}/" for row in rows if row.keras_scope)
    matrices = [name for name, shape in shapes.items() if len(shape) == 2]
    return [name for name in matrices if not name.endswith(ends) and not name.startswith(scopes)]


def _has_slots_of_a_tpu(name: str, shapes: Shapes) -> bool:
    return any(
        shapes.get(f"{name}/{suffix}") == shapes[name]
        for row in OPTIMIZERS.values()
        for suffix in row.slots.values()
        if row.cpu_slots or not row.for_columns
    )
