"""A legacy spec as read: frozen values that mention no column and no class of the legacy stack.

Settings have their legacy names, by which `detect.values` finds the rows that read them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

from estimator_bridge.settings import note
from estimator_bridge.settings.note import Note, Place
from tf2_engine.types import Initializer, Object, TensorLike

OfStep = Callable[["TensorLike"], "TensorLike"]
"""A function of the global step."""


@dataclasses.dataclass(frozen=True)
class LegacyOptimizer:
    """One `*Parameters` object.

    Attributes:
        kind: the name of its class, as in `optimizer_rows.OPTIMIZERS`.
        settings: all its attributes, by their legacy names.
    """

    kind: str
    settings: Mapping[str, Object]


@dataclasses.dataclass(frozen=True)
class LegacyTable:
    """One table.

    Attributes:
        name: how the engine and the device name it: `tbl_<variable>` for columns, else its key.
        learning_rate: None, and 0.0 too, is unset.
        learning_rate_fn: called with the global step.
        combiner: "mean", "sum", "sqrtn" or None.
        optimizer: None takes the spec's.
        embedding_name: name of its variable without a scope.
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
    """One feature.

    Attributes:
        key: its key in the features of a batch.
        table: name of its table.
        max_sequence_length: 0, or the length T of a sequence.
        weight_key: key of its weights in the features of a batch, or None.
    """

    key: str
    table: str
    max_sequence_length: int
    weight_key: str | None


@dataclasses.dataclass(frozen=True)
class TensorCoreColumn:
    """One column whose table is an ordinary variable: only its ids are prepared.

    Attributes:
        key: its key in the features of a batch.
        padded_length: ids per sample; more are cut, missing ones padded and masked.
    """

    key: str
    padded_length: int


@dataclasses.dataclass(frozen=True)
class LegacySpec:
    """Everything an `EmbeddingConfigSpec` says.

    Attributes:
        form: "columns" or "dict".
        tables: sorted by name, as stock orders them.
        features: table by table, sorted by key inside each.
        experimental_gradient_multiplier_fn: called with the global step.
        quirks: "stock" or "documented".
        notes: of what the columns say and tables and features do not.
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
        """Returns the table of that name."""
        return next(table for table in self.tables if table.name == name)

    def optimizers(self) -> Iterator[tuple[Place, LegacyOptimizer]]:
        """Yields every optimizer that a table uses, with the place at which it is written."""
        if self.optimizer is not None and any(table.optimizer is None for table in self.tables):
            yield note.SPEC, self.optimizer
        for table in self.tables:
            if table.optimizer is not None:
                yield note.table(table.name), table.optimizer
