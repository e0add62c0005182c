"""Sums of indexed rows add terms in order, and handle rows without terms."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tf2_engine.backends.host import update
from tf2_engine.backends.host.update import RowGradients
from tf2_engine.row_sums import add_rows

ROWS, DIM, COUNT = 50, 5, 7


def _in_order(
    rows: np.ndarray, row_of: np.ndarray, into: np.ndarray, count: int = COUNT
) -> np.ndarray:
    sums = np.zeros((count, DIM), np.float32)
    for i, j in zip(row_of, into, strict=True):
        sums[j] += rows[i]
    return sums


@pytest.mark.parametrize("num_terms", [0, 1, 7, 8, 9, 1000])
@pytest.mark.parametrize("gpu", [False, True], ids=["on CPUs", "as on GPUs"])
def test_terms_are_added_in_their_order(
    num_terms: int, gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums are those of a loop over the terms, to the bit, whatever the order of rows is."""
    if gpu:
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    rng = np.random.default_rng(num_terms)
    rows = rng.normal(size=(ROWS, DIM)).astype(np.float32)
    row_of, into = rng.integers(ROWS, size=num_terms), rng.integers(COUNT - 1, size=num_terms)

    sums = tf.function(add_rows)(rows, row_of, into, tf.constant(COUNT, tf.int64))
    of_each = tf.function(add_rows)(rows[row_of], None, into, tf.constant(COUNT, tf.int64))

    expected = _in_order(rows, row_of, into)
    np.testing.assert_array_equal(sums, expected)
    np.testing.assert_array_equal(of_each, expected)


@pytest.mark.parametrize("indexed", ["none", "first", "last", "all"])
def test_gradients_of_several_features_are_summed_by_id(indexed: str) -> None:
    """Features with a gradient for each id, and with one for several, meet in one table."""
    rng = np.random.default_rng(3)
    contributions = []
    for position, num_ids in enumerate((9, 0, 14)):
        has_index = indexed == "all" or position == {"first": 0, "last": 2}.get(indexed)
        num_gradients = 4 if has_index else num_ids
        contributions.append(
            RowGradients(
                tf.constant(rng.integers(COUNT, size=num_ids), tf.int64),
                tf.constant(rng.normal(size=(num_gradients, DIM)), tf.float32),
                tf.constant(rng.integers(4, size=num_ids), tf.int64) if has_index else None,
            )
        )
    expanded = [contribution.of_each_id() for contribution in contributions]
    ids = np.concatenate([each.ids for each in expanded])
    gradients = np.concatenate([each.gradients for each in expanded])

    distinct, sums = update.sum_by_id(contributions)

    assert sorted(distinct.numpy()) == sorted(set(ids))
    expected = _in_order(gradients, np.arange(len(ids)), ids)
    np.testing.assert_array_equal(sums, expected[distinct.numpy()])
