"""The contents of a legacy spec, and notes on it, as frozen values without legacy classes.

Settings keep their legacy names, by which `catalogue.values` finds their rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from tf2_engine.types import Initializer, Object, TensorLike

TABLE_PREFIX = "tbl_"
"""The prefix that stock adds to the name of a column's table."""

OfStep = Callable[["TensorLike"], "TensorLike"]
"""A function of the global step."""


class Place(NamedTuple):
    """The subject of a note: a table, a feature, or a source line such as "train.py:12"."""

    kind: str
    name: str | None = None

    def __str__(self) -> str:
        return self.kind if self.name is None else f"{self.kind} {self.name!r}"


SPEC = Place("EmbeddingConfigSpec")


class SourceText(str):
    """Text from a program's source, such as a name; reports show it unquoted."""

    __slots__ = ()


NOTHING = SourceText()
"""The value of a note that needs no value."""


@dataclasses.dataclass(frozen=True)
class Note:
    """A place to which a row of the catalogue applies, and the value or name to show."""

    rule: str
    where: Place
    value: Object = NOTHING


@dataclasses.dataclass(frozen=True)
class LegacyOptimizer:
    """One `*Parameters` object: the name of its class, and all its attributes."""

    kind: str
    settings: Mapping[str, Object]


@dataclasses.dataclass(frozen=True)
class LegacyTable:
    """One table.

    Attributes:
        name: the table's name in the engine: its key in the config dict, or for columns
            `tbl_<variable>`.
        learning_rate: None and 0.0 mean unset.
        optimizer: None means the spec's optimizer.
        embedding_name: the name of the table's variable, without a scope.
    """

    name: str
    vocabulary_size: int
    dimension: int
    initializer: Initializer
    learning_rate: float | None
    learning_rate_fn: OfStep | None
    combiner: str | None
    hot_id_replication: bool
    optimizer: LegacyOptimizer | None
    embedding_name: str


@dataclasses.dataclass(frozen=True)
class LegacyFeature:
    """One feature: its table, its keys in a batch, and its sequence length, or 0."""

    key: str
    table: str
    max_sequence_length: int
    weight_key: str | None


@dataclasses.dataclass(frozen=True)
class TensorCoreColumn:
    """A column whose table is an ordinary variable; the bridge only prepares its ids.

    `padded_length` is the number of ids per sample, to which lists are cut or padded.
    """

    key: str
    padded_length: int


@dataclasses.dataclass(frozen=True)
class LegacySpec:
    """The contents of an `EmbeddingConfigSpec`.

    Attributes:
        form: "columns" or "dict".
        tables: sorted by name, in stock's order.
        features: table by table, sorted by key within each table.
        notes: the settings of columns for which `tables` and `features` have no field.
    """

    form: str
    tables: tuple[LegacyTable, ...]
    features: tuple[LegacyFeature, ...]
    optimizer: LegacyOptimizer | None
    clipping_limit: float | None
    pipeline_execution_with_tensor_core: bool
    experimental_gradient_multiplier_fn: OfStep | None
    partition_strategy: str
    profile_data_directory: str | None
    quirks: str
    tensor_core_columns: tuple[TensorCoreColumn, ...] = ()
    notes: tuple[Note, ...] = ()

    def table(self, name: str) -> LegacyTable:
        return next(table for table in self.tables if table.name == name)

    def optimizers(self) -> Iterator[tuple[Place, LegacyOptimizer]]:
        if self.optimizer is not None and any(table.optimizer is None for table in self.tables):
            yield SPEC, self.optimizer
        for table in self.tables:
            if table.optimizer is not None:
                yield Place("table", table.name), table.optimizer
