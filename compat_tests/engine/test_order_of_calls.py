"""The permitted orders of calls; a call out of order changes nothing.

test_failed_steps.py makes calls in any order, and compares them with a model of the queues.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cases.optimizers import MODES
from compat_tests.conftest import Runner
from tf2_engine import SGD, EngineSpec, FeatureSpec, TableSpec, TPUEmbedding, errors

ROWS = 8
FIRST = np.array([[row, 10.0 * row] for row in range(ROWS)], np.float32)
"""Every table: small whole numbers, so that every sum is exact."""
NOTHING_ENQUEUED = "`dequeue` is not possible: no batch is enqueued. Call `enqueue` first"
NOTHING_LOOKED_UP = (
    "`apply_gradients` is not possible: no batch waits for gradients. Call `dequeue` first"
)
FULL = "64 batches .*`dequeue`"


first_rows = tf.constant_initializer(FIRST)


SPEC = EngineSpec(
    (TableSpec("table", ROWS, 2, "sum", SGD(1.0), first_rows),), (FeatureSpec("ids", "table"),)
)


def ids(*rows: int) -> dict[str, tf.Tensor]:
    return {"ids": tf.constant(rows, tf.int64)}


def ones(count: int = 2) -> dict[str, tf.Tensor]:
    """Returns gradients for a batch of so many ids."""
    return {"ids": tf.ones([count, 2])}


def parameters(embedding: TPUEmbedding) -> tf.Variable:
    return embedding.tables["table"].variables["parameters"][0]


def after(activations: Any, gradients: Any) -> Any:
    """Returns the gradients, computed after the activations as in a model."""
    before = [] if tf.executing_eagerly() else tf.nest.flatten(activations)
    with tf.control_dependencies(before):
        return tf.nest.map_structure(tf.identity, gradients)


class Calls:
    """An engine whose calls are made one by one, each in a function of its own, and its rows.

    One table with rows [row, 10 * row], trained by SGD at a rate of 1, and one dense feature. In a
    graph a call makes its ops and a session runs them at once.
    """

    def __init__(self, mode: str, *, build: bool = True, **options: Any) -> None:
        self.mode = mode
        self.runner = Runner(mode, autograph=True)
        with self.runner.scope():
            self.embedding = TPUEmbedding(SPEC, **options)
            if build:
                self.embedding.build_for([(2,)])
        self._functions = {
            call: self.runner.wrap(getattr(self.embedding, call))
            for call in ("enqueue", "dequeue", "apply_gradients")
        }

    def _call(self, call: str, *arguments: Callable[[], Any]) -> Any:
        if self.mode != "graph":
            return self._functions[call](*(argument() for argument in arguments))
        with self.runner.scope():
            result = getattr(self.embedding, call)(*(argument() for argument in arguments))
        return self.runner.run(result)

    def enqueue(self, *rows: int, training: bool | tf.Tensor = True) -> None:
        self._call("enqueue", lambda: ids(*rows), lambda: None, lambda: training)

    def dequeue(self) -> Any:
        return self._call("dequeue")["ids"]

    def apply(self, value: float = 1.0) -> None:
        self._call("apply_gradients", lambda: {"ids": tf.fill([2, 2], value)})

    @property
    def rows(self) -> Any:
        return self.runner.read(parameters(self.embedding))

    def assert_works(self) -> None:
        """Runs a good step, which must see the rows of the table and lower two of them by one."""

        def step() -> Any:
            self.embedding.enqueue(ids(3, 5))
            activations = self.embedding.dequeue()
            return activations, self.embedding.apply_gradients(after(activations, ones()))

        before = self.rows
        activations, _ = self.runner.wrap(step)()
        np.testing.assert_array_equal(activations["ids"], before[[3, 5]])
        expected = before.copy()
        expected[[3, 5]] -= 1
        np.testing.assert_array_equal(self.rows, expected)

    def assert_refused(self, call: Callable[..., Any], *arguments: Any, match: str) -> None:
        """Makes a call that comes at the wrong moment; it must say so and leave the rows alone.

        Eagerly and while a graph is built that is OutOfOrder; in a function, whose call may come
        at the right moment or not each time it runs, an InvalidArgumentError of the same text.
        """
        before = self.rows
        expected = tf.errors.InvalidArgumentError if self.mode == "function" else errors.OutOfOrder
        with pytest.raises(expected, match=match):
            call(*arguments)
        np.testing.assert_array_equal(self.rows, before)


@pytest.mark.parametrize("mode", MODES)
def test_nothing_works_before_the_engine_is_built(mode: str) -> None:
    """Before the first batch, calls but `enqueue` say that `enqueue` comes first, or `build`."""
    calls = Calls(mode, build=False)

    for call in (calls.dequeue, calls.apply):
        with pytest.raises(errors.OutOfOrder, match=r"not built.*`enqueue`.*`build`"):
            call()
    calls.enqueue(1, 2)
    np.testing.assert_array_equal(calls.dequeue(), FIRST[[1, 2]])
    calls.apply()
    calls.assert_works()


def test_an_engine_is_built_once() -> None:
    for calls in (Calls("eager"), Calls("eager", build=False)):
        calls.enqueue(1, 2)
        tables, plan = calls.embedding.tables, calls.embedding.plan
        calls.embedding.build_for([(5,)])

        assert calls.embedding.tables is tables
        assert calls.embedding.plan is plan
        np.testing.assert_array_equal(calls.dequeue(), FIRST[[1, 2]])


# Several batches in flight.


@pytest.mark.parametrize("inside", ["enqueue", "dequeue", "apply_gradients"])
def test_eager_calls_and_functions_mix(inside: str) -> None:
    """Any one of the calls may be in a tf.function while the others are made eagerly."""
    embedding = Calls("eager").embedding
    calls = {name: getattr(embedding, name) for name in ("enqueue", "dequeue", "apply_gradients")}
    calls[inside] = tf.function(calls[inside])

    for _ in range(2):
        before = parameters(embedding).numpy()
        calls["enqueue"](ids(1, 2))
        np.testing.assert_array_equal(calls["dequeue"]()["ids"], before[[1, 2]])
        calls["apply_gradients"](ones())
        after = parameters(embedding).numpy()
        np.testing.assert_array_equal(after[[1, 2]], before[[1, 2]] - 1)


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_too_many_batches_are_refused(mode: str) -> None:
    """Sixty-four batches may wait; one more is refused, and the sixty-four are still in order."""
    calls = Calls(mode)
    for number in range(64):
        calls.enqueue(number % ROWS, 0)

    calls.assert_refused(calls.enqueue, 7, 7, match=FULL)

    for number in range(64):
        np.testing.assert_array_equal(calls.dequeue(), FIRST[[number % ROWS, 0]])
        calls.apply(0.0)
    calls.assert_refused(calls.dequeue, match=NOTHING_ENQUEUED)
    calls.assert_works()


@pytest.mark.parametrize("mode", MODES)
def test_an_engine_for_lookups_alone(mode: str) -> None:
    """An engine made with training=False looks up as often as one likes and takes no gradients."""
    calls = Calls(mode, training=False)

    def look_up() -> Any:
        calls.embedding.enqueue(ids(1, 2))
        return calls.embedding.dequeue()

    look_up_in_mode = calls.runner.wrap(look_up)
    for _ in range(70):
        np.testing.assert_array_equal(look_up_in_mode()["ids"], FIRST[[1, 2]])
    with pytest.raises(errors.OutOfOrder, match="training=False"):
        calls.apply()


# Functions that are traced, and graphs that are built.


def test_two_engines_in_one_graph() -> None:
    """Batches of one engine are not taken by another."""
    with tf.Graph().as_default():
        first, second = TPUEmbedding(SPEC), TPUEmbedding(SPEC)
        first.enqueue(ids(1, 2))
        second.build_for([(2,)])
        with pytest.raises(errors.OutOfOrder, match=NOTHING_ENQUEUED):
            second.dequeue()


def test_an_engine_stays_in_its_graph() -> None:
    calls = Calls("graph")

    with pytest.raises(errors.OutOfOrder, match=r"inside a tf\.Graph but is used outside"):
        calls.embedding.enqueue(ids(1, 2))
    calls.assert_works()


def test_an_abandoned_graph_keeps_nothing_alive() -> None:
    """A graph that was built with an engine can be collected; the engine does not hold it."""
    graph = tf.Graph()
    with graph.as_default():
        embedding = TPUEmbedding(SPEC)
        embedding.enqueue(ids(1, 2))
    alive = weakref.ref(graph)
    del graph, embedding
    gc.collect()

    assert alive() is None
