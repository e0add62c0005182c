"""Recognises the tables of a legacy checkpoint, and their optimizers, without a spec."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from estimator_bridge.checkpoint_files.variable_names import (
    COLUMN_VARIABLE,
    CPU_SLOTS,
    KnownTable,
    Shapes,
    is_one_of,
    own_names,
    slot_variables,
)
from estimator_bridge.legacy.optimizer_rows import OPTIMIZERS
from estimator_bridge.translation.read_spec import TABLE_PREFIX

_OF_COLUMN = re.compile(rf"(?:^|/)([^/]+)_embedding/{COLUMN_VARIABLE}$")
_OF_SHARED = re.compile(r"(?:^|/)([^/]+_shared_embedding)$")
# Stock's dummy variable for a table is in no checkpoint, but its slots are.
_OF_DUMMY = re.compile(r"^tpu_embedding_dummy_table_variable_(.+)/[^/]+$")
# A name that only tables have, or one without a scope, unlike the variables of layers.
_LIKE_A_TABLE = re.compile(rf"_embedding(_\d+)?$|(^|/){COLUMN_VARIABLE}(_\d+)?$|^[^/]+$")


def tables_of_checkpoint(shapes: Shapes, num_slices: Mapping[str, int]) -> dict[str, str]:
    """Returns the variables that are certainly tables, by the name of the table.

    These are the variables of columns, those whose dummy in the model has slots, those that are
    stored in slices, and those with slots that only TPUs name so.

    Args:
        num_slices: by variable, the number of its stored slices.
    """
    matrices = _matrices(shapes)
    tables = {}
    for name in matrices:
        column = _OF_COLUMN.search(name) or _OF_SHARED.search(name)
        if column:
            tables[TABLE_PREFIX + column[1]] = name
    for table, variable in _tables_of_dummies(shapes, matrices).items():
        if table not in tables and variable not in tables.values():
            tables[table] = variable
    for name in matrices:
        in_slices = num_slices[name] > 1
        if name not in tables.values() and (in_slices or _has_slots_of_a_tpu(name, shapes)):
            tables[name] = name
    return tables


def may_be_tables(shapes: Shapes, known: Mapping[str, str], *, listed: bool) -> list[str]:
    """Returns the variables that may be tables, without the known ones.

    Args:
        known: the variable of each known table.
        listed: whether these are all tables of a program. Then only the leftovers of a TPU count:
            a program may have embeddings of its own, and variables without a scope.
    """
    others = [name for name in _matrices(shapes) if name not in known.values()]
    of_dummies = {
        variable
        for table, variable in _tables_of_dummies(shapes, others).items()
        if table not in known
    }
    return [
        name
        for name in others
        if name in of_dummies
        or _has_slots_of_a_tpu(name, shapes)
        or (not listed and _LIKE_A_TABLE.search(name))
    ]


def kind_of_variable(variable: str, shapes: Shapes) -> str:
    """Returns the optimizer of a table: that with the most slots among those in a checkpoint."""
    best, most = "StochasticGradientDescentParameters", 0
    for kind in OPTIMIZERS:
        for place in ("tpu", "cpu"):
            slots = slot_variables(kind, variable, place).values()
            if len(slots) > most and all(shapes.get(slot) == shapes[variable] for slot in slots):
                best, most = kind, len(slots)
    return best


def kinds_with_slots(slots: set[str]) -> list[str]:
    """Returns the optimizers that have exactly these slots in the engine."""
    return [kind for kind, row in OPTIMIZERS.items() if set(row.slots) == slots]


def _tables_of_dummies(shapes: Shapes, variables: Collection[str]) -> dict[str, str]:
    """Returns the variable of each table for which the model has a dummy with slots."""
    tables = {}
    for table in sorted({match[1] for match in map(_OF_DUMMY.match, shapes) if match}):
        own = own_names(KnownTable(table))
        fitting = [variable for variable in variables if is_one_of(variable, own)]
        exact = [variable for variable in fitting if variable in own]
        if exact or len(fitting) == 1:
            tables[table] = (exact or fitting)[0]
    return tables


def _matrices(shapes: Shapes) -> list[str]:
    """Returns the variables of two dimensions that are not slots of others."""
    suffixes = {s for row in OPTIMIZERS.values() for s in row.slots.values()}
    suffixes |= {s for slots in CPU_SLOTS.values() for s in slots.values()}
    ends = tuple(f"/{suffix}" for suffix in suffixes)
    return [name for name, shape in shapes.items() if len(shape) == 2 and not name.endswith(ends)]


def _has_slots_of_a_tpu(name: str, shapes: Shapes) -> bool:
    """Whether a variable has a slot by a name that only TPUs give."""
    return any(
        shapes.get(f"{name}/{suffix}") == shapes[name]
        for kind, row in OPTIMIZERS.items()
        for suffix in row.slots.values()
        if kind in CPU_SLOTS or not row.for_columns
    )
