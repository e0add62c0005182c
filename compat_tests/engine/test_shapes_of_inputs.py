"""Ragged rows and the shapes of activations; ids of many dimensions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.conftest import Array
from compat_tests.references.inputs import Occurrence, dense, ragged
from compat_tests.references.tolerance import assert_lookup
from compat_tests.references.training import ReferenceTable, contributions
from tf2_engine import SGD, EngineSpec, FeatureSpec, TableSpec, TPUEmbedding, errors

emb = tf.tpu.experimental.embedding

ROWS, DIM = 12, 3
FIRST = np.random.default_rng(8).uniform(-1, 1, (ROWS, DIM)).astype(np.float32)


first_rows = tf.constant_initializer(FIRST)


def engine_of(shape: Any, combiner: str = "mean", length: int = 0, **options: Any) -> TPUEmbedding:
    """Returns an engine of one feature with an output shape of its own."""
    spec = EngineSpec(
        (TableSpec("table", ROWS, DIM, combiner, SGD(1.0), first_rows),),
        (FeatureSpec("ids", "table", length, shape),),
    )
    return TPUEmbedding(spec, **options)


class Ragged(NamedTuple):
    """A ragged batch: how long its rows are, and the ids and weights in them."""

    lengths: Sequence[int]

    @property
    def splits(self) -> Any:
        return np.cumsum([0, *self.lengths])

    @property
    def ids(self) -> Any:
        return np.random.default_rng(len(self.lengths)).integers(0, ROWS, sum(self.lengths))

    @property
    def weights(self) -> Any:
        chance = np.random.default_rng(sum(self.lengths))
        return chance.uniform(0.5, 2.0, sum(self.lengths)).astype(np.float32)


def run_step(
    engine: TPUEmbedding, how: str, batch: Ragged, gradient: Array, weighted: bool
) -> Array:
    """Runs a step; returns the activation.

    Args:
        how: "eager"; "function", which knows the number of rows; "open function" and "open graph",
            which do not.
    """

    def step(ids: Any, splits: Any, weights: Any) -> Any:
        tensor = tf.RaggedTensor.from_row_splits(ids, splits, validate=False)
        weight = tensor.with_values(weights) if weighted else None
        engine.enqueue({"ids": tensor}, {"ids": weight})
        activation = engine.dequeue()["ids"]
        with tf.control_dependencies([] if tf.executing_eagerly() else [activation]):
            sent = tf.identity(gradient)
        done = engine.apply_gradients({"ids": sent})
        return activation, done

    arguments = [tf.constant(batch.ids), tf.constant(batch.splits, tf.int64), batch.weights]
    if how == "eager":
        return step(*arguments)[0].numpy()
    known = len(batch.splits) if how == "function" else None
    signature = [
        tf.TensorSpec([None], tf.int64),
        tf.TensorSpec([known], tf.int64),
        tf.TensorSpec([None], tf.float32),
    ]
    if how != "open graph":
        traced = tf.function(step, input_signature=signature, autograph=False)
        return traced(*arguments)[0].numpy()
    placeholders = [tf.compat.v1.placeholder(one.dtype, one.shape) for one in signature]
    fetches = step(*placeholders)
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        feeds = dict(zip(placeholders, (batch.ids, batch.splits, batch.weights), strict=True))
        activation = session.run(fetches, feeds)[0]
        (shard,) = engine.tables["table"].variables["parameters"]
        AFTER[:] = [session.run(shard)]
        return activation


AFTER: list[Array] = []
"""The rows after a step in a graph, which end with its session."""

SHAPES = ((2, 3), (2, 3, 1), (1, 6), (6, 1))
BATCHES = {
    # Six activations: one per row, two, three, or all six.
    6: Ragged([2, 0, 3, 1, 1, 0]),
    3: Ragged([1, 4, 0]),
    2: Ragged([2, 5]),
    1: Ragged([8]),
}
HOW = ("eager", "function", "open function", "open graph")
EVERY = [
    pytest.param(
        *place,
        id="-".join(map(str, place)),
        marks=() if place[0] == (2, 3) or place[3] == "eager" else pytest.mark.full,
    )
    for place in itertools.product(SHAPES, (False, True), BATCHES, HOW)
]
"""The quick tier has one shape with everything, and of the others the eager steps."""


@pytest.mark.parametrize("shape, weighted, number, how", EVERY)
def test_ragged_rows_fill_an_activation(
    shape: tuple[int, ...], weighted: bool, number: int, how: str
) -> None:
    """One ragged row per activation is combined; fewer rows are sequences, cut and padded.

    Forwards and backwards, whether or not the number of rows is known when a graph is made.
    """
    combiner = ("sum", "mean", "sqrtn")[(len(shape) + number) % 3]
    batch, where = BATCHES[number], f"{number} rows into {shape}, {combiner}, {how}"
    gradient = np.random.default_rng(1).uniform(0.25, 1, (*shape, DIM)).astype(np.float32)
    with tf.Graph().as_default() if how == "open graph" else tf.init_scope():
        engine = engine_of(shape, combiner)
        activation = run_step(engine, how, batch, gradient, weighted)

    weights = batch.weights if weighted else None
    occurrences = ragged(batch.splits, batch.ids, weights, num_cells=6)
    assert_step(engine, how, combiner, occurrences, activation, gradient, where)


def assert_step(
    engine: TPUEmbedding,
    how: str,
    combiner: str,
    occurrences: list[Occurrence],
    activation: Array,
    gradient: Array,
    where: str,
) -> None:
    """Compares an activation, and the table after a step of SGD at a rate of 1."""
    assert activation.shape == gradient.shape, where
    gains = assert_lookup(FIRST, occurrences, combiner, activation, n_terms=8, where=where)
    table = ReferenceTable(FIRST, "SGD", {})
    table.apply(contributions(0, 0, occurrences, gains), {(0, 0): gradient}, 1.0)
    rows = AFTER[0] if how == "open graph" else engine.embedding_tables["table"].numpy()
    table.assert_held({"parameters": rows}, where, sum(gains))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("lengths", [[1] * 4, [1] * 5, [0] * 12, []], ids=len)
def test_other_numbers_of_rows_are_refused(lengths: list[int], how: str) -> None:
    """Four or twelve rows do not fill 2 x 3: the message names the feature, the rows and the shape.

    Where the rows are known it is a ValueError at once, otherwise the step fails.
    """
    late = how.startswith("open")
    expected = tf.errors.InvalidArgumentError if late else errors.InvalidInput
    gradient = np.ones((2, 3, DIM), np.float32)
    with tf.Graph().as_default() if how == "open graph" else tf.init_scope():
        engine = engine_of((2, 3))
        engine.build()
        with pytest.raises(expected) as caught:
            run_step(engine, how, Ragged(lengths), gradient, False)

    message = unescaped(caught.value)
    for part in (
        "Feature 'ids' (table 'table'): ",
        "ragged rows do not fit the 6 activations",
        "(2, 3)",
    ):
        assert part in message
    assert str(len(lengths)) in message.split("(table 'table'): ")[1].split("ragged rows")[0]
    assert isinstance(caught.value, ValueError) or late


def unescaped(error: BaseException) -> str:
    """Returns the message of an error; that of a failed step has its quotes escaped."""
    return str(error).replace("\\", "")


def test_stocks_config_means_the_same() -> None:
    """A FeatureConfig with an output shape of rank 2 takes rows by both readings, in one engine."""
    config = {
        "a": emb.FeatureConfig(
            emb.TableConfig(ROWS, DIM, first_rows, combiner="sum"), output_shape=[2, 3]
        )
    }
    engine = TPUEmbedding(config, SGD(1.0))
    for number in (6, 2, 3):
        batch = BATCHES[number]
        tensor = tf.RaggedTensor.from_row_splits(batch.ids, batch.splits)
        engine.enqueue({"a": tensor}, training=False)
        occurrences = ragged(batch.splits, batch.ids, num_cells=6)
        activation = engine.dequeue()["a"].numpy()
        assert_lookup(FIRST, occurrences, "sum", activation, n_terms=3, where=f"{number} rows")


# Dense and sparse ids of five dimensions. Those of three are in test_lookup.py.


def ids_of_rank_5(kind: str, shape: tuple[int, ...]) -> tuple[Any, list[Occurrence]]:
    """Returns dense ids, or sparse ones with two ids in some cells, one in others and none."""
    if kind == "dense":
        ids = np.arange(math.prod(shape)).reshape(*shape, 1) % ROWS
        return tf.constant(ids, tf.int64), dense(ids)
    places, occurrences = [], []
    for cell, place in enumerate(np.ndindex(*shape)):
        for which in range(cell % 3):
            places.append([*place, which])
            occurrences.append(Occurrence(cell, (5 * cell + which) % ROWS, 1.0))
    values = tf.constant([one.id for one in occurrences], tf.int64)
    return tf.SparseTensor(places, values, [*shape, 4]), occurrences


@pytest.mark.parametrize("declared", [False, True], ids=["found", "declared"])
@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_ids_of_many_dimensions(kind: str, in_function: bool, declared: bool) -> None:
    """The activation has the dimensions of the ids but the last; numbers are the reference's."""
    shape = (1, 2, 3, 2)
    value, occurrences = ids_of_rank_5(kind, shape)
    gradient = np.random.default_rng(2).uniform(0.25, 1, (*shape, DIM)).astype(np.float32)
    engine = engine_of(shape if declared else None, "sqrtn")

    def step(ids: Any) -> Any:
        engine.enqueue({"ids": ids})
        activation = engine.dequeue()["ids"]
        engine.apply_gradients({"ids": tf.constant(gradient)})
        return activation

    activation = (tf.function(step) if in_function else step)(value).numpy()

    assert_step(
        engine, "eager", "sqrtn", occurrences, activation, gradient, f"{kind}, {in_function}"
    )
    with pytest.raises(errors.InvalidInput, match="Feature 'ids'"):
        engine.enqueue({"ids": tf.ones([1, 1, 1, 1, 1, 1], tf.int64)})


def test_shapes_need_not_be_verified() -> None:
    """With verify_output_shapes=False ids of another shape fill the activation in their order.

    With it they are refused; and as many as there are activations they must be in any case. The
    attribute may be set between batches.
    """
    square = tf.constant([[[3], [1]], [[4], [1]]], tf.int64)
    engine = engine_of(None, verify_output_shapes=False)
    engine.build_for([(4,)])

    engine.enqueue({"ids": square}, training=False)
    np.testing.assert_array_equal(engine.dequeue()["ids"], FIRST[[3, 1, 4, 1]])
    with pytest.raises(errors.InvalidInput, match=r"Feature 'ids'.*6 dense ids do not fill"):
        engine.enqueue({"ids": tf.ones([2, 3, 1], tf.int64)})
    engine.verify_output_shapes = True
    with pytest.raises(errors.InvalidInput, match=r"'ids'.*\(4,\).*\(2, 2\).*keep their shape"):
        engine.enqueue({"ids": square})


def test_shapes_that_are_not_verified_are_not_learnt() -> None:
    """With verify_output_shapes=False a first batch does not build the engine."""
    with pytest.raises(errors.InvalidSpec, match=r"verify_output_shapes=False.*`build`"):
        engine_of(None, verify_output_shapes=False).enqueue({"ids": tf.constant([1])})
