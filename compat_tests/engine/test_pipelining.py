"""Pipelining: a step's activations do not see the update of the step before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cases.optimizers import MODES
from compat_tests.conftest import Array, Engine, Runner
from tf2_engine import SGD, EngineSpec, FeatureSpec, TableSpec, TPUEmbedding, errors

ROWS, DIM, BATCH = 6, 2, 3
FIRST = np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM)
"""What the tables start with; all numbers are whole, so every comparison is exact."""
STEPS = 6


first_rows = tf.constant_initializer(FIRST)


def spec(rate: float | Callable[[], Any] = 1.0, *, pipelined: bool = True) -> EngineSpec:
    """Returns two tables, two features on the first."""
    return EngineSpec(
        (
            TableSpec("videos", ROWS, DIM, "sum", SGD(rate), first_rows),
            TableSpec("countries", ROWS, DIM, "sum", SGD(2.0), first_rows),
        ),
        (
            FeatureSpec("watched", "videos"),
            FeatureSpec("liked", "videos"),
            FeatureSpec("country", "countries"),
        ),
        pipeline_execution_with_tensor_core=pipelined,
    )


TABLE_OF = {"watched": "videos", "liked": "videos", "country": "countries"}
Batch = list[dict[str, Any]]


def batch_of(step: int, cores: int = 1) -> Batch:
    """Returns the ids of a step; every step shares ids with the one before it."""
    chance = np.random.default_rng(step)
    return [{name: chance.integers(0, 4, BATCH) for name in TABLE_OF} for _ in range(cores)]


def gradients_of(step: int, cores: int = 1) -> Batch:
    """Returns the gradients of a step, small whole numbers."""
    chance = np.random.default_rng(100 + step)
    shape = (BATCH, DIM)
    return [
        {name: chance.integers(1, 4, shape).astype(np.float32) for name in TABLE_OF}
        for _ in range(cores)
    ]


class Simple:
    """The tables, and what is still to be subtracted from them."""

    def __init__(self) -> None:
        self.tables = {"videos": FIRST.copy(), "countries": FIRST.copy()}
        self.pending: list[tuple[Batch, Batch, dict[str, float]]] = []

    def look_up(self, ids: Batch) -> list[dict[str, Array]]:
        return [
            {name: self.tables[TABLE_OF[name]][rows] for name, rows in core.items()} for core in ids
        ]

    def send(self, ids: Batch, gradients: Batch, rate: float = 1.0) -> None:
        """Lets an update wait, together with its rate."""
        self.pending.append((ids, gradients, {"videos": rate, "countries": 2.0}))

    def flush(self) -> None:
        for ids, gradients, rates in self.pending:
            for of_features, sent in zip(ids, gradients, strict=True):
                for name, rows in of_features.items():
                    table = TABLE_OF[name]
                    np.subtract.at(self.tables[table], rows, rates[table] * sent[name])
        self.pending.clear()


def tensors(batch: Batch) -> list[dict[str, tf.Tensor]]:
    return [{name: tf.constant(value) for name, value in core.items()} for core in batch]


def assert_same_activations(actual: Batch, expected: Batch, where: str) -> None:
    for core, of_features in enumerate(expected):
        for name, activation in of_features.items():
            np.testing.assert_array_equal(
                actual[core][name], activation, f"{where}, {name} on core {core}"
            )


class Beside:
    """An engine, and the tables that are to be in it.

    Attributes:
        expected: the tables.
    """

    def __init__(
        self,
        runner: Runner,
        rate: float | Callable[[], Any] = 1.0,
        *,
        pipelined: bool = True,
        cores: int = 1,
        driver: str | None = None,
    ) -> None:
        of_engine = spec(rate, pipelined=pipelined)
        self.engine = Engine(runner, of_engine, driver=driver, num_cores=cores)
        self.engine.build_for([(BATCH,)] * 3)
        self.expected = Simple()
        self._pipelined, self._cores = pipelined, cores
        self._where = f"{runner.mode}, {driver}, {cores} cores"

    def train(self, step: int, rate: float = 1.0) -> None:
        """Trains a step; its activations must see the tables without the update that waits."""
        ids, gradients = batch_of(step, self._cores), gradients_of(step, self._cores)
        activations = self.engine.train(tensors(ids), None, tensors(gradients))
        where = f"{self._where}, step {step}"
        assert_same_activations(activations, self.expected.look_up(ids), where)
        self.expected.flush()
        self.expected.send(ids, gradients, rate)
        if not self._pipelined:
            self.expected.flush()

    def retrieve(self) -> None:
        self.engine.retrieve()
        self.expected.flush()
        self.assert_rows("retrieved")

    def assert_rows(self, when: str) -> None:
        """Compares the variables with the tables, bit by bit."""
        for name, kinds in self.engine.read().items():
            np.testing.assert_array_equal(
                kinds["parameters"], self.expected.tables[name], f"{self._where}, {when}, {name}"
            )


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_activations_are_one_step_old(mode: str, cores: int) -> None:
    """The order is F0 F1 B0 F2 B1: a lookup sees the updates up to the last but one.

    `retrieve` applies the one that is left, and a second one changes nothing. The next step then
    sees all updates, and the one after it is behind again.
    """
    both = Beside(Runner(mode), cores=cores)
    both.retrieve()
    for step in range(STEPS):
        both.train(step)
        both.assert_rows(f"step {step}")
        if step in (2, STEPS - 1):
            for _ in range(2):
                both.retrieve()


@pytest.mark.parametrize("cores", [1, 2])
def test_a_tpu_pipelines_alike(cores: int) -> None:
    """On a TPU activations are one step old too, and `retrieve` applies what is left."""
    check_on_tpu(cores, "tpu")


def check_on_tpu(cores: int, driver: str) -> None:
    """Runs the steps without looking at the tables in between, which would end the overlap."""
    both = Beside(Runner("function"), cores=cores, driver=driver)
    for step in range(STEPS):
        both.train(step)
    both.retrieve()


@pytest.mark.parametrize("mode", MODES)
def test_without_pipelining_a_lookup_sees_everything(mode: str) -> None:
    """Without pipelining every lookup sees all updates, and nothing is left to retrieve."""
    both = Beside(Runner(mode), pipelined=False)
    for step in range(3):
        both.train(step)
        both.assert_rows(f"step {step}")
    both.retrieve()


@pytest.mark.parametrize("mode", MODES)
def test_inference_sees_everything(mode: str) -> None:
    """A lookup for inference applies what is pending first; so the next step sees it as well."""
    both = Beside(Runner(mode))
    for step in range(3):
        both.train(step)
        both.expected.flush()
        for _ in range(2):
            looked_up = both.engine.look_up(tensors(batch_of(step + 1)))
            where = f"{mode}, inference after step {step}"
            assert_same_activations(looked_up, both.expected.look_up(batch_of(step + 1)), where)
            both.assert_rows(where)


@pytest.mark.parametrize("mode", MODES)
def test_an_update_keeps_its_own_rate(mode: str) -> None:
    """A dynamic rate is that of the step the gradients are from, not of when they are applied."""
    runner = Runner(mode)
    with runner.scope():
        rate = tf.Variable(1.0)
    both = Beside(runner, lambda: rate * 2.0)
    for step in range(4):
        runner.write(rate, float(2**step))
        both.train(step, 2.0 ** (step + 1))
        both.assert_rows(f"step {step}")
    runner.write(rate, 0.0)
    both.retrieve()


@pytest.mark.parametrize("looks_up", [False, True])
@pytest.mark.parametrize("mode", ["eager", "function"])
def test_two_updates_may_wait(mode: str, looks_up: bool) -> None:
    """When two batches are looked up before their gradients come, `retrieve` applies both.

    A lookup before that is behind by one update, not by two. A call out of order neither applies
    nor loses what waits.
    """
    embedding, expected, wrap = TPUEmbedding(spec()), Simple(), Runner(mode).wrap
    embedding.build_for([(BATCH,)] * 3)

    def enqueue(step: int) -> Any:
        return embedding.enqueue(tensors(batch_of(step))[0], name=str(step))

    def apply(step: int) -> Any:
        return embedding.apply_gradients(tensors(gradients_of(step))[0], name=str(step))

    enqueue, apply = wrap(enqueue), wrap(apply)
    dequeue = wrap(lambda step: [embedding.dequeue(name=str(step))])

    for step in (0, 1):
        enqueue(step)
    for step in (0, 1):
        assert_same_activations(dequeue(step), expected.look_up(batch_of(step)), f"step {step}")
    for step in (0, 1):
        apply(step)
    refused = tf.errors.InvalidArgumentError if mode == "function" else errors.OutOfOrder
    with pytest.raises(refused, match="`dequeue` is not possible"):
        dequeue(1)
    with pytest.raises(refused, match="`apply_gradients` is not possible"):
        apply(1)
    expected.send(batch_of(0), gradients_of(0))
    if looks_up:
        expected.flush()
        enqueue(2)
        assert_same_activations(dequeue(2), expected.look_up(batch_of(2)), f"{mode}, step 2")
    expected.send(batch_of(1), gradients_of(1))

    wrap(embedding.retrieve)()
    expected.flush()
    for name, table in embedding.tables.items():
        (shard,) = table.variables["parameters"]
        np.testing.assert_array_equal(shard, expected.tables[name], f"{mode}, {name}")


@pytest.mark.parametrize("pipelined", [False, True])
def test_lookups_in_a_graph_come_before_the_update(pipelined: bool) -> None:
    """In one run of a graph a lookup comes before the update of the step, or the pending one.

    A pending update comes before the next one. Here the gradients do not depend on the activations,
    as in a loss that is linear in them.
    """
    runner, expected = Runner("graph"), Simple()
    with runner.scope():
        embedding = TPUEmbedding(spec(pipelined=pipelined))
        embedding.enqueue(tensors(batch_of(0))[0])
        activations = embedding.dequeue()
        update = embedding.apply_gradients(tensors(gradients_of(0))[0])

    wrong = 0
    for _ in range(200):
        got, _ = runner.run([activations, update])
        for name, activation in expected.look_up(batch_of(0))[0].items():
            wrong += not np.array_equal(got[name], activation)
        expected.flush()
        expected.send(batch_of(0), gradients_of(0))
        if not pipelined:
            expected.flush()

    assert wrong == 0, f"{wrong} of 600 lookups saw the wrong rows"
