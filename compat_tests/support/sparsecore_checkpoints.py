"""Random specs of legacy programs, and values of their checkpoints to convert for SparseCores."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from compat_tests.support.conversions import OPTIMIZERS, TPU_SLOTS
from compat_tests.support.legacy_specs import OURS
from compat_tests.support.sparsecore_tables import random_tables
from tf2_engine.sparsecore_layout import StackableTable

INITIAL = {
    "StochasticGradientDescent": {},
    "Adagrad": {"accumulators": 0.25},
    "AdagradMomentum": {"accumulators": 0.0, "momenta": 0.0},
    "Adam": {"momenta": 0.0, "velocities": 0.0},
    "Ftrl": {"accumulators": 0.1, "linears": 0.0},
}
"""The initial values of the slots of those of `OPTIMIZERS` that SparseCores have."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A legacy program's spec, its tables as SparseCores stack them, and all values of the tables.

    `kinds` maps each table to its optimizer, and `values` to a dict from slots to values, where ""
    means the table itself.
    """

    spec: Any
    tables: tuple[StackableTable, ...]
    kinds: Mapping[str, str]
    values: Mapping[str, Mapping[str, Any]]

    @property
    def samples(self) -> dict[str, int]:
        return {table.name: table.samples for table in self.tables if table.samples}

    def by_name(self) -> dict[str, Any]:
        """Maps names in a legacy checkpoint to values."""
        return {
            f"{table}/{TPU_SLOTS[self.kinds[table]][part]}" if part else table: value
            for table, parts in self.values.items()
            for part, value in parts.items()
        }

    def by_object(self) -> dict[str, Any]:
        """Maps keys below a TPUEmbedding to values."""
        return {
            f"{table}.S{part}" if part else table: value
            for table, parts in self.values.items()
            for part, value in parts.items()
        }


def random_program(rng: np.random.Generator, strategy: str = "div") -> Program:
    """Creates 1 to 9 tables, each with one of two optimizers, and random values."""
    tables = random_tables(rng)
    chosen = rng.permutation(list(INITIAL))[:2].tolist()
    kinds = {table.name: chosen["ab".index(str(table.group))] for table in tables}
    spec = OURS.EmbeddingConfigSpec(
        table_to_config_dict={
            table.name: OURS.TableConfig(
                table.rows, table.dim, optimization_parameters=OPTIMIZERS[kinds[table.name]]
            )
            for table in tables
        },
        feature_to_config_dict={
            table.name: OURS.FeatureConfig(table_id=table.name) for table in tables
        },
        optimization_parameters=OPTIMIZERS["Adagrad"],
        partition_strategy=strategy,
    )
    first = tables[0].name
    tables = [
        dataclasses.replace(
            table, samples=64 * (table.name == first), features=int(table.name == first)
        )
        for table in tables
    ]
    values = {
        table.name: {
            part: rng.normal(size=(table.rows, table.dim)).astype(np.float32)
            for part in ("", *INITIAL[kinds[table.name]])
        }
        for table in tables
    }
    return Program(spec, tuple(tables), kinds, values)
