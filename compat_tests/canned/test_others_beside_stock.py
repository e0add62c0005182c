"""KMeans and recurrent estimators have the same names and values as stock's."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.conftest import HAS_STOCK
from compat_tests.programs import jobs
from compat_tests.references.tolerance import allowed
from compat_tests.support.graph_ops import MODES, Ops, assert_same_ops
from estimator_bridge import errors, estimator
from estimator_bridge.estimator import v2

if HAS_STOCK:
    from compat_tests.support import stock

_RNG = np.random.default_rng(2)
POINTS = np.concatenate(
    [_RNG.normal(center, 0.3, size=[40, 2]) for center in ((0, 0), (3, 0), (0, 3))]
).astype(np.float32)
LENGTHS = _RNG.integers(1, 6, size=64)
WORDS = [_RNG.integers(30, size=length) for length in LENGTHS]
AGES = _RNG.random([64, 1]).astype(np.float32)
CLASSES = np.array([np.sum(words) % 3 for words in WORDS])


def points() -> Any:
    """Returns all points as one batch, over and over; as a dict of two columns."""
    features = {"x": POINTS[:, :1], "y": POINTS[:, 1:]}
    return tf.data.Dataset.from_tensor_slices(features).batch(120).repeat()


def once() -> Any:
    return points().take(1)


ONE_THREAD = tf.compat.v1.ConfigProto(
    inter_op_parallelism_threads=1, intra_op_parallelism_threads=1, use_per_session_threads=True
)
"""Of the steps' ops some read the centers that others update, in an order that threads choose: one
run in sixteen ended elsewhere, stock's as ours. Without threads of its own a session has those of
the first one in the process."""


def kmeans(namespace: Any, folder: pathlib.Path, **options: Any) -> Any:
    config = namespace.RunConfig(
        tf_random_seed=5,
        model_dir=str(folder),
        session_config=ONE_THREAD,
        checkpoint_save_graph_def=False,
    )
    cls = namespace.experimental.KMeans
    return cls(3, config=config, seed=4, **options)


KMEANS: dict[str, dict[str, Any]] = {
    "random": {},
    "plus plus": {"initial_clusters": "kmeans_plus_plus", "use_mini_batch": False},
    "given": {"initial_clusters": POINTS[[0, 50, 100]], "mini_batch_steps_per_iteration": 2},
    "cosine": {"distance_metric": "cosine", "relative_tolerance": 0.01, "use_mini_batch": False},
}


def found_by(job: Any) -> dict[str, Any]:
    return {
        "centers": job.cluster_centers(),
        "score": job.score(once),
        "indices": list(job.predict_cluster_index(once)),
        "distances": list(job.transform(once)),
    }


@pytest.mark.stock
@pytest.mark.full
@pytest.mark.parametrize("case", KMEANS)
def test_clusters_are_those_of_stock(case: str, tmp_path: pathlib.Path) -> None:
    """Centers, scores, indices, distances and all variables are stock's by 0.0; ops, too."""
    sides = {"ours": estimator, "stock": stock.ESTIMATOR}
    graphs = {side: Ops() for side in sides}
    estimators = {
        side: kmeans(namespace, tmp_path / side, **KMEANS[case]).train(
            points, steps=10, hooks=[graphs[side]]
        )
        for side, namespace in sides.items()
    }

    assert_same_ops("train", graphs["ours"], graphs["stock"])
    assert jobs.largest_difference(*(jobs.saved(job) for job in estimators.values()))[0] == 0.0
    tf.nest.map_structure(
        np.testing.assert_array_equal, *(found_by(job) for job in estimators.values())
    )


def test_clusters_are_found(tmp_path: pathlib.Path) -> None:
    """Three clouds of points get a center each, near their middles; training counts its steps."""
    job = kmeans(estimator, tmp_path, initial_clusters="kmeans_plus_plus").train(points, steps=10)
    centers = job.cluster_centers()
    predicted = found_by(job)

    assert sorted(centers.round().tolist()) == [[0, 0], [0, 3], [3, 0]]
    assert len({predicted["indices"][0], predicted["indices"][40], predicted["indices"][80]}) == 3
    score = sum(min(each) ** 2 for each in predicted["distances"])
    # The squares of the same 120 distances, summed in another order.
    assert abs(predicted["score"] - score) <= allowed(n_terms=120, steps=0, scale=score)
    assert job.get_variable_value("global_step") == 10
    assert "clusters" in job.get_variable_names()


@pytest.mark.parametrize(
    "options, words",
    [
        ({"initial_clusters": "best"}, "Unsupported initialization algorithm 'best'"),
        ({"distance_metric": "far"}, "Unsupported distance metric 'far'"),
    ],
)
def test_unknown_ways_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(errors.InvalidInput, match=words):
        estimator.experimental.KMeans(2, **options)


def sequences(by_step: bool) -> Callable[[], Any]:
    """Returns an input_fn of sequences of words with a context, and a class for each, or step."""

    def input_fn() -> Any:
        indices = [(row, step) for row, words in enumerate(WORDS) for step in range(len(words))]
        values = np.concatenate(WORDS)
        words = tf.SparseTensor(indices, values, [64, 5])
        classes = np.zeros([64, 5], np.int64)
        classes[tuple(np.transpose(indices))] = values % 3
        labels = classes if by_step else CLASSES
        data = tf.data.Dataset.from_tensor_slices(({"words": words, "age": AGES}, labels))
        return data.repeat(4).batch(16)

    return input_fn


RECURRENT: dict[str, dict[str, Any]] = {
    "plain": {"units": [6]},
    "lstm": {"units": 6, "cell_type": "lstm", "optimizer": "SGD"},
    "two layers": {"units": [6, 4], "cell_type": "gru"},
    "every step": {"units": 6, "cell_type": "simple_rnn", "return_sequences": True},
}


def recurrent(namespace: Any, folder: pathlib.Path, case: str) -> Any:
    api: Any = v2 if namespace is v2.experimental else stock.NAMESPACES[2]
    column = tf.feature_column
    words = column.sequence_categorical_column_with_identity("words", 30)
    return namespace.RNNClassifier(
        [column.embedding_column(words, 4)],
        [column.numeric_column("age")],
        n_classes=3,
        model_dir=str(folder),
        config=api.RunConfig(tf_random_seed=5, checkpoint_save_graph_def=False),
        **RECURRENT[case],
    )


@pytest.mark.stock
@pytest.mark.full
@pytest.mark.parametrize("case", RECURRENT)
def test_recurrent_networks_are_those_of_stock(case: str, tmp_path: pathlib.Path) -> None:
    """Variables, metrics and predictions are stock's by 0.0, with the same names, of ops too.

    Keras draws the start of the cells with Python's generator, so both trainings set that.
    """
    input_fn = sequences(by_step=case == "every step")
    sides = {"ours": v2.experimental, "stock": stock.NAMESPACES[2].experimental}
    graphs = {side: {mode: Ops() for mode in MODES} for side in sides}
    results = {}
    for side, namespace in sides.items():
        tf.keras.utils.set_random_seed(5)
        train, evaluate, predict = ([graphs[side][mode]] for mode in MODES)
        job = recurrent(namespace, tmp_path / side, case).train(input_fn, hooks=train)
        metrics = job.evaluate(input_fn, hooks=evaluate)
        results[side] = jobs.saved(job), metrics, list(job.predict(input_fn, hooks=predict))

    ours, theirs = results["ours"], results["stock"]
    assert jobs.largest_difference(ours[0], theirs[0])[0] == 0.0
    assert ours[1] == theirs[1]
    tf.nest.map_structure(np.testing.assert_array_equal, ours[2], theirs[2])
    for mode in MODES:
        assert_same_ops(mode, graphs["ours"][mode], graphs["stock"][mode])


def test_a_network_learns_from_the_steps(tmp_path: pathlib.Path) -> None:
    """With a label for every step it learns those; the mask says which steps there are."""
    input_fn = sequences(by_step=True)
    job = recurrent(v2.experimental, tmp_path, "every step")
    before = job.train(input_fn, steps=1).evaluate(input_fn)
    after = job.train(lambda: input_fn().repeat(10)).evaluate(input_fn)

    assert after["average_loss"] < before["average_loss"]
    first = next(iter(job.predict(input_fn)))
    assert first["sequence_mask"].tolist() == [step < LENGTHS[0] for step in range(5)]


@pytest.mark.parametrize(
    "options, words",
    [
        ({"units": [3], "rnn_cell_fn": list}, "units and cell_type must not be specified"),
        ({"return_sequences": True}, "must be a `_SequentialHead` object"),
    ],
)
def test_misuse_of_recurrent_estimators_is_refused(options: Any, words: str) -> None:
    with pytest.raises(errors.InvalidInput, match=words):
        v2.experimental.RNNEstimator(v2.BinaryClassHead(), [], **options)


@pytest.mark.parametrize(
    "make, words",
    [
        (
            lambda age: estimator.DNNClassifier(None, [age]),
            "hidden_units must list .*, got None",
        ),
        (
            lambda age: estimator.DNNRegressor(16, [age]),
            r"hidden_units must .*, got 16\. Give, for example, \[32, 16\]",
        ),
        (lambda age: v2.DNNClassifier(16, [age]), "hidden_units must list .*, got 16"),
        (
            lambda age: v2.experimental.RNNEstimator(v2.BinaryClassHead(), [age], units=4),
            r"units must list .*, got 4\. Give, .* or give a number, and .* as `cell_type`",
        ),
        (
            lambda age: v2.experimental.RNNClassifier([age], cell_type="lstm"),
            "units must list .*, got None",
        ),
    ],
)
def test_widths_that_are_no_list_are_refused(make: Any, words: str) -> None:
    """The error has the value and a list to give; stock's is that an int is not iterable."""
    job = make(tf.feature_column.numeric_column("age"))
    batch = {"age": [[1.0]]}, [[1]]
    with pytest.raises(errors.InvalidInput, match=words):
        job.train(lambda: tf.data.Dataset.from_tensors(batch), steps=1)
