"""The sparsecore driver creates the ops of stock's TPUEmbeddingV2, and computes the same bits.

Oracle: stock's class on the same software SparseCores.
"""

from __future__ import annotations

import itertools
import re
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import tf2_engine
from compat_tests.support import fake_tpu, sparse_cores
from compat_tests.support.sparse_cores import RATE, Case, Engine, Stock, assert_same_bits
from tf2_engine import EngineSpec, FeatureSpec, TableSpec, errors, soft_sparsecore
from tf2_engine.backends import SparseCoreDriver, TpuDriver
from tf2_engine.soft_tpu import SoftTPUStrategy


def test_it_computes_the_bits_of_stock() -> None:
    """Two steps of Adam on two cores give stock's bits, with weights and stacked tables too.

    test_stock_on_software.py has all settings, for many steps.
    """
    case = Case("Adam", cores=2, sparse_cores=2, steps=2)
    stock, ours = Stock(case), Engine(case)
    for model in (stock, ours):
        model.fill()
    batches = sparse_cores.batches(case)
    assert_same_bits(stock.train(batches), ours.train(batches))


def ops_of(model: Stock) -> list[tuple[str, str, dict[str, Any]]]:
    """Returns the ops of SparseCores in a step, by core in order, with devices and attributes."""
    (step,) = sparse_cores.batches(model.case)
    graph = model.step.get_concrete_function(*model.arguments(step)).graph
    return [
        (op.type, op.device, {a: repr(op.get_attr(a)) for a in op.node_def.attr if is_settled(a)})
        for op in graph.get_operations()
        if op.type in soft_sparsecore.KERNELS
    ]


def is_settled(attribute: str) -> bool:
    """Returns whether an attribute is neither TensorFlow's guess of shapes nor a tracing's name."""
    return not attribute.startswith(("_out", "_tpu_replicate"))


def genuine(num_cores: int, *, sparse_cores: int, **_: Any) -> Any:
    """Returns TensorFlow's own TPUStrategy, for a TPU with SparseCores that is not there."""
    return fake_tpu.strategy(1, num_cores, job="localhost", sparse_cores=sparse_cores)


@pytest.mark.full
@pytest.mark.parametrize(
    "case, strategy",
    [
        *itertools.product(
            [Case(name, cores=2, sparse_cores=2, steps=1) for name in sparse_cores.OPTIMIZERS],
            [SoftTPUStrategy, genuine],
        ),
        (Case(cores=1, sparse_cores=4, stacked=False, steps=1), SoftTPUStrategy),
        (Case(cores=4, sparse_cores=4, stacked=False, steps=1), genuine),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_it_makes_the_ops_of_stock(case: Case, strategy: Any) -> None:
    """Every op of SparseCores is there as often, in the same order, with the same attributes."""
    with mock.patch.object(sparse_cores, "SoftTPUStrategy", strategy):
        ours, stocks = ops_of(Engine(case)), ops_of(Stock(case))

    assert sum(name.startswith("XlaSparseDenseMatmul") for name, _, _ in ours) > 0
    attributes = {name for _, _, each in ours for name in each}
    assert strategy is SoftTPUStrategy or "_xla_outside_compilation" in attributes
    assert [name for name, _, _ in ours] == [name for name, _, _ in stocks]
    for (name, *other), (_, *theirs) in zip(ours, stocks, strict=True):
        assert other == theirs, name


def engine(optimizer: Any = None, **feature: Any) -> tf2_engine.TPUEmbedding:
    """Returns an engine with one table of 10 rows under the current strategy."""
    table = TableSpec("words", 10, 4, "sum", optimizer or tf2_engine.SGD(RATE))
    feature = {"output_shape": (4,), **feature}
    spec = EngineSpec((table,), (FeatureSpec("title", "words", **feature),))
    return tf2_engine.TPUEmbedding(spec)


def test_what_the_tpu_reports_decides() -> None:
    """Under a strategy with SparseCores the driver is the default, under others that of before."""
    with SoftTPUStrategy(1, hardware="sparsecore").scope():
        assert isinstance(engine()._driver, SparseCoreDriver)
        with pytest.raises(errors.InvalidSpec, match="driver='tpu' drives V1"):
            tf2_engine.TPUEmbedding(engine()._spec, driver="tpu")
    with SoftTPUStrategy(1).scope():
        assert isinstance(engine()._driver, TpuDriver)


REFUSED = {
    "an optimizer": (tf2_engine.RMSProp(RATE), "optimizer RMSProp: SparseCores have no such"),
    "gradient clipping": (tf2_engine.SGD(RATE, clip_gradient_max=1.0), "cannot clip gradients"),
    "decay": (tf2_engine.SGD(RATE, weight_decay_factor=0.1), "cannot decay weights"),
    "no accumulation": (
        tf2_engine.SGD(RATE, use_gradient_accumulation=False),
        "use_gradient_accumulation=False",
    ),
    "non-lazy Adam": (tf2_engine.Adam(RATE, lazy_adam=False), "lazy_adam=False"),
    "an empty accumulator": (
        tf2_engine.FTRL(RATE, initial_accumulator_value=0.0),
        "initial_accumulator_value=0",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_sparsecores_cannot_do_is_refused(name: str) -> None:
    optimizer, message = REFUSED[name]
    with (
        SoftTPUStrategy(1, hardware="sparsecore").scope(),
        pytest.raises(errors.InvalidSpec, match="Table 'words', optimizer") as caught,
    ):
        engine(optimizer).build()
    assert message in str(caught.value)


def test_an_engine_is_built_before_it_runs() -> None:
    """The first batch inside of `strategy.run` is an error that says what to call, and where."""
    strategy = SoftTPUStrategy(1, hardware="sparsecore")
    with strategy.scope():
        embedding = engine()
    ids = tf.sparse.from_dense(tf.ones([4, 1], tf.int64))

    def replica(ids: Any) -> None:
        embedding.enqueue({"title": ids})

    with pytest.raises(errors.OutOfOrder, match=r"Call `build` first, in `strategy\.scope\(\)`"):
        tf.function(lambda ids: strategy.run(replica, args=(ids,)))(ids)


def test_samples_that_cannot_be_spread_are_refused() -> None:
    with (
        SoftTPUStrategy(1, hardware="sparsecore").scope(),
        pytest.raises(errors.InvalidSpec, match=r"'title'.*has 6 samples.*that fits is 8"),
    ):
        engine(output_shape=(6,)).build()


def test_calls_outside_of_run_are_refused() -> None:
    """Calls outside of `strategy.run` are refused: no batch waits between steps."""
    with SoftTPUStrategy(1, hardware="sparsecore").scope():
        embedding = engine()
        embedding.build()
        with pytest.raises(errors.OutOfOrder, match=re.escape("outside of `strategy.run`")):
            embedding.enqueue({"title": tf.constant([1, 2, 3, 4])})


def test_a_graph_is_refused() -> None:
    strategy = SoftTPUStrategy(1, hardware="sparsecore")
    with (
        tf.Graph().as_default(),
        strategy.scope(),
        pytest.raises(errors.InvalidSpec, match=r"not in a tf\.Graph"),
    ):
        engine().build()


def _trained(optimizer: Any, ids: list[int], steps: int = 1) -> Any:
    """Returns an engine after steps with gradients of ones, of rows that begin as zeros."""
    strategy = SoftTPUStrategy(1, hardware="sparsecore")
    table = TableSpec("words", 10, 4, "sum", optimizer, tf.zeros_initializer())
    spec = EngineSpec((table,), (FeatureSpec("title", "words", output_shape=(4,)),))
    with strategy.scope():
        embedding = tf2_engine.TPUEmbedding(spec)
    embedding.build()

    @tf.function
    def step(batch: Any) -> Any:
        def replica(batch: Any) -> Any:
            embedding.enqueue({"title": batch})
            activations = embedding.dequeue()
            embedding.apply_gradients({"title": tf.ones([4, 4])})
            return activations

        return strategy.run(replica, args=(batch,))

    for _ in range(steps):
        step(tf.constant(ids, tf.int64))
    embedding.retrieve()
    return embedding.tables["words"].variables["parameters"][0].numpy()


class Mishap(Exception):
    """Stands for any error of the user's code; AutoGraph keeps its type."""


@pytest.mark.full
def test_a_step_that_failed_leaves_nothing() -> None:
    """SparseCores keep no batch: after a failed step the next one trains its own rows alone."""
    strategy = SoftTPUStrategy(1, hardware="sparsecore")
    with strategy.scope():
        embedding = engine()
    embedding.build()
    before = embedding.tables["words"].variables["parameters"][0].numpy()

    @tf.function
    def train(batch: Any, fails: bool) -> None:
        def replica(batch: Any) -> None:
            with embedding.step():
                embedding.enqueue({"title": batch})
                if fails:
                    raise Mishap
                embedding.dequeue()
                embedding.apply_gradients({"title": tf.ones([4, 4])})

        strategy.run(replica, args=(batch,))

    with pytest.raises(Mishap):
        train(tf.constant([1, 2, 3, 4], tf.int64), True)
    embedding.reset_batches()
    train(tf.constant([5, 6, 7, 8], tf.int64), False)
    embedding.retrieve()
    after = embedding.tables["words"].variables["parameters"][0].numpy()
    moved = np.flatnonzero(np.any(after != before, axis=1))
    assert moved.tolist() == [5, 6, 7, 8]


def test_weights_are_clipped() -> None:
    """The op clips what was updated, which stock's class leaves out; other rows stay."""
    rows = _trained(tf2_engine.SGD(1.0, clip_weight_min=-0.5), [1, 1, 2, 3])

    np.testing.assert_array_equal(rows[:5, 0], [0.0, -0.5, -0.5, -0.5, 0.0])


def test_a_rate_that_changes_is_read_every_step() -> None:
    rate = tf.Variable(1.0)
    optimizer = tf2_engine.SGD(lambda: rate.read_value())

    np.testing.assert_array_equal(_trained(optimizer, [1, 2, 3, 4], 2)[1], [-2.0] * 4)
