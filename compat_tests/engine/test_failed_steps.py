"""If a step fails, a later step never uses the batch of the failed step."""

from __future__ import annotations

import collections
import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cases.optimizers import MODES
from compat_tests.engine.test_order_of_calls import (
    FIRST,
    NOTHING_ENQUEUED,
    NOTHING_LOOKED_UP,
    ROWS,
    SPEC,
    Calls,
    after,
    ids,
    ones,
    parameters,
)
from tf2_engine import TPUEmbedding, errors, soft_tpu

NEVER_CAME = "gradients of the previous batch never came.*`reset_batches`.*training=False"


class Mishap(Exception):
    """Stands for any error of the user's code."""


def failing_step(embedding: TPUEmbedding, *calls: Callable[[], Any]) -> None:
    """Makes calls in a step that fails after them."""
    with embedding.step():
        for call in calls:
            call()
        raise Mishap


@pytest.mark.parametrize("evaluates", [False, True])
def test_a_whole_step_in_one_call_is_refused_too(evaluates: bool) -> None:
    """A function after a failed step fails before it changes a row.

    If it evaluates first, it does not take the evaluation for its own step.
    """
    calls = Calls("function")
    calls.enqueue(1, 2)
    calls.dequeue()

    def step() -> Any:
        if evaluates:
            calls.embedding.enqueue(ids(3, 4), training=False)
            calls.embedding.dequeue()
        calls.embedding.enqueue(ids(3, 5))
        activations = calls.embedding.dequeue()
        return calls.embedding.apply_gradients(after(activations, ones()))

    calls.assert_refused(calls.runner.wrap(step), match=NEVER_CAME)
    calls.embedding.reset_batches()
    calls.assert_works()


@pytest.mark.parametrize("count", [1, 2, 3], ids=["enqueue", "dequeue", "apply_gradients"])
@pytest.mark.parametrize("mode", ["eager", "function", "one function"])
def test_a_failed_step_leaves_nothing(mode: str, count: int) -> None:
    """An exception inside `step` after any of the calls reaches the caller; the next step is right.

    The calls are made eagerly, in functions of their own, or in one function whose error comes
    while it runs.
    """
    calls = Calls("eager" if mode == "eager" else "function")
    embedding = calls.embedding
    parts: list[Callable[[], Any]] = [
        lambda: embedding.enqueue(ids(1, 2)),
        embedding.dequeue,
        lambda: embedding.apply_gradients(ones()),
    ]

    @tf.function
    def all_in_one(fails: tf.Tensor) -> None:
        for part in parts[:count]:
            part()
        tf.debugging.assert_equal(fails, False)

    made, error = [calls.runner.wrap(part) for part in parts[:count]], Mishap
    if mode == "one function":
        made, error = [lambda: all_in_one(tf.constant(True))], tf.errors.InvalidArgumentError
    for _ in range(2):
        before = calls.rows
        with pytest.raises(error):
            failing_step(embedding, *made)
        moved = [1, 2] if count == 3 and mode != "one function" else []
        np.testing.assert_array_equal(calls.rows[moved], before[moved] - 1)
        calls.assert_refused(calls.dequeue, match=NOTHING_ENQUEUED)
        calls.assert_refused(calls.apply, match=NOTHING_LOOKED_UP)
    calls.assert_works()


def test_a_step_that_is_traced_leaves_nothing() -> None:
    """`step` may be inside a function: if its trace fails nothing has run, and others stay."""
    calls = Calls("eager")
    calls.enqueue(1, 2)

    @tf.function
    def fails() -> None:
        with calls.embedding.step():
            calls.embedding.enqueue(ids(3, 4))
            calls.embedding.dequeue()
            calls.embedding.apply_gradients(ones())
            raise Mishap

    with pytest.raises(Mishap):
        fails()
    np.testing.assert_array_equal(calls.dequeue(), FIRST[[1, 2]])
    calls.apply()
    calls.assert_works()


def test_a_step_in_a_graph_leaves_nothing() -> None:
    """In a graph a step that failed while it was built is not seen by later calls."""
    calls = Calls("graph")
    calls_of_step = (lambda: calls.embedding.enqueue(ids(1, 2)), calls.embedding.dequeue)
    with calls.runner.scope(), pytest.raises(Mishap):
        failing_step(calls.embedding, *calls_of_step)
    calls.assert_refused(calls.apply, match=NOTHING_LOOKED_UP)
    calls.assert_works()


def test_a_step_before_the_engine_is_built() -> None:
    """A first step that fails before its first batch has nothing to drop."""
    embedding = Calls("eager", build=False).embedding
    assert embedding.reset_batches() is None
    with pytest.raises(Mishap):
        failing_step(embedding)


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_batches_with_names_overlap(mode: str) -> None:
    """Batches of two names wait for gradients at the same time; each gets its own.

    A reset drops those of every name.
    """
    calls = Calls(mode)
    names = {"a": (1, 2), "b": (3, 4)}

    def begin(name: str) -> Any:
        calls.embedding.enqueue(ids(*names[name]), name=name)
        return calls.embedding.dequeue(name=name)["ids"]

    for name, rows in names.items():
        got = calls.runner.wrap(lambda name=name: begin(name))()
        np.testing.assert_array_equal(got, FIRST[list(rows)])
    for factor, name in ((2.0, "b"), (1.0, "a")):
        gradients = {"ids": tf.fill([2, 2], factor)}
        calls.embedding.apply_gradients(gradients, name=name)
    np.testing.assert_array_equal(
        calls.rows - FIRST, np.repeat([[0.0], [-1], [-1], [-2], [-2], [0], [0], [0]], 2, 1)
    )
    calls.embedding.enqueue(ids(1, 2), name="a")
    calls.embedding.reset_batches()
    with pytest.raises(errors.OutOfOrder, match=NOTHING_ENQUEUED):
        calls.embedding.dequeue(name="a")


def test_a_loop_of_several_lookups() -> None:
    """Inside a loop or a condition of one function several batches wait, as outside of it.

    They are looked up, and get their gradients, in the order in which they were enqueued.
    """
    calls = Calls("eager")

    @tf.function
    def steps(count: tf.Tensor) -> None:
        for _ in tf.range(count):
            if count > 1:
                for batch in ((1, 2), (3, 4), (5, 6)):
                    calls.embedding.enqueue(ids(*batch))
                activations = [calls.embedding.dequeue()["ids"] for _ in range(3)]
                # Each row is its own gradient, at a rate of 1: it is zero after the first loop.
                for each in activations:
                    calls.embedding.apply_gradients({"ids": tf.identity(each)})

    steps(tf.constant(2))
    np.testing.assert_array_equal(calls.rows[1:7], np.zeros([6, 2]))
    steps(tf.constant(1))
    calls.assert_works()


def test_a_pending_update_stays() -> None:
    """With pipelining the update of the last whole step is applied, though the next one failed."""
    spec = dataclasses.replace(SPEC, pipeline_execution_with_tensor_core=True)
    embedding = TPUEmbedding(spec)
    with embedding.step():
        embedding.enqueue(ids(1, 2))
        embedding.dequeue()
        embedding.apply_gradients(ones())
    with pytest.raises(Mishap):
        failing_step(embedding, lambda: embedding.enqueue(ids(3, 4)))
    embedding.retrieve()
    rows = parameters(embedding).numpy()
    np.testing.assert_array_equal(rows[[1, 2]], FIRST[[1, 2]] - 1)
    np.testing.assert_array_equal(rows[[3, 4]], FIRST[[3, 4]])


def test_under_a_strategy() -> None:
    """Replicas may fail between their calls; what waits is dropped for all, outside of them."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        embedding = TPUEmbedding(SPEC, num_cores=1)
    calls_of_step = (lambda: embedding.enqueue(ids(1, 2)), embedding.dequeue)
    with pytest.raises(Mishap):
        failing_step(embedding, *(lambda call=call: strategy.run(call) for call in calls_of_step))
    with pytest.raises(errors.OutOfOrder, match=NOTHING_LOOKED_UP):
        strategy.run(lambda: embedding.apply_gradients(ones()))


def on_tpu(strategy: tf.distribute.Strategy) -> tuple[TPUEmbedding, Callable[[], Any]]:
    """Returns a new engine on a TPU, and a function that trains on the oldest batch."""
    with strategy.scope():
        embedding = TPUEmbedding(SPEC)
        embedding.build_for([(2,)])

    def replica() -> tf.Tensor:
        activations = embedding.dequeue()
        embedding.apply_gradients(after(activations, ones()))
        return activations["ids"]

    return embedding, tf.function(lambda: strategy.run(replica))


@pytest.mark.full
def test_a_tpu_says_that_it_cannot(tmp_path: pathlib.Path) -> None:
    """The driver of a TPU refuses by name: the device keeps the batches. The way out works."""
    strategy = soft_tpu.SoftTPUStrategy(1)
    embedding, train = on_tpu(strategy)
    for call in (embedding.reset_batches, embedding.step().__enter__):
        with pytest.raises(
            errors.OutOfOrder, match=r"keeps the batches itself.*initialize_tpu_system"
        ):
            call()
    embedding.enqueue(ids(1, 2))  # of a step that fails
    embedding.enqueue(ids(3, 4))
    np.testing.assert_array_equal(train(), FIRST[[1, 2]])

    path = tf.train.Checkpoint(embedding=embedding).write(str(tmp_path / "saved"))
    tf.tpu.experimental.initialize_tpu_system(strategy.cluster_resolver)
    embedding, train = on_tpu(strategy)
    tf.train.Checkpoint(embedding=embedding).read(path).assert_consumed()
    embedding.enqueue(ids(2, 5))
    np.testing.assert_array_equal(train(), FIRST[[2, 5]] - [[1], [0]])
    embedding.retrieve()
    expected = np.repeat([[0.0], [1], [2], [0], [0], [1], [0], [0]], 2, 1)
    np.testing.assert_array_equal(FIRST - parameters(embedding).numpy(), expected)


class QueueModel:
    """A model of an engine's two queues, which says of each call whether it is done or refused.

    Attributes:
        outcomes: how many calls had each outcome.
        rows: the rows of the table as they should be.
    """

    def __init__(self, mode: str, chance: np.random.Generator) -> None:
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.rows = FIRST.copy()
        self._chance = chance
        self._calls = Calls(mode)
        self._enqueued: collections.deque[tuple[list[int], bool]] = collections.deque()
        self._looked_up: collections.deque[list[int]] = collections.deque()

    def enqueue(self) -> None:
        batch = [int(row) for row in self._chance.choice(ROWS, 2, replace=False)]
        training = bool(self._chance.random() < 0.7)
        as_tensor = tf.constant(training) if self._chance.random() < 0.5 else training
        self._calls.enqueue(*batch, training=as_tensor)
        self._enqueued.append((batch, training))

    def dequeue(self) -> None:
        """Looks the oldest one up, if it may be."""
        refused = None if self._enqueued else NOTHING_ENQUEUED
        waits = self._looked_up and self._calls.mode != "graph"
        if self._enqueued and self._enqueued[0][1] and waits:
            refused = NEVER_CAME
        self.outcomes[f"dequeue {refused}"] += 1
        if refused is not None:
            self._calls.assert_refused(self._calls.dequeue, match=refused)
            return
        batch, training = self._enqueued.popleft()
        np.testing.assert_array_equal(self._calls.dequeue(), self.rows[batch])
        self._looked_up += [batch] if training else []

    def apply(self) -> None:
        """Applies gradients to the one that waits, if one does."""
        self.outcomes[f"apply {bool(self._looked_up)}"] += 1
        if not self._looked_up:
            self._calls.assert_refused(self._calls.apply, match=NOTHING_LOOKED_UP)
            return
        self.rows[self._looked_up.popleft()] -= 1
        self._calls.apply()

    def reset(self) -> None:
        self._calls.runner.wrap(self._calls.embedding.reset_batches)()
        self._enqueued.clear()
        self._looked_up.clear()

    def check(self) -> None:
        np.testing.assert_array_equal(self._calls.rows, self.rows)


@pytest.mark.parametrize("mode", MODES)
def test_any_order_of_calls(mode: str) -> None:
    """In any order of calls, each is done or refused as the model of the queues says.

    A refusal leaves what waits where it is, and the rows as they are. In a graph, where the order
    of calls is known before they run, several batches of one name may wait for gradients.
    """
    chance = np.random.default_rng(7)
    model = QueueModel(mode, chance)
    kinds = [model.enqueue, model.dequeue, model.apply, model.reset]
    count = 60 if mode == "graph" else 120  # a graph grows, and is prepared anew, with each call
    for kind in chance.choice(4, count, p=[0.36, 0.36, 0.24, 0.04]):
        kinds[kind]()
        model.check()
    assert len(model.outcomes) == (4 if mode == "graph" else 5), model.outcomes
