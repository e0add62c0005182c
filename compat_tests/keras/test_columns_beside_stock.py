"""Layers over raw columns compute the same as TensorFlow's feature columns, including weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.support.tiers import quick
from estimator_bridge.migrate.legacy_specs.read_inputs import read_input
from tf2_engine import errors, preprocessing, tf_compat
from tf2_engine import keras as ours

FC = tf.feature_column
WORDS = ("ant", "bee", "cat")
DIM = 3


def _weighted(column: Any) -> Any:
    return FC.weighted_categorical_column(column, "weight")


def _words(**settings: Any) -> Any:
    return FC.categorical_column_with_vocabulary_list("word", WORDS, **settings)


def _buckets() -> Any:
    return FC.bucketized_column(FC.numeric_column("number"), [-1.0, 0.0, 2.5])


IDS: dict[str, Callable[[], Any]] = {
    "identity": lambda: FC.categorical_column_with_identity("int", 9),
    "identity, default": lambda: FC.categorical_column_with_identity("int", 9, default_value=2),
    "hashed": lambda: FC.categorical_column_with_hash_bucket("word", 7),
    "list": _words,
    "list, default": lambda: _words(default_value=1),
    "list, out of vocabulary": lambda: _words(num_oov_buckets=2),
    "buckets": _buckets,
    "cross": lambda: FC.crossed_column(["word", "int"], 11),
    "cross of columns": lambda: FC.crossed_column([_buckets(), _words(), "int"], 11),
}
"""Makes the columns of ids, anew for each test."""

COLUMNS = {
    **IDS,
    **{f"weighted {name}": lambda make=make: _weighted(make()) for name, make in IDS.items()},
}

CELLS = [[0, 0], [0, 1], [0, 2], [2, 0], [2, 1], [3, 0], [3, 1]]
OF_RANK_3 = [[0, 0, 0], [0, 0, 1], [0, 0, 2], [2, 0, 0], [2, 0, 1], [3, 0, 0], [3, 0, 1]]


def _sparse(values: list[Any], cells: Any = CELLS, shape: Any = (4, 3)) -> Any:
    kind = tf.int64 if isinstance(values[0], int) else None
    return tf.SparseTensor(np.array(cells, np.int64), tf.constant(values, kind), shape)


def _ids(cells: Any = CELLS, shape: Any = (4, 3)) -> dict[str, Any]:
    words = _sparse(["ant", "cat", "ant", "dog", "bee", "dog", "bee"], cells, shape)
    ints = _sparse([3, 5, 3, 8, 0, 1, 1], cells, shape)
    return {"number": tf.constant([[0.0], [-4.0], [1.0], [9.0]]), "word": words, "int": ints}


POSITIVE = [2.0, 0.5, 3.0, 7.0, 1.5, 4.0, 0.25]
SPARSE, WEIGHTS = _ids(), _sparse(POSITIVE)
NONE = tf.zeros([0, 2], tf.int64)
FEATURES: dict[str, dict[str, Any]] = {
    "weights": SPARSE | {"weight": WEIGHTS},
    "no weights": SPARSE,
    "zeros": SPARSE | {"weight": _sparse([2.0, 0.0, 3.0, 0.0, 0.0, 4.0, 0.25])},
    "below zero": SPARSE | {"weight": _sparse([2.0, -0.5, -3.0, -7.0, -1.5, 4.0, -4.0])},
    "infinite": SPARSE | {"weight": _sparse([2.0, np.inf, 3.0, 7.0, 1.5, 4.0, 0.25])},
    "in other cells": SPARSE
    | {"weight": _sparse(POSITIVE, [[0, 0], [0, 1], [1, 0], [1, 1], [1, 2], [2, 0], [2, 1]])},
    "of another width": SPARSE | {"weight": _sparse(POSITIVE, shape=(4, 9))},
    "fewer": SPARSE | {"weight": _sparse(POSITIVE[:-1], CELLS[:-1])},
    "dense weights": SPARSE
    | {"weight": tf.constant([[2.0, 0.5, 3.0], [0, 0, 0], [7.0, 1.5, 0], [4.0, 0.25, 0]])},
    "dense": {
        "number": SPARSE["number"],
        "word": tf.constant([["ant", ""], ["", ""], ["bee", "bee"], ["x", "ant"]]),
        "int": tf.constant([[3, -1], [-1, -1], [0, 1], [5, 5]], tf.int64),
        "weight": tf.constant([[2.0, 0.0], [0.0, 0.0], [4.0, 5.0], [6.0, 7.0]]),
    },
    "vectors": {
        "number": SPARSE["number"],
        "word": tf.constant(["ant", "dog", "bee", "ant"]),
        "int": tf.constant([3, 8, 1, 0], tf.int64),
        "weight": tf.constant([2.0, 0.5, 1.0, 3.0]),
    },
    "out of range": SPARSE | {"int": _sparse([3, 99, -5, 8, -1, 1, 1]), "weight": WEIGHTS},
    "nothing": SPARSE
    | {
        "word": tf.SparseTensor(NONE, tf.constant([], tf.string), [4, 2]),
        "int": tf.SparseTensor(NONE, tf.constant([], tf.int64), [4, 2]),
        "weight": tf.SparseTensor(NONE, tf.constant([], tf.float32), [4, 2]),
    },
    "a dimension more": _ids(OF_RANK_3, (4, 1, 3))
    | {"weight": _sparse(POSITIVE, OF_RANK_3, (4, 1, 3))},
}


def _table(rows: int) -> Any:
    return np.random.default_rng(rows).normal(size=(rows, DIM)).astype(np.float32)


class _Weights:
    """Gives a feature column the variables that it asks for."""

    def __init__(self, rows: int) -> None:
        self._table = tf.constant(_table(rows))

    def get_variable(self, *_: object, **__: object) -> Any:
        return self._table

    def has_resource(self, *_: object) -> bool:
        return False

    def add_resource(self, *_: object) -> None:
        pass


def _of_stock(column: Any, of_ids: Any, combiner: str, features: Mapping[str, Any]) -> Any:
    """Computes the output of TensorFlow's column in a layer or in a linear model."""
    cache = tf.__internal__.feature_column.FeatureTransformationCache(dict(features))
    state = _Weights(of_ids.num_buckets)
    if combiner.startswith("linear"):
        return tf_compat.weighted_sum(
            column=column,
            transformation_cache=cache,
            state_manager=state,
            sparse_combiner=combiner.split()[-1],
            weight_var=state.get_variable(),
        )
    dense = column.get_dense_tensor(cache, state)
    return tf.reshape(dense, [tf.shape(dense)[0], column.variable_shape.num_elements()])


CONSUMERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "indicator": (FC.indicator_column, lambda ids: ours.DenseFeatures(ours.Indicator(ids))),
    "linear indicator": (
        FC.indicator_column,
        lambda ids: ours.LinearFeatures(ours.Indicator(ids), DIM),
    ),
    **{
        combiner: (
            lambda column, combiner=combiner: FC.embedding_column(column, DIM, combiner),
            lambda ids, combiner=combiner: ours.DenseFeatures(
                ours.PlainEmbedding(ids, DIM, combiner)
            ),
        )
        for combiner in ("sum", "mean", "sqrtn")
    },
    **{
        f"linear {combiner}": (
            lambda column: column,
            lambda ids, combiner=combiner: ours.LinearFeatures(ids, DIM, combiner),
        )
        for combiner in ("sum", "mean", "sqrtn")
    },
}
"""By a name that has the combiner: TensorFlow's column of a column of ids, and our layer."""


def _result(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return np.asarray(function(*arguments))
    except (ValueError, tf.errors.InvalidArgumentError, errors.EngineError):
        return "refused"


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("name", quick(["list, out of vocabulary", "weighted list"], COLUMNS))
def test_a_layer_computes_what_the_feature_column_does(name: str, consumer: str) -> None:
    """For all weights, both sides compute the same, apart from rounding, or both refuse them.

    Only TensorFlow refuses an indicator of weighted ids with more than two dimensions.
    """
    ids = COLUMNS[name]()
    of_stock, of_ours = CONSUMERS[consumer]
    column, layer = of_stock(ids), of_ours(read_input(ids))
    layer.build(None)
    if layer.get_weights():
        bias = [np.zeros(DIM, np.float32)] if "linear" in consumer else []
        layer.set_weights([_table(ids.num_buckets), *bias])

    for case, features in FEATURES.items():
        expected = _result(_of_stock, column, ids, consumer, features)
        computed = _result(layer, features)
        if case == "a dimension more" and "weighted" in name and "indicator" in consumer:
            assert isinstance(expected, str)  # TensorFlow cuts two dimensions out of all of them.
        elif isinstance(expected, str):
            assert isinstance(computed, str), f"{case}: the feature column refuses it"
        else:
            np.testing.assert_allclose(computed, expected, 1e-6, 1e-6, err_msg=case)


STEPS = [[0, 0, 0], [0, 0, 1], [0, 1, 0], [2, 0, 0], [2, 0, 1], [3, 0, 0], [3, 1, 0]]


@pytest.mark.parametrize("cells, shape", [(CELLS, (4, 3)), (STEPS, (4, 2, 2))])
def test_weights_count_in_each_step_of_a_sequence(cells: Any, shape: Any) -> None:
    """Each step is weighted like an example without steps. TensorFlow's indicator refuses that."""
    features = _ids(cells, shape) | {"weight": _sparse(POSITIVE, cells, shape)}
    ids = preprocessing.Identity("int", 9)
    steps = {key: tf.sparse.to_dense(features[key]) for key in ("int", "weight")}
    dense = [tf.reshape(each, [4, shape[1], -1]).numpy() for each in steps.values()]
    expected = np.zeros([4, shape[1], 9], np.float32)
    for sample, step, number in np.ndindex(*dense[0].shape):
        expected[sample, step, dense[0][sample, step, number]] += dense[1][sample, step, number]

    for column in (
        preprocessing.Sequence(preprocessing.Weighted(ids, "weight")),
        preprocessing.Weighted(preprocessing.Sequence(ids), "weight"),
    ):
        counts, _ = ours.SequenceFeatures(ours.Indicator(column))(features)
        table = ours.PlainEmbedding(column, 9, "sum", lambda *_, **__: tf.eye(9))
        looked_up, _ = ours.SequenceFeatures(table)(features)

        np.testing.assert_array_equal(counts, expected)
        np.testing.assert_array_equal(looked_up, expected)


@pytest.mark.parametrize("of", [preprocessing.Weighted, preprocessing.Crossed])
def test_weights_are_not_lost_in_a_nesting(of: Any) -> None:
    """A column that would drop the weights of another is refused, as TensorFlow refuses it."""
    weighted = preprocessing.Weighted(preprocessing.Identity("int", 9), "weight")

    with pytest.raises(errors.InvalidSpec, match="'weight': these weights would be lost"):
        of(weighted, "other") if of is preprocessing.Weighted else of((weighted, "word"), 11)


def test_weights_that_do_not_fit_are_refused_by_name() -> None:
    layer = ours.DenseFeatures(ours.Indicator(read_input(COLUMNS["weighted list"]())))

    for call in (layer, tf.function(lambda features: layer(features))):
        with pytest.raises(tf.errors.InvalidArgumentError, match="weights than ids"):
            call(FEATURES["fewer"])
