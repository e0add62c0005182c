"""Sums over cores in a fixed order, so that rounding does not depend on where the terms are."""

from __future__ import annotations

from collections.abc import Sequence

from tf2_engine.optimizers.optimizer import optimization_barrier
from tf2_engine.types import Tensor


def sum_in_order(terms: Sequence[Tensor]) -> Tensor:
    """Computes ((t0 + t1) + t2) + ... of one or more terms with equal shape and dtype.

    `AddN` starts with whichever term it can overwrite. A barrier keeps graph optimization from
    turning the chain into `AddN`.
    """
    total = optimization_barrier(terms[0])
    for term in terms[1:]:
        total = optimization_barrier(total + term)
    return total
