"""Combines looked-up rows into one activation per cell.

Source: the combiner formulas of tf.nn.embedding_lookup_sparse, which the op documentation of
EnqueueTPUEmbeddingArbitraryTensorBatch names as the engine's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from compat_tests.references.inputs import Occurrence

COMBINERS = ("sum", "mean", "sqrtn")


def combine(
    table: npt.ArrayLike,
    occurrences: Sequence[Occurrence],
    num_cells: int,
    combiner: str,
) -> tuple[npt.NDArray[np.float64], list[float]]:
    """Looks up every occurrence and reduces the rows of each cell.

        activation[cell] = sum of gain * table[id] over the occurrences of the cell

    Args:
        table: [vocabulary_size, dim] floats.
        occurrences: (cell, id, weight) each; an id that occurs twice counts twice.
        num_cells: cells of the feature; those without occurrences come back as zeros.
        combiner: "sum", "mean" or "sqrtn".

    Returns:
        [num_cells, dim] float64 activations, and the gain of each occurrence in order. The
        gradient of the row an occurrence looked up is its gain times the gradient of its cell.

    Raises:
        IndexError: an id outside the table or a cell outside the feature.
        ValueError: an unknown combiner.
    """
    rows = np.asarray(table, dtype=np.float64)
    for cell, id_, _ in occurrences:
        if not 0 <= id_ < len(rows):
            raise IndexError(f"id {id_} of cell {cell} is outside the table of {len(rows)} rows.")
        if not 0 <= cell < num_cells:
            raise IndexError(f"cell {cell} is outside the {num_cells} cells of the feature.")

    gains = gains_of(occurrences, combiner)
    activations = np.zeros((num_cells, rows.shape[1]))
    for (cell, id_, _), gain in zip(occurrences, gains, strict=True):
        for column in range(rows.shape[1]):
            activations[cell, column] += gain * rows[id_, column]
    return activations, gains


def gains_of(occurrences: Sequence[Occurrence], combiner: str) -> list[float]:
    """Returns the factor of each occurrence: its weight over the denominator of its cell.

    The denominator is 1 for "sum", the sum of the cell's weights for "mean", and the square
    root of the sum of their squares for "sqrtn". A denominator of zero, which the op
    documentation calls invalid, gives gains of zero. A negative one divides like any other.

    Both zeros are judged in float64: a cell whose float32 weights cancel only approximately,
    or whose squared weights underflow in float32, is no fair comparison with an engine.
    """
    if combiner not in COMBINERS:
        raise ValueError(f"`combiner` is {combiner!r}; known: {', '.join(COMBINERS)}.")
    denominators: dict[int, float] = {}
    for cell in {occurrence[0] for occurrence in occurrences}:
        weights = [weight for at, _, weight in occurrences if at == cell]
        if combiner == "sum":
            denominators[cell] = 1.0
        elif combiner == "mean":
            denominators[cell] = sum(weights)
        else:
            denominators[cell] = math.sqrt(sum(weight * weight for weight in weights))
    return [
        0.0 if denominators[cell] == 0 else weight / denominators[cell]
        for cell, _, weight in occurrences
    ]
