"""Where SparseCores keep rows, and in which order ids go to them.

Source: the layout and the preprocessing ops of TensorFlow's SparseCore embeddings
(sparse_core_layout, sparse_core_preprocess_ops) in words and formulas. Everything is plain Python,
sample by sample; sums of gains are in float64, where the ops have float32.

Words: a core (replica) has S SparseCores; R cores have n = R * S. Each of the n has one shard of
every table. Tables of one width and optimizer are stacked: they share one variable, whose part on a
core is the shards of its SparseCores, one below the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from compat_tests.references.inputs import Occurrence
from compat_tests.references.lookup import gains_of

PAD = 8
"""Ids of a partition begin at multiples of it, and tables have multiples of it as columns."""


def round_up(number: int, multiple: int = PAD) -> int:
    """Returns the next multiple, or the number if it is one."""
    return -(-number // multiple) * multiple


class Place(NamedTuple):
    """Where a row is: the core, and the row of that core's part of the stack's variable."""

    core: int
    row: int


@dataclass(frozen=True)
class TableInStack:
    """The layout of one table.

    Attributes:
        row_offset: the rows of the tables before it, on one SparseCore.
        rotation: by how many SparseCores its rows are moved on.
        total: the rows of all tables of the stack, on one SparseCore.
    """

    cores: int
    sparse_cores: int
    row_offset: int
    rotation: int
    total: int

    @property
    def shards(self) -> int:
        return self.cores * self.sparse_cores

    def place(self, row: int) -> Place:
        """Returns where a row of the table is."""
        shard = (row % self.shards + self.rotation) % self.shards
        core, local = divmod(shard, self.sparse_cores)
        return Place(core, self.total * local + self.row_offset + row // self.shards)

    def column(self, row: int) -> int:
        """Returns the number by which the ops know a row of the table, in the stack."""
        n = self.shards
        return (row % n + self.rotation) % n + row // n * n + n * self.row_offset


def stack(rows: Mapping[str, int], cores: int, sparse_cores: int) -> dict[str, TableInStack]:
    """Returns the layouts of tables, by name with their numbers of rows, that make one stack."""
    n = cores * sparse_cores
    of_shard = {name: round_up(rows[name], PAD * n) // n for name in sorted(rows)}
    offsets = itertools.accumulate(of_shard.values(), initial=0)
    return {
        name: TableInStack(
            cores, sparse_cores, offset, i * sparse_cores % n, sum(of_shard.values())
        )
        for i, (name, offset) in enumerate(zip(of_shard, offsets, strict=False))
    }


@dataclass(frozen=True)
class FeatureOnCore:
    """The ids of one feature on one core: (sample, id, weight) each, samples in order."""

    table: TableInStack
    combiner: str
    samples: int
    occurrences: Sequence[Occurrence]


class Packed(NamedTuple):
    """The buffer of one core up to its unpadded sizes; padding is None."""

    row_pointers: list[int]
    sample_ids: list[int | None]
    tokens: list[int | None]
    gains: list[float | None]


def partitions(
    features: Sequence[FeatureOnCore], sparse_core: int
) -> list[list[tuple[int, int, float]]]:
    """Returns what one SparseCore of a core sends to each of all: (sample, token, gain) in order.

    Features of one table are sorted together by column, those that are equal by feature and
    sample; tables come in order of their offsets. The same id of a sample is sent once, with the
    sum of the gains.
    """
    table = features[0].table
    per_stack = sum(feature.samples for feature in features) // table.sparse_cores
    keyed: dict[tuple[int, int, int], float] = {}  # (table's offset, column, sample): gain
    before = 0
    for feature in features:
        per = feature.samples // table.sparse_cores
        gains = gains_of(feature.occurrences, feature.combiner)
        for (sample, id_, _), gain in zip(feature.occurrences, gains, strict=True):
            if sample // per == sparse_core:
                key = (feature.table.row_offset, feature.table.column(id_), before + sample % per)
                keyed[key] = keyed.get(key, 0.0) + gain
        before += per
    sent: list[list[tuple[int, int, float]]] = [[] for _ in range(table.shards)]
    for (_, column, sample), gain in sorted(keyed.items()):
        sent[column % table.shards].append((sample % per_stack, column // table.shards, gain))
    return sent


def pack(features: Sequence[FeatureOnCore]) -> Packed:
    """Returns the buffer of a core, with one minibatch."""
    packed = Packed([], [], [], [])
    for sparse_core in range(features[0].table.sparse_cores):
        for sent in partitions(features, sparse_core):
            for sample, token, gain in sent:
                packed.sample_ids.append(sample)
                packed.tokens.append(token)
                packed.gains.append(gain)
            packed.row_pointers.append(len(packed.tokens))
            padding = [None] * (round_up(len(packed.tokens)) - len(packed.tokens))
            for ids in (packed.sample_ids, packed.tokens, packed.gains):
                ids.extend(padding)
        fill = round_up(len(packed.row_pointers)) - len(packed.row_pointers)
        packed.row_pointers.extend([len(packed.tokens)] * fill)
    return packed


def most_ids(cores: Sequence[Sequence[FeatureOnCore]]) -> tuple[int, int]:
    """Returns the most ids that a SparseCore sends to one, and the most distinct ones."""
    sent = [
        ids
        for features in cores
        for sparse_core in range(features[0].table.sparse_cores)
        for ids in partitions(features, sparse_core)
    ]
    return max(map(len, sent)), max(len({token for _, token, _ in ids}) for ids in sent)
