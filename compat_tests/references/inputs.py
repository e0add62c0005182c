"""Reads the ids that a user enqueues as a list of occurrences.

A *cell* is one position of the feature's output, counted in row-major order over the output
shape without the embedding dimension: sample `b` of a plain feature is cell `b`, position `t`
of sample `b` of a sequence feature of length `T` is cell `b * T + t`.

Source: the op documentation of EnqueueTPUEmbeddingArbitraryTensorBatch (dense, sparse and
ragged readings of `sample_indices_or_row_splits`) and FeatureDescriptor.input_shape in
tpu_embedding_configuration.proto.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Occurrence(NamedTuple):
    """One id looked up for one cell.

    Attributes:
        cell: the output position the id belongs to.
        id: the table row.
        weight: the user's weight; 1 when the feature is unweighted.
    """

    cell: int
    id: int
    weight: float


def dense(ids: npt.ArrayLike) -> list[Occurrence]:
    """Reads a dense feature: every entry is one id of its own cell, taken verbatim.

    Args:
        ids: integers of any shape; `[batch, 1]` and `[batch]` mean the same.

    Returns:
        One occurrence of weight 1 for each of the `ids.size` cells.
    """
    return [Occurrence(cell, int(id_), 1.0) for cell, id_ in enumerate(np.asarray(ids).ravel())]


def sparse(
    indices: npt.ArrayLike,
    values: npt.ArrayLike,
    weights: npt.ArrayLike | None = None,
    *,
    max_sequence_length: int = 0,
) -> list[Occurrence]:
    """Reads a sparse feature, plain or as a sequence.

    Plain, every entry belongs to the sample named in its first column; the second column is
    ignored. As a sequence, entry `(b, t)` belongs to cell `b * T + t`; entries with
    `t >= T` are cut off, and positions without an entry have no occurrence.

    Args:
        indices: [num_entries, 2] integers, (sample, position).
        values: [num_entries] integers, the ids.
        weights: [num_entries] floats; None, or no weights at all, mean ones.
        max_sequence_length: T, positions per sample; 0 for a plain feature.

    Returns:
        The occurrences in the order of the entries.
    """
    ids = np.asarray(values).ravel()
    where = np.asarray(indices).reshape(-1, 2)
    if len(where) != len(ids):
        raise ValueError(f"`indices` has {len(where)} entries and `values` has {len(ids)}.")
    occurrences = []
    for (sample, position), id_, weight in zip(
        where, ids, _weights(weights, len(ids)), strict=True
    ):
        if not max_sequence_length:
            occurrences.append(Occurrence(int(sample), int(id_), weight))
        elif position < max_sequence_length:
            cell = int(sample) * max_sequence_length + int(position)
            occurrences.append(Occurrence(cell, int(id_), weight))
    return occurrences


def ragged(
    row_splits: npt.ArrayLike,
    values: npt.ArrayLike,
    weights: npt.ArrayLike | None = None,
    *,
    num_cells: int,
) -> list[Occurrence]:
    """Reads a ragged feature, combined or as a sequence, depending on the number of cells.

    With as many rows as cells every row is combined into its cell. With `T` times as many
    cells as rows each row is a sequence: the id at position `t` is cell `row * T + t` with
    weight 1 (the given weights are ignored, and one id of weight 1 is the same under every
    combiner); longer rows are cut off, shorter ones leave cells empty.

    Args:
        row_splits: [num_rows + 1] integers; row `i` is `values[row_splits[i]:row_splits[i+1]]`.
        values: [num_ids] integers, the ids.
        weights: [num_ids] floats; None, or no weights at all, mean ones.
        num_cells: product of the feature's output shape without the embedding dimension.

    Returns:
        The occurrences in the order of the values.

    Raises:
        ValueError: the number of cells is not a multiple of the number of rows.
    """
    splits = [int(split) for split in np.asarray(row_splits).ravel()]
    ids = np.asarray(values).ravel()
    weight = _weights(weights, len(ids))
    num_rows = len(splits) - 1
    if num_rows < 1 or num_cells % num_rows:
        raise ValueError(
            f"{num_rows} ragged rows cannot fill {num_cells} cells; "
            "the cells must be a multiple of the rows."
        )
    length = num_cells // num_rows
    occurrences = []
    for row in range(num_rows):
        for position, entry in enumerate(range(splits[row], splits[row + 1])):
            if num_rows == num_cells:
                occurrences.append(Occurrence(row, int(ids[entry]), weight[entry]))
            elif position < length:
                occurrences.append(Occurrence(row * length + position, int(ids[entry]), 1.0))
    return occurrences


def _weights(weights: npt.ArrayLike | None, count: int) -> list[float]:
    """Returns `count` weights; None and an empty tensor both mean ones."""
    floats = [] if weights is None else [float(weight) for weight in np.asarray(weights).ravel()]
    if floats and len(floats) != count:
        raise ValueError(f"{len(floats)} weights were given for {count} ids.")
    return floats or [1.0] * count
