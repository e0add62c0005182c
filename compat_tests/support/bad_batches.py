"""Bad batches for an engine that has trained a step, and checks that the engine still works."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cases.optimizers import MODES
from compat_tests.conftest import Runner
from tf2_engine import (
    SGD,
    EngineSpec,
    FeatureSpec,
    TableSpec,
    TPUEmbedding,
    errors,
)

VIDEOS = TableSpec("videos", 8, 2, "sum", SGD(1.0))
WATCHED = FeatureSpec("watched", "videos")


ROWS = 8
FIRST = np.array([[row, 10.0 * row] for row in range(ROWS)], np.float32)
"""The initial value of every table: small whole numbers, so that every sum is exact."""


first_rows = tf.constant_initializer(FIRST)


SPEC = EngineSpec(
    (
        TableSpec("videos", ROWS, 2, "sum", SGD(1.0), first_rows),
        TableSpec("countries", ROWS, 2, "sum", SGD(1.0), first_rows),
    ),
    (
        FeatureSpec("watched", "videos"),
        FeatureSpec("history", "videos", max_sequence_length=2),
        FeatureSpec("tags", "videos"),
        FeatureSpec("country", "countries"),
    ),
)
SHAPES = [(3,), (3, 2), (3,), (3,)]


def a_sparse(*ids: Any, rows: int = 3, dtype: Any = tf.int64) -> tf.SparseTensor:
    indices = [[row, 0] for row in range(len(ids))]
    return tf.SparseTensor(indices, tf.constant(ids, dtype), [rows, 2])


def a_ragged(*ids: Any, dtype: Any = tf.int64) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_splits(tf.constant(ids, dtype), list(range(len(ids) + 1)))


def features(**changed: Any) -> dict[str, Any]:
    return {
        "watched": a_sparse(1, 2),
        "history": a_sparse(3, 4),
        "tags": a_ragged(5, 6, 7),
        "country": tf.constant([0, 1, 2], tf.int64),
        **changed,
    }


def weights(**by_feature: Any) -> dict[str, Any]:
    return {**dict.fromkeys(features()), **by_feature}


def without(batch: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in batch.items() if key != name}


class Bad(NamedTuple):
    """A batch that the engine must refuse.

    Attributes:
        features: creates the ids.
        message: a pattern for the error's message.
        error: the class of the error: InvalidArgumentError if only the values are wrong.
        weights: creates the weights, if any.
        only_when_built: whether an engine that is not built yet may accept the batch.
    """

    features: Callable[[], Any]
    message: str
    error: type[Exception] = errors.InvalidInput
    weights: Callable[[], Any] | None = None
    only_when_built: bool = False


AT_RUN_TIME = tf.errors.InvalidArgumentError
Q = r"\\?'"
"""Matches a quote, which has a backslash before it in graphs."""
WATCHED_IN_VIDEOS = rf"{Q}watched{Q} \(table {Q}videos{Q}\)"
COUNTRY_IN_COUNTRIES = rf"{Q}country{Q} \(table {Q}countries{Q}\)"


class Fixture:
    """An engine in one mode, with checks that it still works."""

    def __init__(self, mode: str, *, build: bool = True) -> None:
        self.mode = mode
        self.runner = Runner(mode, autograph=True)
        with self.runner.scope():
            self.embedding = TPUEmbedding(SPEC)
            if build:
                self.embedding.build_for(SHAPES)
        self._functions: dict[Callable[[], Any], Callable[[], Any]] = {}

    def call(self, function: Callable[[], Any]) -> Any:
        """Calls a function without arguments in this mode. In a graph, this creates new ops."""
        return self.runner.wrap(function)()

    def look_up(self) -> None:
        """Looks up a good batch, which then waits for its gradients."""
        self._anew(self._look_up)

    def apply_zeros(self) -> None:
        self._anew(self._apply_zeros)

    def _again(self, function: Callable[[], Any]) -> Any:
        return self._functions.setdefault(function, self.runner.wrap(function))()

    def _anew(self, function: Callable[[], Any]) -> Any:
        # In a graph, repeating a part of a step needs new ops.
        return self.call(function) if self.mode == "graph" else self._again(function)

    @property
    def rows(self) -> dict[str, Any]:
        return self.runner.read(
            {
                name: table.variables["parameters"][0]
                for name, table in self.embedding.tables.items()
            }
        )

    def assert_works(self) -> None:
        """Checks that a good step looks up the rows of the tables and subtracts 1 from them."""
        before = self.rows or {"videos": FIRST.copy(), "countries": FIRST.copy()}
        videos, countries, zero = before["videos"], before["countries"], np.zeros(2)
        activations, _ = self._again(self._good_step)
        for name, expected in {
            "watched": [videos[1], videos[2], zero],
            "history": [[videos[3], zero], [videos[4], zero], [zero, zero]],
            "tags": videos[[5, 6, 7]],
            "country": countries[[0, 1, 2]],
        }.items():
            np.testing.assert_array_equal(activations[name], expected, name)
        videos[1:] -= 1
        countries[:3] -= 1
        assert_same_rows(self.rows, before)

    def _look_up(self) -> Any:
        self.embedding.enqueue(features())
        return self.embedding.dequeue()

    def _apply_zeros(self) -> Any:
        return self.embedding.apply_gradients(gradients(0.0))

    def _good_step(self) -> Any:
        self.embedding.enqueue(features())
        activations = self.embedding.dequeue()
        sent = tf.nest.map_structure(ones_after, activations)
        return activations, self.embedding.apply_gradients(sent)


_fixtures: dict[str, Fixture] = {}


@contextlib.contextmanager
def unharmed(mode: str) -> Iterator[Fixture]:
    """Yields an engine for a bad call. Then rows must be unchanged, and a good step must work.

    Tests in the same mode share an engine, until one of them fails.
    """
    fixture = _fixtures.pop(mode, None) or Fixture(mode)
    before = fixture.rows
    yield fixture
    assert_same_rows(fixture.rows, before)
    fixture.assert_works()
    _fixtures[mode] = fixture


def assert_same_rows(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, rows in expected.items():
        np.testing.assert_array_equal(actual[name], rows, name)


def ones_after(activation: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([] if tf.executing_eagerly() else [activation]):
        return tf.ones(activation.shape)


def enqueue_bad(fixture: Fixture, bad: Bad) -> None:
    """Enqueues a bad batch. In a graph, also runs the ops, some of which fail only then."""

    def enqueue() -> Any:
        batch_weights = None if bad.weights is None else bad.weights()
        in_graph = fixture.mode == "graph"
        fixture.embedding.enqueue(bad.features(), batch_weights, training=not in_graph)
        return fixture.embedding.dequeue() if in_graph else None

    fixture.call(enqueue)


def in_modes(table: dict[str, Any], quick: Callable[[Any], bool]) -> list[Any]:
    """Lists test parameters: each mode combined with each row of `table`.

    In functions and graphs, most rows belong to the full tier, because the code that refuses a
    batch while they are traced is the same as in eager mode.

    Args:
        quick: whether a row belongs to the quick tier in all modes.
    """
    return [
        pytest.param(
            mode,
            row,
            id=f"{mode}-{name}",
            marks=[] if mode == "eager" or quick(row) else [pytest.mark.full],
        )
        for mode in MODES
        for name, row in table.items()
    ]


def gradients(value: float = 1.0, **changed: Any) -> dict[str, Any]:
    shapes = {"watched": [3, 2], "history": [3, 2, 2], "tags": [3, 2], "country": [3, 2]}
    return {**{name: tf.fill(shape, value) for name, shape in shapes.items()}, **changed}
