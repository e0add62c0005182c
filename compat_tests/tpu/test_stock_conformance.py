"""Stock's own TPUEmbedding, on a software TPU, is tested for the properties of the engine.

known_differences.py lists what stock does differently. Oracle: the float64 references.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests import known_differences
from compat_tests.cases import optimizers as cases
from compat_tests.cases.optimizers import MODES
from compat_tests.conftest import Engine, Runner
from compat_tests.engine import test_conformance, test_lookup, test_optimizers
from compat_tests.engine import test_pipelining as pipelining
from compat_tests.known_differences import DIFFERENCES, judged
from compat_tests.support.oracles import OF_TPU_EMBEDDING
from compat_tests.support.stock_engine import StockEngine
from tf2_engine import OPTIMIZERS, Adagrad, EngineSpec, FeatureSpec, TableSpec, soft_tpu


def levels(property: str, **factors: Any) -> dict[str, Any]:
    """Returns what a case is, as the list of differences tells cases apart."""
    return {"property": property, **factors}


def of_stock(combinations: Any) -> list[Any]:
    """Returns each combination once, with stock in the place of the drivers."""
    return list(dict.fromkeys(dataclasses.replace(one, driver="stock") for one in combinations))


def a_sample(combinations: list[Any]) -> list[Any]:
    """Returns the quick tier's: of the first in functions one per optimizer; of others, one."""
    chosen = {}
    for one in reversed(combinations):
        if one.mode == "function" and one.kind in OF_TPU_EMBEDDING:
            chosen[one.kind] = one
        elif one.mode == "function" or one.optimizer in OF_TPU_EMBEDDING:
            chosen[one.mode] = one
    return list(chosen.values())


def parameters(combinations: list[Any]) -> Iterator[Any]:
    """Yields the test parameters of combinations: a sample for the quick tier, all others full."""
    sample = set(a_sample(combinations))
    for one in combinations:
        marks = [] if one in sample else [pytest.mark.full]
        yield pytest.param(one, id=str(one), marks=marks)


STEPS = of_stock(one for one in test_conformance.full() if one.driver == "tpu")
SETTINGS = of_stock(cases.quick())
INPUTS = [
    (mode, name, combiner)
    for mode in MODES
    for name in test_lookup.INPUTS
    for combiner in cases.COMBINERS
]
QUICK_INPUTS = {
    ("function", "dense", "sum"),
    ("function", "sparse, negative weights", "mean"),
    ("function", "sequence of several, weights", "sqrtn"),
    ("function", "sequence, weights", "sqrtn"),
    ("function", "ragged sequence", "mean"),
}


@pytest.mark.parametrize("one", parameters(STEPS))
def test_steps_of_stock_follow_the_reference(
    one: test_conformance.Combination, record_property: Any
) -> None:
    """Activations, rows and slots are the reference's after each of three steps."""
    with judged(levels("steps", **dataclasses.asdict(one)), record_property):
        test_conformance.check((one,), 0)


@pytest.mark.parametrize("one", parameters(SETTINGS))
def test_rows_of_stock_follow_the_reference(one: cases.Combination, record_property: Any) -> None:
    """After each of thirty sparse steps every row and slot is where the reference has it."""
    with judged(levels("settings", **dataclasses.asdict(one)), record_property):
        test_optimizers.check((one,), 0)


@pytest.mark.parametrize(
    "mode, name, combiner",
    [pytest.param(*one, marks=[] if one in QUICK_INPUTS else [pytest.mark.full]) for one in INPUTS],
)
def test_stock_looks_up_every_kind_of_input(
    mode: str, name: str, combiner: str, record_property: Any
) -> None:
    """Every kind of input gives the reference's activations; gradients are the transpose."""
    with judged(levels("inputs", mode=mode, input=name, combiner=combiner), record_property):
        results = test_lookup.step(mode, ((name, combiner),), "stock")
        where = f"{name}, {combiner}, {mode}, stock"
        results.assert_correct(test_lookup.INPUTS[name], combiner, 0, where)


@pytest.mark.parametrize("cores", [pytest.param(1, marks=pytest.mark.full), 2])
def test_stock_pipelines_as_the_engine(cores: int, record_property: Any) -> None:
    """With pipelining its lookups see the updates up to the last but one."""
    with judged(levels("pipelining", mode="function", cores=cores), record_property):
        pipelining.check_on_tpu(cores, "stock")


COLLISIONS = {
    # One update of 1 + 2, or of 1 + 2 + 3 + 4: 3 / sqrt(9.1), 10 / sqrt(100.1).
    ("accumulated", 2): (0.9944903, 0.9944903),
    ("accumulated", 4): (0.9995004, 0.9995004),
    # Core 0 owns row 0: 1 / sqrt(1.1) + 2 / sqrt(5.1) and so on. Core 1 owns row 1, whose 2 comes
    # first: 2 / sqrt(4.1) + 1 / sqrt(5.1) and so on.
    ("per core", 2): (1.8390775, 1.4305370),
    ("per core", 4): (3.3670965, 2.9585560),
}
"""What rows 0 and 1 lose in one step of Adagrad at rate 1, from accumulators of 0.1, if core number
n sends the gradient n + 1 for both: worked by hand."""


@pytest.mark.parametrize("driver", ["tpu", "stock"])
@pytest.mark.parametrize("accumulation, cores", COLLISIONS)
def test_ids_that_collide_follow_the_numbers_worked_by_hand(
    accumulation: str, cores: int, driver: str
) -> None:
    """On two and four cores accumulation is one update, and without it the owner comes first."""
    optimizer = Adagrad(1.0, initial_accumulator_value=0.1, **cases.ACCUMULATION[accumulation])
    table = TableSpec("table", 8, 1, "sum", optimizer, tf.zeros_initializer())
    spec = EngineSpec((table,), (FeatureSpec("ids", "table"),))
    engine = Engine(Runner("function"), spec, driver=driver, num_cores=cores)
    engine.build_for([(2,)])
    ids = [{"ids": tf.constant([0, 1], tf.int64)} for _ in range(cores)]

    engine.train(ids, None, [{"ids": tf.fill([2, 1], core + 1.0)} for core in range(cores)])

    column = engine.read()["table"]["parameters"][:, 0]
    # The numbers have eight digits; each of up to four updates rounds thrice.
    expected = [-number for number in COLLISIONS[accumulation, cores]]
    np.testing.assert_allclose(column[:2], expected, rtol=12 * 2.0**-24)
    assert not column[2:].any()


def as_it_comes(kind: str) -> None:
    """Runs a step of stock without any help, and retrieves its table."""
    strategy = soft_tpu.SoftTPUStrategy(1)
    table = TableSpec("table", 4, 2, "sum", OPTIMIZERS[kind](0.5), tf.ones_initializer())
    with strategy.scope():
        engine = StockEngine(EngineSpec((table,), (FeatureSpec("ids", "table"),)), mended=False)
    engine.build_for([(2,)])

    @tf.function(autograph=False)
    def step(ids: Any) -> None:
        engine.enqueue({"ids": ids})

        def core() -> None:
            engine.apply_gradients(engine.dequeue())

        strategy.run(core)

    step(tf.constant([0, 1], tf.int64))
    engine.retrieve()
    assert float(engine.tables["table"].variables["parameters"][0][0, 0]) < 1.0


@pytest.mark.parametrize("kind", OF_TPU_EMBEDDING)
def test_stock_runs_as_it_comes(kind: str, record_property: Any) -> None:
    """Stock configures, trains and retrieves with what is installed, without any help."""
    with judged(levels("as it comes", kind=kind), record_property):
        as_it_comes(kind)


def all_cases() -> list[Mapping[str, Any]]:
    return [
        *[levels("steps", **dataclasses.asdict(one)) for one in STEPS],
        *[levels("settings", **dataclasses.asdict(one)) for one in SETTINGS],
        *[
            levels("inputs", mode=mode, input=name, combiner=combiner)
            for mode, name, combiner in INPUTS
        ],
        *[levels("pipelining", mode="function", cores=cores) for cores in (1, 2)],
        *[levels("as it comes", kind=kind) for kind in OF_TPU_EMBEDDING],
    ]


def test_every_line_of_the_list_is_about_a_case() -> None:
    """No line is left over, and none hides behind those before it."""
    met = {id(known_differences.of(one)) for one in all_cases()}

    assert [dict(line.where) for line in DIFFERENCES if line.here and id(line) not in met] == []
    assert all(line.why for line in DIFFERENCES)


def test_a_line_that_is_no_longer_so_is_found() -> None:
    """What succeeds although it is on the list fails, and so does what fails in other words."""
    listed = levels("steps", kind="Momentum")
    other = levels("steps", kind="SGD", mode="function", optimizer="SGD")
    message = r"remove \{'kind': 'Momentum'\}.*from the list"
    with pytest.raises(AssertionError, match=message), judged(listed):
        pass
    with pytest.raises(AssertionError, match="fails otherwise: ValueError: the moon is full"):
        fail(listed)
    with pytest.raises(ValueError, match="the moon is full"):
        fail(other)


def fail(case: Mapping[str, Any]) -> None:
    """Fails in a way that stock does not."""
    with judged(case):
        raise ValueError("the moon is full")
