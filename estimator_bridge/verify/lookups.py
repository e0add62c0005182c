"""A lookup in float64 numpy, and lookups gone wrong in known ways, to recognise what a side did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from estimator_bridge.verify.recording import Array, Values


class Feature(NamedTuple):
    """A feature as the spec has it.

    Attributes:
        length: of a sequence, or 0.
        weight_key: of its weights, or None.
    """

    key: str
    combiner: str | None
    length: int
    weight_key: str | None


def features_of(tables: Sequence[Mapping[str, Any]]) -> dict[str, Feature]:
    """Returns the features of tables, as `description.describe` returns them, by key."""
    return {
        key: Feature(key, table["combiner"], length, weight_key)
        for table in tables
        for key, (length, weight_key) in table["features"].items()
    }


class Occurrences(NamedTuple):
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


def occurrences(batch: Values, feature: Feature) -> Occurrences | None:
    """Returns a feature's ids; None where it is no sparse tensor of rank 2, or one id a sample."""
    key = f"features/{feature.key}"
    dense = batch.get(key)
    if dense is not None and dense.ndim == 1 and dense.dtype.kind in "iu" and not feature.length:
        return Occurrences(np.arange(len(dense)), dense, np.ones(len(dense)), dense.shape)
    indices, ids = batch.get(f"{key}.indices"), batch.get(f"{key}.values")
    shape = batch.get(f"{key}.shape")
    if indices is None or ids is None or shape is None or len(shape) != 2:
        return None
    if ids.dtype.kind not in "iu":
        return None
    weights = batch.get(f"features/{feature.weight_key}.values") if feature.weight_key else None
    weights = np.ones(len(ids)) if weights is None else weights.astype(np.float64)
    samples = int(shape[0])
    if not feature.length:
        return Occurrences(indices[:, 0], ids, weights, (samples,))
    kept = indices[:, 1] < feature.length
    cells = indices[kept, 0] * feature.length + indices[kept, 1]
    # A position of a sequence takes its row as it is.
    return Occurrences(cells, ids[kept], np.ones(len(cells)), (samples, feature.length))


def look_up(table: Array, found: Occurrences, combiner: str | None) -> Array:
    """Returns the activation, [*shape, dim] float64."""
    num_cells = int(np.prod(found.shape))
    gains = found.weights
    if combiner in ("mean", "sqrtn"):
        power = 1 if combiner == "mean" else 2
        total = np.zeros(num_cells)
        np.add.at(total, found.cells, found.weights**power)
        below = total if combiner == "mean" else np.sqrt(total)
        with np.errstate(divide="ignore", invalid="ignore"):
            gains = np.where(below[found.cells] == 0, 0, found.weights / below[found.cells])
    activation = np.zeros((num_cells, table.shape[1]))
    np.add.at(activation, found.cells, table[found.ids].astype(np.float64) * gains[:, np.newaxis])
    return activation.reshape(*found.shape, table.shape[1])


def without_weights(found: Occurrences) -> Occurrences:
    """Every id counts once."""
    return found._replace(weights=np.ones(len(found.ids)))


def without_duplicates(found: Occurrences) -> Occurrences:
    """Of ids that are twice in a sample the first is kept."""
    pairs = np.stack([found.cells, found.ids], 1)
    _, first = np.unique(pairs, axis=0, return_index=True)
    return _kept(found, np.sort(first))


def without_last(found: Occurrences) -> Occurrences:
    """Of every sample, or of a sequence that fills its length, the last id is missing."""
    if len(found.shape) == 2:
        return _kept(found, np.flatnonzero(found.cells % found.shape[1] != found.shape[1] - 1))
    last = np.ones(len(found.cells), bool)
    last[:-1] = found.cells[1:] != found.cells[:-1]
    counts = np.bincount(found.cells, minlength=int(np.prod(found.shape)))
    return _kept(found, np.flatnonzero(~(last & (counts[found.cells] == counts.max(initial=0)))))


def without_id_0(found: Occurrences) -> Occurrences:
    """The id 0 is taken for padding."""
    return _kept(found, np.flatnonzero(found.ids))


def permutations(rows: int) -> list[tuple[int, Array]]:
    """Returns, for numbers of hosts, the order in which "mod" stores the rows of a table."""
    return [
        (hosts, np.concatenate([np.arange(host, rows, hosts) for host in range(hosts)]))
        for hosts in range(2, min(rows, 64) + 1)
    ]


def _kept(found: Occurrences, where: Array) -> Occurrences:
    return found._replace(
        cells=found.cells[where], ids=found.ids[where], weights=found.weights[where]
    )
