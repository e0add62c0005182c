"""Recomputes lookups in float64 with NumPy, both correctly and with known mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from estimator_bridge.recording.files import TableDescription, Values
from estimator_bridge.verification.compare.arithmetic.rounded import (
    UNIT_ROUNDOFF,
    Rounded,
    root,
    rounded,
    square,
)
from tf2_engine.types import Array

_LIKELY = 6.0
"""Random errors stay within this many standard deviations."""
_SAME = 16
"""If each term of a sum occurs more often than this on average, errors do not count as random."""


class Feature(NamedTuple):
    """A feature of the spec; `length` is 0, or the maximum length of a sequence feature."""

    key: str
    combiner: str | None
    length: int
    weight_key: str | None


def features_of(tables: Sequence[TableDescription]) -> dict[str, Feature]:
    return {
        key: Feature(key, table["combiner"], length, weight_key)
        for table in tables
        for key, (length, weight_key) in table["features"].items()
    }


class RecordedIds(NamedTuple):
    """The `ids` of one feature in a batch, [n]; `ids[i]` belongs to the activation `cells[i]`.

    `shape` is the shape of all activations without the last dimension.
    """

    cells: Array
    ids: Array
    weights: Array
    shape: tuple[int, ...]

    def are_rows_of(self, rows: Array) -> bool:
        ids = self.ids
        return not len(ids) or (int(ids.min()) >= 0 and int(ids.max()) < len(rows))


def occurrences(batch: Values, feature: Feature) -> RecordedIds | None:
    """Reads a feature's ids; returns None unless they are dense, or sparse of rank 2."""
    key = f"features/{feature.key}"
    dense = batch.get(key)
    if dense is not None and dense.dtype.kind in "iu" and not feature.length:
        # One id per cell, with or without a last dimension of 1.
        shape = dense.shape if dense.ndim == 1 else dense.shape[:-1]
        if int(np.prod(shape)) == dense.size:
            return RecordedIds(np.arange(dense.size), dense.ravel(), np.ones(dense.size), shape)
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
        # Positions of a sequence are neither weighted nor combined.
        return RecordedIds(cells, ids[kept], np.ones(len(cells)), (samples, feature.length))
    weights = batch.get(f"features/{feature.weight_key}.values") if feature.weight_key else None
    weights = np.ones(len(ids)) if weights is None else weights.astype(np.float64)
    return RecordedIds(indices[:, 0], ids, weights, (samples,))


def joined(parts: Sequence[RecordedIds]) -> RecordedIds:
    """Joins the ids of several batches into the ids of one batch with all samples."""
    if len(parts) == 1:
        return parts[0]
    cells = [int(np.prod(part.shape)) for part in parts]
    offsets = np.cumsum([0, *cells[:-1]])
    return RecordedIds(
        np.concatenate([p.cells + offset for p, offset in zip(parts, offsets, strict=True)]),
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.weights for part in parts]),
        (sum(part.shape[0] for part in parts), *parts[0].shape[1:]),
    )


def look_up_rounded(table: Array, occurrences: RecordedIds, combiner: str | None) -> Rounded:
    gains = gains_of(occurrences, combiner).reshaped(-1, 1)
    cells, sums = sums_by(occurrences.cells, gains * rounded(table[occurrences.ids]))
    activation = sums.among_zeros(cells, int(np.prod(occurrences.shape)))
    return activation.reshaped(*occurrences.shape, table.shape[1])


def gains_of(occurrences: RecordedIds, combiner: str | None) -> Rounded:
    weights = rounded(occurrences.weights)
    if combiner not in ("mean", "sqrtn"):
        return weights
    column = weights.reshaped(-1, 1)
    cells, sums = sums_by(occurrences.cells, column if combiner == "mean" else square(column))
    divisors = sums if combiner == "mean" else root(sums)
    of_cell = np.searchsorted(cells, occurrences.cells)
    divisor = divisors.at(of_cell).reshaped(-1)
    return (weights / divisor).zero_where(divisor.value == 0)


def sums_by(keys: Array, terms: Rounded) -> tuple[Array, Rounded]:
    """Sums the terms, [n, dim], that have the same key; returns the keys and their sums.

    The error bound of a sum is twice the rounding of its partial sums in the order of occurrence,
    because an implementation may add in another order or in blocks. If the terms of a sum are
    diverse, the errors are random, so that six times the root of the sum of their squares is also
    a bound (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, 2019).
    """
    if not len(keys):
        return keys, terms
    order = np.argsort(keys, kind="stable")
    ordered, values = keys[order], terms.value[order]
    distinct, starts, counts = np.unique(ordered, return_index=True, return_counts=True)
    partial = np.cumsum(values, 0)
    before = np.repeat(partial[starts] - values[starts], counts, 0)
    partial = abs(partial - before)
    # The first partial sum is a single term, so no addition has rounded it.
    partial[starts] = 0.0
    error = np.add.reduceat(partial, starts, 0)
    at_random = _LIKELY * np.sqrt(np.add.reduceat(np.square(partial), starts, 0))
    varied = np.ones(partial[starts].shape, bool)
    often = counts > _SAME  # fewer terms cannot repeat that often
    of_often = np.repeat(often, counts)
    distinct_terms = _distinct_terms(ordered[of_often], values[of_often])
    varied[often] = distinct_terms * _SAME >= counts[often, np.newaxis]
    error = 2 * UNIT_ROUNDOFF * np.where(varied, np.minimum(error, at_random), error)
    sums = np.add.reduceat(values, starts, 0)
    return distinct, Rounded(sums, error + np.add.reduceat(terms.error[order], starts, 0))


def _distinct_terms(keys: Array, values: Array) -> Array:
    if not len(keys):
        return np.zeros((0, values.shape[1]), np.int64)
    counts = []
    for column in values.T:
        order = np.lexsort((column, keys))
        of_key, sorted_column = keys[order], column[order]
        is_new = np.ones(len(keys), bool)
        is_new[1:] = (of_key[1:] != of_key[:-1]) | (sorted_column[1:] != sorted_column[:-1])
        starts = np.flatnonzero(np.r_[True, of_key[1:] != of_key[:-1]])
        counts.append(np.add.reduceat(is_new.astype(np.int64), starts))
    return np.stack(counts, 1)


def without_duplicates(occurrences: RecordedIds) -> RecordedIds:
    pairs = np.stack([occurrences.cells, occurrences.ids], 1)
    _, first = np.unique(pairs, axis=0, return_index=True)
    return selected(occurrences, np.sort(first))


def without_last(occurrences: RecordedIds) -> RecordedIds:
    cells, shape = occurrences.cells, occurrences.shape
    if len(shape) == 2:
        return selected(occurrences, np.flatnonzero(cells % shape[1] != shape[1] - 1))
    last = np.ones(len(cells), bool)
    last[:-1] = cells[1:] != cells[:-1]
    counts = np.bincount(cells, minlength=int(np.prod(shape)))
    full = counts[cells] == counts.max(initial=0)
    return selected(occurrences, np.flatnonzero(~(last & full)))


def without_id_0(occurrences: RecordedIds) -> RecordedIds:
    return selected(occurrences, np.flatnonzero(occurrences.ids))


def permutations(rows: int) -> list[tuple[int, Array]]:
    return [
        (hosts, np.concatenate([np.arange(host, rows, hosts) for host in range(hosts)]))
        for hosts in range(2, min(rows, 64) + 1)
    ]


def selected(occurrences: RecordedIds, positions: Array) -> RecordedIds:
    cells, ids, weights, shape = occurrences
    return RecordedIds(cells[positions], ids[positions], weights[positions], shape)
