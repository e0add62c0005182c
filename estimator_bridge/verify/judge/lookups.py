"""A lookup in float64 numpy, and lookups gone wrong in known ways, to recognise what a side did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from estimator_bridge.verify.record.recording import TableDescription, Values
from tf2_engine.types import Array


class Feature(NamedTuple):
    """A feature as the spec has it; `length` is that of a sequence, or 0."""

    key: str
    combiner: str | None
    length: int
    weight_key: str | None


def features_of(tables: Sequence[TableDescription]) -> dict[str, Feature]:
    """Returns the features of tables by key."""
    return {
        key: Feature(key, table["combiner"], length, weight_key)
        for table in tables
        for key, (length, weight_key) in table["features"].items()
    }


class RecordedIds(NamedTuple):
    """The ids of one feature in a batch.

    Attributes:
        cells: [n], the cell of the activation that each goes into.
        ids: [n].
        weights: [n] float64.
        shape: of the activation without its last dimension.
    """

    cells: Array
    ids: Array
    weights: Array
    shape: tuple[int, ...]


def occurrences(batch: Values, feature: Feature) -> RecordedIds | None:
    """Returns a feature's ids; None where it is no sparse tensor of rank 2, or one id a sample."""
    key = f"features/{feature.key}"
    dense = batch.get(key)
    if dense is not None and dense.ndim == 1 and dense.dtype.kind in "iu" and not feature.length:
        return RecordedIds(np.arange(len(dense)), dense, np.ones(len(dense)), dense.shape)
    indices, ids = batch.get(f"{key}.indices"), batch.get(f"{key}.values")
    shape = batch.get(f"{key}.shape")
    if indices is None or ids is None or ids.dtype.kind not in "iu":
        return None
    if shape is None or len(shape) != 2:
        return None
    samples = int(shape[0])
    if feature.length:
        kept = indices[:, 1] < feature.length
        cells = indices[kept, 0] * feature.length + indices[kept, 1]
        # A position of a sequence takes its row as it is.
        return RecordedIds(cells, ids[kept], np.ones(len(cells)), (samples, feature.length))
    weights = batch.get(f"features/{feature.weight_key}.values") if feature.weight_key else None
    weights = np.ones(len(ids)) if weights is None else weights.astype(np.float64)
    return RecordedIds(indices[:, 0], ids, weights, (samples,))


def look_up(table: Array, occurrences: RecordedIds, combiner: str | None) -> Array:
    """Returns the activation, [*shape, dim] float64."""
    cells, ids, gains, shape = occurrences
    num_cells = int(np.prod(shape))
    if combiner in ("mean", "sqrtn"):
        total = np.zeros(num_cells)
        np.add.at(total, cells, gains ** (1 if combiner == "mean" else 2))
        divisors = (total if combiner == "mean" else np.sqrt(total))[cells]
        with np.errstate(divide="ignore", invalid="ignore"):
            gains = np.where(divisors == 0, 0, gains / divisors)
    activation = np.zeros((num_cells, table.shape[1]))
    np.add.at(activation, cells, table[ids].astype(np.float64) * gains[:, np.newaxis])
    return activation.reshape(*shape, table.shape[1])


def without_weights(occurrences: RecordedIds) -> RecordedIds:
    """Returns the occurrences with every weight 1."""
    return occurrences._replace(weights=np.ones(len(occurrences.ids)))


def without_duplicates(occurrences: RecordedIds) -> RecordedIds:
    """Returns the occurrences without the repetitions of an id in a sample."""
    pairs = np.stack([occurrences.cells, occurrences.ids], 1)
    _, first = np.unique(pairs, axis=0, return_index=True)
    return _selected(occurrences, np.sort(first))


def without_last(occurrences: RecordedIds) -> RecordedIds:
    """Returns the occurrences without the last id of every full sample or sequence.

    A sample is full if none has more ids.
    """
    cells, shape = occurrences.cells, occurrences.shape
    if len(shape) == 2:
        return _selected(occurrences, np.flatnonzero(cells % shape[1] != shape[1] - 1))
    last = np.ones(len(cells), bool)
    last[:-1] = cells[1:] != cells[:-1]
    counts = np.bincount(cells, minlength=int(np.prod(shape)))
    full = counts[cells] == counts.max(initial=0)
    return _selected(occurrences, np.flatnonzero(~(last & full)))


def without_id_0(occurrences: RecordedIds) -> RecordedIds:
    """Returns the occurrences without the id 0, as if it were padding."""
    return _selected(occurrences, np.flatnonzero(occurrences.ids))


def permutations(rows: int) -> list[tuple[int, Array]]:
    """Returns, for numbers of hosts, the order in which "mod" stores the rows of a table."""
    return [
        (hosts, np.concatenate([np.arange(host, rows, hosts) for host in range(hosts)]))
        for hosts in range(2, min(rows, 64) + 1)
    ]


def _selected(occurrences: RecordedIds, positions: Array) -> RecordedIds:
    cells, ids, weights, shape = occurrences
    return RecordedIds(cells[positions], ids[positions], weights[positions], shape)
