"""Checks the reference of simulated quantization against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from compat_tests.references.quantization import quantize


@pytest.mark.parametrize(
    ("settings", "values", "expected"),
    [
        # Two buckets are the ends; the middle goes up.
        ((2, 0.0, 1.0), [-3.0, 0.0, 0.49, 0.5, 0.51, 1.0, 7.0], [0, 0, 0, 1, 1, 1, 1]),
        # Five buckets from -1 to 1 are half apart.
        ((5, -1.0, 1.0), [-0.76, -0.74, 0.2, 0.3, 0.75], [-1.0, -0.5, 0.0, 0.5, 1.0]),
        # Three from 2 to 8: 2, 5, 8.
        ((3, 2.0, 8.0), [0.0, 3.4, 3.5, 6.4, 6.5], [2.0, 2.0, 5.0, 5.0, 8.0]),
    ],
)
def test_buckets_by_hand(
    settings: tuple[int, float, float], values: list[float], expected: list[float]
) -> None:
    """Numbers are clipped to the ends and go to the nearest bucket."""
    # float64, in which a bucket's place is rounded a few times.
    np.testing.assert_allclose(quantize([values], *settings), [expected], rtol=1e-15)


def test_fewer_than_two_buckets_are_refused() -> None:
    with pytest.raises(ValueError, match="1 buckets"):
        quantize([[0.0]], 1, 0.0, 1.0)
