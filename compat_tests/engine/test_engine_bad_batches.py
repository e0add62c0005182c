"""Batches that the engine refuses: the message says what is wrong, and no row changes."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from compat_tests.support.bad_batches import (
    AT_RUN_TIME,
    COUNTRY_IN_COUNTRIES,
    SPEC,
    WATCHED_IN_VIDEOS,
    Bad,
    Fixture,
    Q,
    a_ragged,
    a_sparse,
    enqueue_bad,
    features,
    gradients,
    in_modes,
    unharmed,
    weights,
    without,
)
from tf2_engine import (
    TPUEmbedding,
    errors,
)

BAD_BATCHES = {
    "a feature is missing": Bad(
        lambda: without(features(), "country"),
        r"`features`.*'country'.*missing: \['country'\], unknown: \[\]",
    ),
    "a feature too much": Bad(
        lambda: features(color=tf.constant([1, 2, 3])),
        r"`features`.*missing: \[\], unknown: \['color'\]",
    ),
    "a list of features": Bad(lambda: [tf.constant([1, 2, 3])] * 4, "`features`.*structure"),
    "strings": Bad(
        lambda: features(country=tf.constant(["nl", "be", "lu"])),
        f"{COUNTRY_IN_COUNTRIES}.*int32 or int64, got string.*vocabulary",
        errors.WrongType,
    ),
    "sparse strings": Bad(
        lambda: features(watched=a_sparse("a", "b", dtype=tf.string)),
        f"{WATCHED_IN_VIDEOS}.*int32 or int64, got string.*vocabulary",
        errors.WrongType,
    ),
    "floats": Bad(
        lambda: features(country=tf.constant([0.0, 1.0, 2.0])),
        f"{COUNTRY_IN_COUNTRIES}.*int32 or int64, got float32",
        errors.WrongType,
    ),
    "a number": Bad(lambda: features(country=5), "'country'.*Tensor.*int", errors.WrongType),
    "nothing": Bad(lambda: features(watched=None), "'watched'.*Tensor.*None", errors.WrongType),
    "a list of ids": Bad(lambda: features(country=[0, 1, 2]), "`features`.*structure"),
    "a scalar": Bad(lambda: features(country=tf.constant(1)), "'country'.*rank.*1"),
    "dense ids in two columns": Bad(
        lambda: features(country=tf.constant([[0, 1], [1, 2], [2, 3]])),
        r"'country'.*last dimension.*must be 1.*\(3, 2\).*sparse or ragged",
    ),
    "ragged of rank 3": Bad(
        lambda: features(tags=tf.ragged.constant([[[1], [2]], [], [[3]]])), "'tags'.*rank 2"
    ),
    "ragged rows of vectors": Bad(
        lambda: features(
            tags=tf.RaggedTensor.from_row_lengths(tf.ones([4, 2], tf.int64), [2, 1, 1])
        ),
        "'tags': a ragged tensor.*rank 2",
    ),
    "sparse of rank 1": Bad(
        lambda: features(watched=tf.SparseTensor([[0], [1]], [1, 2], [3])),
        r"'watched'.*rank of at least 2.*\(3,\)",
    ),
    "more dense ids": Bad(
        lambda: features(country=tf.constant([0, 1, 2, 3])),
        r"'country'.*\(3,\).*\(4,\).*keep their shape",
        only_when_built=True,
    ),
    "fewer sparse rows": Bad(
        lambda: features(watched=a_sparse(1, 2, rows=2)),
        r"'watched'.*\(3,\).*\(2,\).*keep their shape",
        only_when_built=True,
    ),
    "more ragged rows": Bad(
        lambda: features(tags=a_ragged(1, 2, 3, 4)),
        r"'tags'.*\(3,\).*\(4,\).*keep their shape",
        only_when_built=True,
    ),
    "an id beyond the table": Bad(
        lambda: features(country=tf.constant([0, 1, 8])),
        f"{COUNTRY_IN_COUNTRIES}.*rows 0 to 7.*out_of_range_ids={Q}drop{Q}.*8",
        AT_RUN_TIME,
    ),
    "a sparse id below zero": Bad(
        lambda: features(watched=a_sparse(1, -5)),
        f"{WATCHED_IN_VIDEOS}.*rows 0 to 7.*out_of_range_ids={Q}drop{Q}.*-5",
        AT_RUN_TIME,
    ),
    "a coordinate outside": Bad(
        lambda: features(
            watched=tf.SparseTensor([[0, 0], [3, 0]], tf.constant([1, 2], tf.int64), [3, 2])
        ),
        f"{WATCHED_IN_VIDEOS}.*coordinate on axis 0 is outside",
        AT_RUN_TIME,
    ),
    "weights for dense ids": Bad(
        features,
        f"{COUNTRY_IN_COUNTRIES}.*Weight specified for dense input.*sparse or ragged",
        weights=lambda: weights(country=tf.ones([3])),
    ),
    "ragged weights for sparse ids": Bad(
        features,
        f"{WATCHED_IN_VIDEOS}.*RaggedTensor.*does not match type input which is SparseTensor",
        errors.WrongKind,
        weights=lambda: weights(watched=a_ragged(1.0, 2.0, dtype=tf.float32)),
    ),
    "dense weights for ragged ids": Bad(
        features,
        "'tags'.*Tensor.*does not match type input which is RaggedTensor",
        errors.WrongKind,
        weights=lambda: weights(tags=tf.ones([3])),
    ),
    "weights in words": Bad(
        features,
        f"{WATCHED_IN_VIDEOS}.*weights.*string",
        errors.WrongType,
        weights=lambda: weights(watched=a_sparse("a", "b", dtype=tf.string)),
    ),
    "fewer weights than ids": Bad(
        features,
        f"{WATCHED_IN_VIDEOS}.*one weight per id, got 1 weights for 2 ids",
        weights=lambda: weights(watched=a_sparse(1.0, dtype=tf.float32)),
    ),
    "weights without a feature": Bad(
        features, r"`weights`.*missing: \['tags'\]", weights=lambda: without(weights(), "tags")
    ),
}


@pytest.mark.parametrize(
    "mode, bad", in_modes(BAD_BATCHES, lambda bad: bad.error is AT_RUN_TIME or bad.only_when_built)
)
def test_bad_batches_are_refused(mode: str, bad: Bad) -> None:
    """A bad batch is refused with the feature and what it lacks, and then waits nowhere.

    The error is the same in a tf.function and in a graph as eagerly.
    """
    with unharmed(mode) as fixture:
        with pytest.raises(bad.error, match=f"(?s){bad.message}"):
            enqueue_bad(fixture, bad)
        if mode == "eager":
            with pytest.raises(errors.OutOfOrder, match="no batch is enqueued"):
                fixture.embedding.dequeue()


BAD_FIRST_BATCHES = {
    **{name: bad for name, bad in BAD_BATCHES.items() if not bad.only_when_built},
    "more strings": Bad(
        lambda: features(country=tf.constant(["nl", "be", "lu", "fr"])),
        "'country'.*int32 or int64, got string",
        errors.WrongType,
    ),
    "more floats": Bad(
        lambda: features(watched=a_sparse(1.0, 2.0, rows=4, dtype=tf.float32)),
        "'watched'.*int32 or int64, got float32",
        errors.WrongType,
    ),
    "more ids with weights": Bad(
        lambda: features(country=tf.constant([0, 1, 2, 3])),
        "'country'.*weights.*dense",
        weights=lambda: weights(country=tf.ones([4])),
    ),
}


@pytest.mark.parametrize("bad", BAD_FIRST_BATCHES.values(), ids=BAD_FIRST_BATCHES.keys())
def test_a_bad_first_batch_decides_nothing(bad: Bad) -> None:
    fixture = Fixture("eager", build=False)

    with pytest.raises(bad.error, match=f"(?s){bad.message}"):
        enqueue_bad(fixture, bad)

    fixture.assert_works()


def test_weights_that_the_run_finds_too_few_are_refused() -> None:
    """While a function is traced nobody knows how many weights there are; the run does."""
    embedding = TPUEmbedding(SPEC)

    @tf.function(
        input_signature=[tf.SparseTensorSpec([3, 2], kind) for kind in (tf.int64, tf.float32)]
    )
    def enqueue(watched: Any, weight: Any) -> None:
        embedding.enqueue(features(watched=watched), {**weights(), "watched": weight})

    with pytest.raises(AT_RUN_TIME, match=f"{WATCHED_IN_VIDEOS}.*one weight per id"):
        enqueue(a_sparse(1, 2, dtype=tf.int64), a_sparse(1.0, dtype=tf.float32))


def test_several_cores_take_lists() -> None:
    """With two cores anything but a list of two is refused, by the name of the argument."""
    embedding = TPUEmbedding(SPEC, num_cores=2)

    with pytest.raises(errors.InvalidInput, match=r"`features`.*each of the 2 cores"):
        embedding.enqueue(features())
    with pytest.raises(errors.InvalidInput, match=r"`features`.*each of the 2 cores"):
        embedding.enqueue([features()] * 3)
    with pytest.raises(errors.InvalidInput, match=r"`weights`.*each of the 2 cores"):
        embedding.enqueue([features()] * 2, weights())
    with pytest.raises(errors.InvalidInput, match=r"'country'.*\(3,\).*\(4,\)"):
        embedding.enqueue([features(), features(country=tf.range(4))])
    embedding.enqueue([features()] * 2)
    embedding.dequeue()
    with pytest.raises(errors.InvalidInput, match=r"`gradients`.*each of the 2 cores"):
        embedding.apply_gradients(gradients())
    embedding.apply_gradients([gradients()] * 2)
    with pytest.raises(errors.InvalidInput, match=r"`features` must be a list .* 2 cores"):
        embedding.differentiable_lookup([features()])
    with pytest.raises(errors.InvalidInput, match=r"`weights` must be a list .* 2 cores"):
        embedding.differentiable_lookup([features()] * 2, [weights()])
    _, update = embedding.differentiable_lookup([features()] * 2)
    with pytest.raises(errors.InvalidInput, match=r"`gradients` must be a list .* 2 cores"):
        update([gradients()])


# Shapes that only the run can tell.

OPEN = {
    "country": (
        tf.TensorSpec([None], tf.int64),
        {"more": lambda: tf.range(4, dtype=tf.int64), "fewer": lambda: tf.range(2, dtype=tf.int64)},
    ),
    "watched": (
        tf.SparseTensorSpec([None, None], tf.int64),
        {"more": lambda: a_sparse(1, 2, 3, 4, rows=4), "fewer": lambda: a_sparse(1, 2, rows=2)},
    ),
    "tags": (
        tf.RaggedTensorSpec([None, None], tf.int64),
        {"more": lambda: a_ragged(1, 2, 3, 4), "fewer": lambda: a_ragged(1)},
    ),
    "history": (
        tf.RaggedTensorSpec([None, None], tf.int64),
        # Three samples have six steps, but a row has to be a sample, not a step.
        {"more": lambda: a_ragged(1, 2, 3, 4, 5, 6), "fewer": lambda: a_ragged(1)},
    ),
}


@pytest.mark.parametrize("size", ["more", "fewer"])
@pytest.mark.parametrize("name", OPEN)
def test_a_function_of_open_shape_checks_the_batch(name: str, size: str) -> None:
    """A batch of another size than the engine's fails by name, though no shape is known before."""
    spec, values = OPEN[name]
    with unharmed("function") as fixture:

        @tf.function(input_signature=[spec])
        def step(value: Any) -> Any:
            fixture.embedding.enqueue(features(**{name: value}), training=False)
            return fixture.embedding.dequeue()

        with pytest.raises(AT_RUN_TIME, match=rf"(?s){Q}{name}{Q} \("):
            step(values[size]())
