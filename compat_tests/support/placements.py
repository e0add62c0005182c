"""The ids of a table's rows on a parameter server, computed from the ranges of the placement."""

from __future__ import annotations

import numpy as np

from tf2_engine.placement import TablePlacement
from tf2_engine.types import Array


def ids_of(placement: TablePlacement, part: int) -> Array:
    """Returns the ids of a part in the order of its rows."""
    return np.concatenate(
        [
            np.arange(each.first, each.first + each.rows * each.step, each.step, dtype=np.int64)
            for each in placement.ranges_of(part)
        ]
    )
