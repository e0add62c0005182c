"""LinearSDCA: linear models trained by dual coordinate ascent, compared with stock's."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.conftest import HAS_STOCK
from compat_tests.programs import census, jobs
from compat_tests.support.graph_ops import Ops, assert_same_ops
from estimator_bridge import errors, estimator
from estimator_bridge.estimator import v2

if HAS_STOCK:
    from compat_tests.support import stock

OURS = {1: estimator, 2: v2}

_TWO_PARTS = tf.compat.v1.fixed_size_partitioner(2)
JOBS: dict[str, tuple[int, str, dict[str, Any], dict[str, Any]]] = {
    "v1 classifier": (1, "Classifier", {}, {}),
    "v2 classifier": (2, "Classifier", {}, {"weight_column": "weight"}),
    "v1 regressor": (1, "Regressor", {"symmetric_l1_regularization": 0.3}, {}),
    "v2 regressor": (2, "Regressor", {"num_table_shards": 3}, {"weight_column": "weight"}),
    "adaptive": (2, "Classifier", {"adaptive": True, "num_loss_partitions": 2}, {}),
    "parts": (1, "Classifier", {"symmetric_l1_regularization": 0.1}, {"partitioner": _TWO_PARTS}),
}


def input_fn(task: str, epochs: int | None = None, few: bool = False) -> Any:
    """Returns a dataset of people with names, by 32; or of few people, one by one.

    The op takes the examples of a batch in an order by chance, which no seed decides: two trainings
    are equal if a batch has one example.
    """
    columns = census.people()
    features = {name: columns[name] for name in ("age", "job", "hobbies", "weight")}
    features["name"] = np.array([f"person {row}" for row in range(len(columns["age"]))], object)
    labels = columns[census.label(task, "plain")]
    data = tf.data.Dataset.from_tensor_slices((features, labels))
    return (data.take(25) if few else data).repeat(epochs).batch(1 if few else 32)


def make(namespace: Any, case: str, folder: pathlib.Path) -> Any:
    _, task, settings, options = JOBS[case]
    config = namespace.RunConfig(tf_random_seed=3, checkpoint_save_graph_def=False)
    optimizer = namespace.experimental.LinearSDCA("name", **settings)
    kind = getattr(namespace, f"Linear{task}")
    return kind(
        census.linear_columns(),
        model_dir=str(folder),
        optimizer=optimizer,
        config=config,
        **options,
    )


@pytest.mark.stock
@pytest.mark.full
@pytest.mark.parametrize("case", JOBS)
def test_values_are_those_of_stock(case: str, tmp_path: pathlib.Path) -> None:
    """Weights, tables of examples, metrics and predictions are stock's by 0.0; names of ops, too.

    Of the ops that train some differ, which `known_differences.OPS` lists.
    """
    version, task, *_ = JOBS[case]
    sides = {"ours": OURS[version], "stock": stock.NAMESPACES[version]}
    graphs = {side: Ops() for side in sides}
    estimators = {
        side: make(namespace, case, tmp_path / side).train(
            lambda: input_fn(task, few=True), steps=60, hooks=[graphs[side]]
        )
        for side, namespace in sides.items()
    }
    assert_same_ops("train", graphs["ours"], graphs["stock"], "SDCA")
    for job in estimators.values():
        job.train(lambda: input_fn(task, few=True), steps=20)

    difference, name = jobs.largest_difference(*(jobs.saved(job) for job in estimators.values()))
    assert difference == 0.0, name
    evaluated = [job.evaluate(lambda: input_fn(task, 1)) for job in estimators.values()]
    assert evaluated[0] == evaluated[1]
    predicted = [list(job.predict(lambda: input_fn(task, 1))) for job in estimators.values()]
    tf.nest.map_structure(np.testing.assert_array_equal, *predicted)


@pytest.mark.full
@pytest.mark.parametrize("case", ["v2 classifier", "parts", "v2 regressor"])
def test_the_ascent_ends_at_the_minimum(case: str, tmp_path: pathlib.Path) -> None:
    """After many epochs the duality gap is small, and every example has its row in the tables."""
    version, task, *_ = JOBS[case]
    job = make(OURS[version], case, tmp_path).train(lambda: input_fn(task), steps=400)
    saved = jobs.saved(job)
    tables = [value for key, value in saved.items() if key.endswith("-values")]
    rows = np.concatenate(tables)
    weights = [value for key, value in saved.items() if key.endswith("weights")]

    # A row is not zero where an example is. Its numbers: the primal loss is second, the dual third.
    rows = rows[rows[:, 3] > 0]
    assert len(rows) == len(census.people()["age"])
    settings = JOBS[case][2]
    l1, l2 = settings.get("symmetric_l1_regularization", 0.0), 1.0
    regularization = sum(l1 * np.abs(each).sum() + l2 * np.square(each).sum() for each in weights)
    gap = (rows[:, 1].sum() + rows[:, 2].sum() + regularization) / rows[:, 3].sum()
    # The losses are those at the time of an example's step, so that the gap is not exactly its own.
    assert abs(gap) < 0.02


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "combiner": ("LinearClassifier", {"sparse_combiner": "mean"}, 'must be "sum"'),
    "classes": ("LinearClassifier", {"n_classes": 3}, "multi-class"),
    "numbers": ("LinearRegressor", {"label_dimension": 2}, "one-dimensional label"),
}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(case: str, version: int) -> None:
    kind, options, words = REFUSED[case]
    namespace = OURS[version]
    optimizer = namespace.experimental.LinearSDCA("name")
    columns = [tf.feature_column.numeric_column("age")]
    with pytest.raises(errors.InvalidInput, match=words):
        getattr(namespace, kind)(columns, optimizer=optimizer, **options)


IN_TRAINING: dict[str, tuple[dict[str, Any], str]] = {
    "names": ({"example_id_column": "id"}, "`example_id_column` is 'id', but the features are"),
    "l2": ({"example_id_column": "name", "symmetric_l2_regularization": 0.0}, "be positive"),
    "l1": ({"example_id_column": "name", "symmetric_l1_regularization": -1.0}, "non-negative"),
}


@pytest.mark.full
@pytest.mark.parametrize("case", IN_TRAINING)
def test_settings_that_cannot_train_are_refused(case: str, tmp_path: pathlib.Path) -> None:
    settings, words = IN_TRAINING[case]
    job = v2.LinearClassifier(
        census.linear_columns(),
        model_dir=str(tmp_path),
        optimizer=v2.experimental.LinearSDCA(**settings),
    )
    with pytest.raises(errors.InvalidInput, match=words):
        job.train(lambda: input_fn("Classifier"), steps=1)
