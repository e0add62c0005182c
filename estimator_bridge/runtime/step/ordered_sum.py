"""Sums over the cores, which round in the order of the cores wherever the terms are."""

from __future__ import annotations

from collections.abc import Sequence

from tf2_engine.optimizers.optimizer import optimization_barrier
from tf2_engine.types import Tensor


def sum_in_order(terms: Sequence[Tensor]) -> Tensor:
    """Returns ((t0 + t1) + t2) + ..., of one term or more, all of one shape and dtype.

    `AddN` begins with whichever term it can overwrite, which differs from place to place, and graph
    optimisation makes it of chains of sums, also with what is added later. A barrier keeps them.
    """
    total = optimization_barrier(terms[0])
    for term in terms[1:]:
        total = optimization_barrier(total + term)
    return total
