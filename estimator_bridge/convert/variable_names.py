"""What tables and slots are called in legacy checkpoints, and which tables those hold.

table of a column         <scope>/<column>_embedding/embedding_weights
table of shared columns   <scope>/<collection>, mostly without a scope
table of a config dict    its key
slot, made on a TPU       <table>/Adagrad, <table>/Adam/m, ...: `optimizer_rows.OPTIMIZERS`
slot, made on a CPU       the same but for two optimizers: `CPU_SLOTS`
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Any

from estimator_bridge import errors
from estimator_bridge.legacy.checks import class_names
from estimator_bridge.legacy.spec import is_tpu_column
from estimator_bridge.translation.legacy_spec import LegacySpec
from estimator_bridge.translation.optimizer_rows import OPTIMIZERS
from estimator_bridge.translation.read_columns import TABLE_PREFIX
from estimator_bridge.translation.read_spec import read_spec
from estimator_bridge.translation.translate import translate_optimizer

CPU_SLOTS: Mapping[str, Mapping[str, str]] = {
    "AdamParameters": {"momenta": "Adam", "velocities": "Adam_1"},
    "RMSPropParameters": {"ms": "RMSProp", "mom": "RMSProp_1"},
}
"""Slots by the names that TF1's optimizers give them, where a TPU's are others.

AdagradMomentum, ProximalYogi and FrequencyEstimator have no TF1 optimizer.
"""

_COLUMN_VARIABLE = "embedding_weights"
_OF_COLUMN = re.compile(rf"(?:^|/)([^/]+)_embedding/{_COLUMN_VARIABLE}$")
_OF_SHARED = re.compile(r"(?:^|/)([^/]+_shared_embedding)$")
# Stock's stand-in for a table in the model is in no checkpoint, but its slots are.
_OF_DUMMY = re.compile(r"^tpu_embedding_dummy_table_variable_(.+)/[^/]+$")
# A name that only tables have, or one without a scope, which variables of layers have.
_LIKE_A_TABLE = re.compile(rf"_embedding(_\d+)?$|(^|/){_COLUMN_VARIABLE}(_\d+)?$|^[^/]+$")

Shapes = Mapping[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class KnownTable:
    """What is known of a table before a checkpoint is looked at.

    Attributes:
        name: how the engine names it.
        kind: its optimizer, a key of `OPTIMIZERS`; None is not known.
        shape: [vocabulary, dim]; None is not known.
        slot_values: what slots start with, by the engine's name.
        own_name: the name of its variable but for a scope; None is not known.
        scoped: whether the variable has a scope of its column.
    """

    name: str
    kind: str | None = None
    shape: tuple[int, int] | None = None
    slot_values: Mapping[str, float] = dataclasses.field(default_factory=dict)
    own_name: str | None = None
    scoped: bool = False


def tables_of_spec(spec: Any) -> list[KnownTable]:
    """Returns the tables of an `EmbeddingConfigSpec`, stock's or ours.

    Raises:
        InvalidSpec: a table has no optimizer.
    """
    legacy, shared = read_spec(spec), _shared_tables(spec)
    return [_of_spec(table, legacy, shared) for table in legacy.tables]


def shapes_of_spec(spec: Any) -> dict[str, tuple[int, int]]:
    """Returns the shape of each table of a spec by the name of its variable, but for a scope."""
    legacy, shared = read_spec(spec), _shared_tables(spec)
    return {
        _own_name(table, legacy, shared)[0]: (table.vocabulary_size, table.dimension)
        for table in legacy.tables
    }


def optimizer_kind(name: str) -> str:
    """Returns the key in `OPTIMIZERS` of an optimizer by any of its names.

    Raises:
        InvalidInput: there is none of this name.
    """
    for kind, row in OPTIMIZERS.items():
        names = (kind, kind.removesuffix("Parameters"), row.engine.__name__)
        if name.lower() in {known.lower() for known in names}:
            return kind
    known = ", ".join(kind.removesuffix("Parameters") for kind in OPTIMIZERS)
    raise errors.InvalidInput(f"There is no optimizer {name!r}; the optimizers are {known}.")


def slot_variables(kind: str, variable: str, made_on: str) -> dict[str, str]:
    """Returns the names of a table's slot variables by the engine's names of the slots.

    Args:
        variable: the name of the table's variable.
        made_on: "tpu" or "cpu".
    """
    suffixes = OPTIMIZERS[kind].slots
    if made_on == "cpu":
        suffixes = CPU_SLOTS.get(kind, suffixes)
    return {slot: f"{variable}/{suffix}" for slot, suffix in suffixes.items()}


def made_on(kind: str, variable: str, shapes: Shapes) -> str:
    """Returns "tpu" or "cpu", after the slot variables that a checkpoint has."""
    if kind in CPU_SLOTS:
        found = {
            place: sum(name in shapes for name in slot_variables(kind, variable, place).values())
            for place in ("tpu", "cpu")
        }
        if found["cpu"] > found["tpu"]:
            return "cpu"
    return "tpu"


def variable_of(table: KnownTable, shapes: Shapes) -> str | None:
    """Returns the variable of a table in a checkpoint, whatever its scope; None if it has none.

    Raises:
        Unmatched: there are several.
    """
    own = own_names(table)
    named = [name for name in shapes if name in own or any(name.endswith(f"/{end}") for end in own)]
    # Of another shape it is the wrong checkpoint or the wrong spec, which is told later.
    found = [name for name in named if table.shape in (None, shapes[name])] or named
    if own[0] in found and not table.scoped:
        return own[0]
    if len(found) > 1:
        raise errors.Unmatched(
            f"Table {table.name!r}: each of {sorted(found)} may be its variable. Say which with "
            f"--table {table.name}=VARIABLE."
        )
    return found[0] if found else None


def own_names(table: KnownTable) -> list[str]:
    """Returns what the variable of a table may be called, but for a scope; likeliest first."""
    if table.own_name is not None:
        return [table.own_name]
    if not table.name.startswith(TABLE_PREFIX):
        return [table.name]
    name = table.name.removeprefix(TABLE_PREFIX)
    return [table.name, name, f"{name}_embedding/{_COLUMN_VARIABLE}"]


def tables_of_checkpoint(shapes: Shapes, parts: Mapping[str, int]) -> dict[str, str]:
    """Returns the variables that are tables for certain, by the name of the table.

    These are the variables of columns, those whose stand-in in the model has slots, those that are
    stored in parts, and those whose slots have names that only TPUs give.

    Args:
        parts: for every name the number of its stored slices.
    """
    found = {}
    for name in _matrices(shapes):
        column = _OF_COLUMN.search(name) or _OF_SHARED.search(name)
        if column:
            found[TABLE_PREFIX + column[1]] = name
    for table, variable in _stood_in_for(shapes, _matrices(shapes)).items():
        if table not in found and variable not in found.values():
            found[table] = variable
    for name in _matrices(shapes):
        if name not in found.values() and (parts[name] > 1 or _has_slots_of_a_tpu(name, shapes)):
            found[name] = name
    return found


def may_be_tables(shapes: Shapes, known: Mapping[str, str], *, listed: bool) -> list[str]:
    """Returns the variables that are perhaps tables, but for the known ones.

    Args:
        known: the variable of each known table.
        listed: whether these are all tables of a program. Only what a TPU left behind is another
            one then: a program may have embeddings of its own, and variables without a scope.
    """
    others = [name for name in _matrices(shapes) if name not in known.values()]
    left = {v for table, v in _stood_in_for(shapes, others).items() if table not in known}
    return [
        name
        for name in others
        if name in left
        or _has_slots_of_a_tpu(name, shapes)
        or (not listed and _LIKE_A_TABLE.search(name))
    ]


def _stood_in_for(shapes: Shapes, variables: Collection[str]) -> dict[str, str]:
    """Returns which of the variables are the tables for which the model has stand-ins."""
    found = {}
    for table in sorted({match[1] for match in map(_OF_DUMMY.match, shapes) if match}):
        own = own_names(KnownTable(table))
        fitting = [v for v in variables if any(f"/{v}".endswith(f"/{name}") for name in own)]
        exact = [v for v in fitting if v in own]
        if exact or len(fitting) == 1:
            found[table] = (exact or fitting)[0]
    return found


def _matrices(shapes: Shapes) -> list[str]:
    """Returns the variables of two dimensions that are no slots of others."""
    suffixes = {s for row in OPTIMIZERS.values() for s in row.slots.values()}
    suffixes |= {s for slots in CPU_SLOTS.values() for s in slots.values()}
    ends = tuple(f"/{suffix}" for suffix in suffixes)
    return [name for name, shape in shapes.items() if len(shape) == 2 and not name.endswith(ends)]


def _has_slots_of_a_tpu(name: str, shapes: Shapes) -> bool:
    """Returns whether a variable has a slot by a name that only TPUs give."""
    return any(
        shapes.get(f"{name}/{suffix}") == shapes[name]
        for kind, row in OPTIMIZERS.items()
        for suffix in row.slots.values()
        if kind in CPU_SLOTS or not row.for_columns
    )


def kind_of_variable(variable: str, shapes: Shapes) -> str:
    """Returns the optimizer of a table, after its slots in a checkpoint: that with the most."""
    best, most = "StochasticGradientDescentParameters", 0
    for kind in OPTIMIZERS:
        for place in ("tpu", "cpu"):
            slots = slot_variables(kind, variable, place).values()
            if len(slots) > most and all(shapes.get(slot) == shapes[variable] for slot in slots):
                best, most = kind, len(slots)
    return best


def kinds_with_slots(slots: set[str]) -> list[str]:
    """Returns the optimizers whose slots in the engine are these."""
    return [kind for kind, row in OPTIMIZERS.items() if set(row.slots) == slots]


def _shared_tables(spec: Any) -> set[str]:
    return {
        TABLE_PREFIX + column.get_embedding_var_name()
        for column in spec.feature_columns or ()
        if is_tpu_column(column) and any("Shared" in name for name in class_names(column))
    }


def _own_name(table: Any, legacy: LegacySpec, shared: set[str]) -> tuple[str, bool]:
    """Returns the name of a table's variable but for a scope, and whether it has one."""
    if legacy.form != "columns":
        return table.name, False
    if table.name in shared:
        return table.embedding_name, False
    return f"{table.embedding_name}_embedding/{_COLUMN_VARIABLE}", True


def _of_spec(table: Any, legacy: LegacySpec, shared: set[str]) -> KnownTable:
    optimizer = table.optimizer or legacy.optimizer
    if optimizer is None:
        raise errors.InvalidSpec(
            f"Table {table.name!r}: it has no optimizer. Give `optimization_parameters` to it or "
            "to the spec."
        )
    # The rate is of no interest; one that is called fits every optimizer.
    engine = translate_optimizer(optimizer, lambda: 0.0, f"Table {table.name!r}: ")
    own_name, scoped = _own_name(table, legacy, shared)
    return KnownTable(
        table.name,
        optimizer.kind,
        (table.vocabulary_size, table.dimension),
        engine.slot_initial_values(),
        own_name,
        scoped,
    )
