"""The names of tables and slots in legacy checkpoints.

table of a column         <scope>/<column>_embedding/embedding_weights
the same, in a layer that opens no scopes, like DenseFeatures of TensorFlow 2:
                          <scope>/embedding_weights, usually without <scope>/
table of shared columns   <scope>/<collection>, usually without <scope>/
table of a config dict    its key
slot, made on a TPU       <table>/Adagrad, <table>/Adam/m, ...: `optimizer_rows.OPTIMIZERS`
slot, made on a CPU       the same; two optimizers have other names, `cpu_slots`
slot, made by Keras       training/Adagrad/<table>/accumulator, ...: `keras_slots`

TensorFlow is needed only to read a spec, and not to read a checkpoint.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Hashable, Iterator, Mapping

from estimator_bridge import errors
from estimator_bridge.settings.legacy_spec import TABLE_PREFIX, LegacySpec, LegacyTable
from estimator_bridge.settings.optimizer_rows import OPTIMIZERS
from tf2_engine.types import Object

PLACES = ("tpu", "cpu", "keras")
"""What can create slots: training on a TPU, training on a CPU, or Keras. Their names differ."""

COLUMN_VARIABLE = "embedding_weights"
Shapes = Mapping[str, tuple[int, ...]]  # keyed by names of variables that may be parts of tables


@dataclasses.dataclass(frozen=True)
class KnownTable:
    """What a spec or a user says about a table. None means unknown."""

    name: str
    kind: str | None = None  # its optimizer, a key of `OPTIMIZERS`
    shape: tuple[int, int] | None = None  # [vocabulary, dim]
    # Initial values, keyed by the engine's names of the slots.
    slot_values: Mapping[str, float] = dataclasses.field(default_factory=dict)
    own_name: str | None = None  # name of its variable, without a scope
    scoped: bool = False  # whether the variable is in the scope of a layer
    # Equal for tables with equal optimizers, learning rates included.
    group: Hashable = None


def tables_of_spec(spec: Object) -> list[KnownTable]:
    from estimator_bridge.translation.read_spec import read_spec

    legacy = read_spec(spec)
    return [_known(*named, legacy) for named in _named_tables(spec, legacy)]


def variables_of_spec(spec: Object) -> dict[str, tuple[str, tuple[int, int]]]:
    from estimator_bridge.translation.read_spec import read_spec

    return {
        table.name: (own_name, (table.vocabulary_size, table.dimension))
        for table, own_name, _ in _named_tables(spec, read_spec(spec))
    }


def optimizer_kind(name: str) -> str:
    for kind, row in OPTIMIZERS.items():
        names = (kind, kind.removesuffix("Parameters"), row.engine.__name__)
        if name.lower() in {known.lower() for known in names}:
            return kind
    known = ", ".join(kind.removesuffix("Parameters") for kind in OPTIMIZERS)
    raise errors.InvalidInput(f"There is no optimizer {name!r}; the optimizers are {known}.")


def slot_variables(kind: str, variable: str, made_on: str) -> dict[str, str]:
    """Maps the engine's slot names to the variables' names; `made_on` is one of `PLACES`."""
    row = OPTIMIZERS[kind]
    if made_on == "keras" and row.slots:
        if not row.keras_slots:
            raise errors.InvalidInput(
                f"Keras has no {kind.removesuffix('Parameters')}, so it has no names for the slots "
                f"of {variable!r}. Set `slots` to 'tpu' or 'cpu'."
            )
        return {
            slot: f"{row.keras_scope}/{variable}/{name}" for slot, name in row.keras_slots.items()
        }
    suffixes = (row.cpu_slots or row.slots) if made_on == "cpu" else row.slots
    return {slot: f"{variable}/{suffix}" for slot, suffix in suffixes.items()}


def made_on(kind: str, variable: str, shapes: Shapes) -> str:
    def count(place: str) -> int:
        return sum(name in shapes for name in slot_variables(kind, variable, place).values())

    return max(places_of(kind), key=count)


def places_of(kind: str) -> tuple[str, ...]:
    return tuple(place for place in PLACES if place != "keras" or OPTIMIZERS[kind].keras_slots)


def variable_of(table: KnownTable, shapes: Shapes) -> str | None:
    table_names = own_names(table)
    named = fitting(table, shapes)
    # If no shape fits, the checkpoint or the spec is wrong, which is reported later.
    candidates = [name for name in named if table.shape in (None, shapes[name])] or named
    if table_names[0] in candidates and not table.scoped:
        return table_names[0]
    if len(candidates) > 1:
        raise errors.Unmatched(
            f"Table {table.name!r}: each of {sorted(candidates)} may be its variable. Name the "
            f"right one with --table {table.name}=VARIABLE."
        )
    return candidates[0] if candidates else None


def own_names(table: KnownTable) -> list[str]:
    if table.own_name is not None:
        return [table.own_name]
    if not table.name.startswith(TABLE_PREFIX):
        return [table.name]
    name = table.name.removeprefix(TABLE_PREFIX)
    return [table.name, name, f"{name}_embedding/{COLUMN_VARIABLE}"]


def fitting(table: KnownTable, variables: Collection[str]) -> list[str]:
    """Lists the variables whose names fit a known table, in any scope.

    If none fits, the table's column may have created its variable in a layer that opens no scopes.
    """
    named = [name for name in variables if is_one_of(name, own_names(table))]
    is_of_column = table.own_name is None and table.name.startswith(TABLE_PREFIX)
    if named or not (table.scoped or is_of_column):
        return named
    of_columns = (name for name in variables if is_one_of(name, [COLUMN_VARIABLE]))
    return [name for name in of_columns if not name.endswith(f"_embedding/{COLUMN_VARIABLE}")]


def is_one_of(variable: str, own_names: list[str]) -> bool:
    return f"/{variable}".endswith(tuple(f"/{name}" for name in own_names))


def _named_tables(spec: Object, legacy: LegacySpec) -> Iterator[tuple[LegacyTable, str, bool]]:
    from estimator_bridge.legacy.requirements import class_names, is_tpu_column

    shared = {
        TABLE_PREFIX + column.get_embedding_var_name()
        for column in spec.feature_columns or ()
        if is_tpu_column(column) and any("Shared" in name for name in class_names(column))
    }
    for table in legacy.tables:
        scoped = legacy.form == "columns" and table.name not in shared
        name = table.embedding_name
        yield table, f"{name}_embedding/{COLUMN_VARIABLE}" if scoped else name, scoped


def _known(table: LegacyTable, own_name: str, scoped: bool, legacy: LegacySpec) -> KnownTable:
    from estimator_bridge.translation.translate import rate_of, translate_optimizer

    optimizer = table.optimizer or legacy.optimizer
    if optimizer is None:
        raise errors.InvalidSpec(
            f"Table {table.name!r}: it has no optimizer. Set `optimization_parameters` of the "
            "table or of the spec."
        )
    # The learning rate does not matter here, so every optimizer gets the same rate function.
    engine = translate_optimizer(optimizer, _no_rate, f"Table {table.name!r}: ")
    shape = (table.vocabulary_size, table.dimension)
    slot_values = engine.slot_initial_values()
    group = engine, rate_of(table, optimizer)
    return KnownTable(table.name, optimizer.kind, shape, slot_values, own_name, scoped, group)


def _no_rate() -> float:
    return 0.0
