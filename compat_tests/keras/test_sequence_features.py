"""Layers concatenate raw sequence columns step by step, and a head scores every step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.keras.test_heads import rounding
from estimator_bridge.canned.heads.classifier_heads import BinaryClassHead, MultiClassHead
from estimator_bridge.canned.heads.composed_heads import SequentialHead
from tf2_engine import errors, preprocessing
from tf2_engine import keras as ours

WORDS = preprocessing.Sequence(preprocessing.VocabularyList("word", ("a", "b", "c")))
FEATURES = {
    "word": tf.sparse.from_dense([["b", "a", "x"], ["c", "", ""]]),
    "size": tf.sparse.from_dense([[1.0, 2.0, 3.0], [4.0, 0.0, 0.0]]),
    "pair": tf.sparse.from_dense([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [7.0, 8.0, 0.0, 0.0, 0.0, 0.0]]),
}


def test_columns_of_sequences_are_concatenated_in_each_step() -> None:
    """Embeddings, indicators and numbers; a word that is not known is a step without an id."""
    embedding = ours.PlainEmbedding(WORDS, 2, initializer=tf.keras.initializers.Ones())
    pair = ours.SequenceNumeric("pair", shape=2, normalizer_fn=lambda each: each * 10.0)
    size = ours.SequenceNumeric("size", default_value=-1.0)
    layer = ours.SequenceFeatures([embedding, ours.Indicator(WORDS), pair, size])

    values, lengths = layer(FEATURES)

    # pair, size, word_embedding, word_indicator: in the order of names.
    expected = [
        [[10, 20, 1, 1, 1, 0, 1, 0], [30, 40, 2, 1, 1, 1, 0, 0], [50, 60, 3, 0, 0, 0, 0, 0]],
        [[70, 80, 4, 1, 1, 0, 0, 1], [0, 0, -1, 0, 0, 0, 0, 0], [0, 0, -1, 0, 0, 0, 0, 0]],
    ]
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(lengths, [3, 1])
    assert [each.shape for each in layer.trainable_variables] == [(3, 2)]


def test_several_ids_of_a_step_are_combined() -> None:
    """An embedding combines the ids in [batch, steps, ids], and an indicator counts them."""
    ids = preprocessing.Sequence(preprocessing.Identity("id", 4))
    ones = tf.keras.initializers.Ones()
    layer = ours.SequenceFeatures(
        [ours.PlainEmbedding(ids, 1, "sum", ones), ours.Indicator(ids)], name="both"
    )
    several = tf.SparseTensor([[0, 0, 0], [0, 0, 1], [0, 1, 0]], [3, 3, 1], [1, 2, 2])

    values, lengths = layer({"id": tf.cast(several, tf.int64)})

    np.testing.assert_array_equal(values, [[[2, 0, 0, 0, 2], [1, 0, 1, 0, 0]]])
    np.testing.assert_array_equal(lengths, [2])


def test_numbers_of_a_step_may_have_a_dimension_of_their_own() -> None:
    """A feature of [batch, steps, numbers] has as many steps as one of [batch, numbers]."""
    values = tf.sparse.from_dense([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [0.0, 0.0]]])
    numbers, lengths = ours.SequenceFeatures(ours.SequenceNumeric("n", 2))({"n": values})
    np.testing.assert_array_equal(numbers, [[[1, 2], [3, 4]], [[5, 6], [0, 0]]])
    np.testing.assert_array_equal(lengths, [2, 1])


OTHERS: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "a column of one example": (
        *(ours.Indicator(WORDS.column), FEATURES, errors.InvalidInput),
        "word_indicator.*not a sequence column",
    ),
    "dense numbers": (
        *(ours.SequenceNumeric("size"), {"size": tf.ones([2, 3])}, errors.InvalidInput),
        "'size'.*takes a SparseTensor",
    ),
    "different lengths": (
        [ours.SequenceNumeric("size"), ours.Indicator(WORDS)],
        {**FEATURES, "size": tf.sparse.from_dense([[1.0, 2.0, 0.0], [1.0, 0.0, 0.0]])},
        tf.errors.InvalidArgumentError,
        "different lengths",
    ),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_is_no_sequence_is_refused(what: str) -> None:
    columns, features, kind, words = OTHERS[what]
    with pytest.raises(kind, match=words):
        ours.SequenceFeatures(columns)(features)


def test_examples_have_the_values_of_sequences() -> None:
    """The parsing spec equals that of `tf.feature_column.make_parse_example_spec`."""
    assert ours.parse_example_spec([ours.SequenceNumeric("size"), ours.Indicator(WORDS)]) == {
        "size": tf.io.VarLenFeature(tf.float32),
        "word": tf.io.VarLenFeature(tf.string),
    }


RNG = np.random.default_rng(2)
MASK = np.arange(5) < np.array([[5], [1], [3], [4]])
LABELS = RNG.integers(2, size=[4, 5])
WEIGHTS = RNG.uniform(0.5, 1.5, [4, 5]).astype(np.float32)

HEADS: dict[str, tuple[Any, Any, int]] = {
    "two classes": (
        SequentialHead(BinaryClassHead(weight_column="weight"), "mask", "weight"),
        lambda: ours.SequenceHead(ours.BinaryClassHead(weight_column="weight"), "mask"),
        1,
    ),
    "three classes": (
        SequentialHead(MultiClassHead(3, loss_reduction="sum"), "mask"),
        lambda: ours.SequenceHead(ours.MultiClassHead(3, reduction="sum"), "mask"),
        3,
    ),
}
"""Heads, those here as functions that make new ones: their metrics go on from test to test."""


def of_steps(values: Any, is_sparse: bool) -> Any:
    """Makes values per step, and the same values as a SparseTensor of the existing steps."""
    there = tf.constant(np.argwhere(MASK))
    return tf.SparseTensor(there, values[MASK], MASK.shape) if is_sparse else tf.constant(values)


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("what", HEADS)
def test_the_head_of_steps_has_the_numbers_of_the_canned_one(what: str, is_sparse: bool) -> None:
    """Loss, metrics, predictions and signatures agree; steps after the end do not count."""
    old, make, units = HEADS[what]
    new = make()
    logits = tf.constant(RNG.normal(size=[4, 5, units]).astype(np.float32))
    mask = tf.constant(MASK)
    labels = of_steps(LABELS, is_sparse)
    features = {"weight": of_steps(WEIGHTS, is_sparse), "mask": mask}

    expected = old.loss(labels, logits, features)
    atol = rounding("loss", expected)
    loss = new.loss(labels, logits, mask, features)
    np.testing.assert_allclose(loss, expected, rtol=0, atol=atol)
    metrics = old.update_metrics(old.metrics(), features, logits, labels)
    new.update_metrics(labels, logits, mask, features)
    results = new.results()
    for name, metric in metrics.items():
        value = metric.result()
        atol = rounding(name, value)
        np.testing.assert_allclose(results[name], value, rtol=0, atol=atol, err_msg=name)
    there, here = old.predictions(logits), new.predictions(logits, mask)
    assert [*here] == [*there, "mask"]
    for key, value in there.items():
        np.testing.assert_array_equal(here[key], value, err_msg=key)
    assert "mask" not in new.signatures(here)["predict"]


def test_a_head_of_steps_is_one_of_one_kind_of_labels() -> None:
    """The head must have one kind of labels, and its weights must be the key of a feature."""
    both = ours.MultiHead([ours.RegressionHead(suffix="a"), ours.RegressionHead(suffix="b")])
    with pytest.raises(errors.InvalidSpec, match="is not a single head"):
        ours.SequenceHead(both)
    with pytest.raises(errors.InvalidSpec, match="the key of a"):
        ours.SequenceHead(ours.RegressionHead(weight_column=ours.Numeric("weight")))
