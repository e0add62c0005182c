"""Gradients that the engine refuses, and gradients that it treats as zeros."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cases.optimizers import MODES
from compat_tests.support.bad_batches import (
    AT_RUN_TIME,
    COUNTRY_IN_COUNTRIES,
    FIRST,
    ROWS,
    VIDEOS,
    WATCHED,
    WATCHED_IN_VIDEOS,
    Fixture,
    assert_same_rows,
    features,
    first_rows,
    gradients,
    in_modes,
    ones_after,
    unharmed,
    without,
)
from tf2_engine import (
    SGD,
    EngineSpec,
    TableSpec,
    TPUEmbedding,
    errors,
)

BAD_GRADIENTS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a row too much": (
        lambda: gradients(country=tf.ones([4, 2])),
        errors.InvalidInput,
        rf"{COUNTRY_IN_COUNTRIES}.*shape \(4, 2\), expected \[3, 2\]",
    ),
    "flattened": (
        lambda: gradients(history=tf.ones([6, 2])),
        errors.InvalidInput,
        r"'history' \(table 'videos'\).*shape \(6, 2\), expected \[3, 2, 2\]",
    ),
    "float64": (
        lambda: gradients(country=tf.ones([3, 2], tf.float64)),
        errors.WrongType,
        f"{COUNTRY_IN_COUNTRIES}.*float32, got float64",
    ),
    "ints": (
        lambda: gradients(watched=tf.ones([3, 2], tf.int32)),
        errors.WrongType,
        f"{WATCHED_IN_VIDEOS}.*float32, got int32",
    ),
    "an array": (
        lambda: gradients(watched=np.ones([3, 2], np.float32)),
        errors.WrongKind,
        f"{WATCHED_IN_VIDEOS}.*found non-tensor type ndarray",
    ),
    "a number": (
        lambda: gradients(country=1.0),
        errors.WrongKind,
        f"{COUNTRY_IN_COUNTRIES}.*found non-tensor type float",
    ),
    "a feature is missing": (
        lambda: without(gradients(), "tags"),
        errors.InvalidInput,
        r"`gradients`.*missing: \['tags'\]",
    ),
    "a feature too much": (
        lambda: gradients(color=tf.ones([3, 2])),
        errors.InvalidInput,
        r"`gradients`.*unknown: \['color'\]",
    ),
}


@pytest.mark.parametrize(
    "mode, bad",
    in_modes(BAD_GRADIENTS, lambda bad: bad[-1].startswith(COUNTRY_IN_COUNTRIES)),
)
def test_bad_gradients_are_refused(
    mode: str, bad: tuple[Callable[[], Any], type[Exception], str]
) -> None:
    """A bad gradient is refused with its feature, and the batch waits for good ones."""
    make, expected, message = bad
    with unharmed(mode) as fixture:
        before = fixture.rows
        fixture.look_up()
        with pytest.raises(expected, match=f"(?s){message}"):
            fixture.call(lambda: fixture.embedding.apply_gradients(make()))
        assert_same_rows(fixture.rows, before)
        # With zeros, so that rows stay as they are; a second time nothing waits any more.
        fixture.apply_zeros()
        out_of_order = AT_RUN_TIME if mode == "function" else errors.OutOfOrder
        with pytest.raises(out_of_order, match="no batch waits"):
            fixture.apply_zeros()


def test_a_list_is_not_taken_for_a_tuple() -> None:
    """Gradients in a list are refused in the words of stock where the features are a tuple."""
    emb = tf.tpu.experimental.embedding
    table = emb.TableConfig(8, 2, name="videos")
    config = tuple(emb.FeatureConfig(table, name=name) for name in ("watched", "liked"))
    embedding = TPUEmbedding(config, SGD(0.1))
    embedding.enqueue((tf.constant([1, 2]), tf.constant([3, 4])))
    activations = embedding.dequeue()

    with pytest.raises(errors.WrongType, match="structures don't have the same nested structure"):
        embedding.apply_gradients(list(activations))


@pytest.mark.parametrize("shape", [(4, 2), (2, 2), (6, 1)], ids=str)
def test_a_gradient_of_open_shape_is_checked(shape: tuple[int, int]) -> None:
    """A gradient whose shape only the run can tell must fit all the same, whatever its size."""
    with unharmed("function") as fixture:

        @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
        def step(gradient: tf.Tensor) -> None:
            fixture.embedding.enqueue(features())
            fixture.embedding.dequeue()
            fixture.embedding.apply_gradients(gradients(country=gradient))

        with pytest.raises(AT_RUN_TIME):
            step(tf.ones(shape))


@pytest.mark.parametrize("mode", MODES)
def test_no_gradient_counts_as_zeros(mode: str) -> None:
    """A gradient of None counts as zeros, with a warning that names the feature and the caller."""
    fixture = Fixture(mode)

    def step() -> Any:
        fixture.embedding.enqueue(features())
        activations = fixture.embedding.dequeue()
        sent = tf.nest.map_structure(ones_after, activations)
        return fixture.embedding.apply_gradients({**sent, "country": None})

    with pytest.warns(UserWarning, match=rf"{COUNTRY_IN_COUNTRIES}.*None.*zeros") as caught:
        fixture.call(step)

    np.testing.assert_array_equal(fixture.rows["countries"], FIRST)
    np.testing.assert_array_equal(fixture.rows["videos"], FIRST - (FIRST[:, :1] > 0))
    if mode == "eager":  # In functions the code that runs is made from this file.
        assert [warning.filename for warning in caught] == [__file__]


def test_no_gradient_still_updates_rows() -> None:
    """Rows of a batch are updated by a gradient of None as by zeros: here, they decay."""
    table = TableSpec("videos", ROWS, 2, "sum", SGD(1.0, weight_decay_factor=0.5), first_rows)
    embedding = TPUEmbedding(EngineSpec((table,), (WATCHED,)))
    embedding.enqueue({"watched": tf.constant([2, 4])})
    embedding.dequeue()

    with pytest.warns(UserWarning, match="None"):
        embedding.apply_gradients({"watched": None})

    expected = FIRST.copy()
    expected[[2, 4]] /= 2
    np.testing.assert_array_equal(embedding.tables["videos"].variables["parameters"][0], expected)


def test_no_gradient_needs_a_known_size() -> None:
    """With an open batch size a gradient of None is refused, and the message says what to pass."""
    embedding = TPUEmbedding(EngineSpec((VIDEOS,), (WATCHED,)))
    embedding.build_for([(None,)])
    embedding.enqueue({"watched": tf.constant([2, 4])})
    embedding.dequeue()

    with pytest.raises(errors.InvalidInput, match=r"'watched'.*None.*not fixed.*Pass zeros"):
        embedding.apply_gradients({"watched": None})
    embedding.apply_gradients({"watched": tf.zeros([2, 2])})


def test_indexed_slices_are_gradients() -> None:
    """A gradient that TensorFlow hands over as IndexedSlices counts as the tensor it stands for."""
    fixture = Fixture("eager")
    fixture.embedding.enqueue(features())
    fixture.embedding.dequeue()

    slices = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([1, 1]), tf.constant([3, 2]))
    fixture.embedding.apply_gradients(gradients(country=slices))

    expected = FIRST.copy()
    expected[1] -= 2
    np.testing.assert_array_equal(fixture.rows["countries"], expected)
