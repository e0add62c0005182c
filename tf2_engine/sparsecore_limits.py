"""The sizes of the SparseCores' id buffers: the limits, and the sizes that a batch needs.

Each SparseCore sends the ids of its samples to the SparseCores that store the rows. The ids that go
to one receiver are a *partition*. TPUEmbeddingV2 reserves room for the ids and the distinct ids of
each partition (256 each by default), and for all ids of a core (64 per sample). A batch that needs
more fails the step.

Source: sparse_core_preprocess_ops.cc and tpu_embedding_v3.py in TensorFlow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tf2_engine import errors
from tf2_engine.sparsecore_layout import ALIGNMENT, TableLayout
from tf2_engine.types import Array, Object

IDS_PER_PARTITION = 256
"""Stock's default for the number of ids, and of distinct ids, in a partition."""

IDS_PER_SAMPLE = 64
"""Stock's default for the number of ids per activation on a core."""


@dataclasses.dataclass(frozen=True)
class SparseCoreLimits:
    """The sizes of the buffers in which SparseCores receive ids, as in SparseCoreEmbeddingConfig.

    Attributes:
        max_ids_per_table, max_unique_ids_per_table: map the name of a stack (the names of its
            tables, joined by `_`) to a maximum: how many ids, or how many distinct ids, one
            SparseCore accepts from another in a step. The default is 256.
        max_ids_per_chip_per_sample: the size of a core's id buffer, divided by the number of
            samples in the stack.
        allow_id_dropping: whether ids that exceed a core's buffer are dropped instead of failing
            the step.
    """

    max_ids_per_table: Mapping[str, int] = dataclasses.field(default_factory=dict)
    max_unique_ids_per_table: Mapping[str, int] = dataclasses.field(default_factory=dict)
    max_ids_per_chip_per_sample: int = IDS_PER_SAMPLE
    allow_id_dropping: bool = False
    disable_table_stacking: bool = False

    def __post_init__(self) -> None:
        for name in _BY_STACK:
            limits = getattr(self, name) or {}
            object.__setattr__(self, name, dict(limits))  # Stock's config may have None.
            for stack, limit in limits.items():
                _check_limit(f"`{name}`[{stack!r}]", limit)
        _check_limit("`max_ids_per_chip_per_sample`", self.max_ids_per_chip_per_sample)

    @classmethod
    def of(cls, limits: Object) -> SparseCoreLimits:
        if limits is None or isinstance(limits, cls):
            return limits or cls()
        names = [field.name for field in dataclasses.fields(cls)]
        if not all(hasattr(limits, name) for name in names):
            raise errors.WrongType(
                "SparseCore limits must be `SparseCoreLimits` or a SparseCoreEmbeddingConfig, "
                f"got {limits!r}."
            )
        return cls(**{name: getattr(limits, name) for name in names})

    def check_stacks(self, stacks: Sequence[str]) -> None:
        for name in _BY_STACK:
            unknown = [stack for stack in getattr(self, name) if stack not in stacks]
            if unknown:
                raise errors.InvalidSpec(
                    f"`{name}` names {', '.join(map(repr, unknown))}, but the stacks are "
                    f"{', '.join(map(repr, stacks))}. Name stacks, not tables: a stack's name "
                    "consists of the names of its tables, joined by `_`."
                )

    def of_stack(self, name: str) -> dict[str, int]:
        return {
            "max_ids_per_sparse_core": self.max_ids_per_table.get(name, IDS_PER_PARTITION),
            "max_unique_ids_per_sparse_core": self.max_unique_ids_per_table.get(
                name, IDS_PER_PARTITION
            ),
        }


_BY_STACK = ("max_ids_per_table", "max_unique_ids_per_table")


def _check_limit(name: str, limit: Object) -> None:
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise errors.InvalidSpec(f"{name} must be an int of at least 1, got {limit!r}.")


class Lookup(NamedTuple):
    """The ids of one feature on one core, [n] int64. `ids[i]` belongs to activation `cells[i]`.

    The feature has `num_cells` activations on each core: samples times positions of a sequence.
    """

    feature: str
    table: str
    num_cells: int
    cells: Array
    ids: Array


@dataclasses.dataclass(frozen=True)
class Need:
    """The buffer sizes that a stack needs on a core: maximums over SparseCores and partitions.

    Attributes:
        ids: ids in a partition, counting each id once per activation.
        unique_ids: distinct ids in a partition.
        buffer: ids of the whole core, with each partition padded to a multiple of 8.
        cells: activations of a core.
    """

    ids: int = 0
    unique_ids: int = 0
    buffer: int = 0
    cells: int = 0

    @property
    def ids_per_sample(self) -> int:
        return -(-self.buffer // self.cells) if self.cells else 0

    def __or__(self, other: Need) -> Need:
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Need(*(max(pair) for pair in pairs))


def needs(layouts: Mapping[str, TableLayout], lookups: Iterable[Lookup]) -> dict[str, Need]:
    by_stack: dict[str, list[Lookup]] = {}
    for lookup in lookups:
        _check(lookup, layouts[lookup.table])
        by_stack.setdefault(layouts[lookup.table].stack, []).append(lookup)
    return {stack: _need(layouts, of_stack) for stack, of_stack in by_stack.items()}


def next_batch(cells: int, per_core: int) -> int:
    return -(-cells // per_core) * per_core


def _check(lookup: Lookup, layout: TableLayout) -> None:
    per_core = layout.sparse_cores.per_core
    if lookup.num_cells % per_core:
        raise errors.InvalidSpec(
            f"Feature {lookup.feature!r} has {lookup.num_cells} activations on each core, which "
            f"cannot be divided evenly among its {per_core} SparseCores. The next number that fits "
            f"is {next_batch(lookup.num_cells, per_core)}."
        )


def _need(layouts: Mapping[str, TableLayout], lookups: Sequence[Lookup]) -> Need:
    sparse_cores = layouts[lookups[0].table].sparse_cores
    places = sparse_cores.per_core * sparse_cores.total
    ids, unique = np.zeros(places, np.int64), np.zeros(places, np.int64)
    by_table: dict[str, list[Array]] = {}
    for lookup in lookups:
        layout = layouts[lookup.table]
        source = lookup.cells // max(1, lookup.num_cells // sparse_cores.per_core)
        place = source * sparse_cores.total + layout.shard(lookup.ids)
        # If an id occurs twice in an activation, it counts once, because both gains are summed.
        occurrences = np.unique(np.stack([place, lookup.cells, lookup.ids]), axis=1)
        ids += np.bincount(occurrences[0], minlength=places)
        by_table.setdefault(lookup.table, []).append(occurrences[[0, 2]])
    for occurrences_of_table in by_table.values():
        different = np.unique(np.concatenate(occurrences_of_table, axis=1), axis=1)
        unique += np.bincount(different[0], minlength=places)
    padded = -(-ids // ALIGNMENT) * ALIGNMENT
    cells = sum(lookup.num_cells for lookup in lookups)
    return Need(int(ids.max()), int(unique.max()), int(padded.sum()), cells)
