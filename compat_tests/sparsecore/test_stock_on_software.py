"""Stock's TPUEmbeddingV2 trains correctly on the software SparseCores.

Stock's code is compared with the float64 references, and so is our driver.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.support import sparse_core_crossing as crossing
from compat_tests.support import sparse_cores
from compat_tests.support.sparse_core_crossing import (
    FEW,
    MANY,
    Group,
)
from compat_tests.support.sparse_cores import Case, Engine, Results, Stock, assert_same_bits

TOLERANCE = 2e-6
"""Relative to the largest magnitude. A row gets up to 20 gradients a step in three steps, which are
60 additions and about as many roundings of its rule: 120 * 2^-24 is 7e-6 if all go one way, and a
quarter of it is plenty for roundings that do not."""

QUICK = Case("Adagrad", ("sqrtn", "mean"), cores=2, sparse_cores=2, steps=2)

FEW_STEPS = [
    *(Case(name, cores=2, sparse_cores=2) for name in sparse_cores.OPTIMIZERS),
    *(Case(name, cores=1, stacked=False) for name in sparse_cores.OPTIMIZERS),
    Case("SGD", ("sum", "mean"), cores=2),
    Case("Adagrad", ("sqrtn", "sum"), weighted=False, cores=4, sparse_cores=1),
    Case("Adam", ("sum", "mean"), weighted=False, cores=8, sparse_cores=2),
]

GOLDENS = crossing.read()


def assert_equal(actual: Results, expected: Results, tolerance: float) -> None:
    """Asserts that activations, parameters and slots are those of the reference."""
    for step, (ours, theirs) in enumerate(
        zip(actual.activations, expected.activations, strict=True)
    ):
        for core, features in enumerate(theirs):
            for name, values in features.items():
                what = f"step {step} core {core} feature {name}"
                close(ours[core][name], values, tolerance, what)
    for table, variables in expected.tables.items():
        assert set(actual.tables[table]) == set(variables)
        for name, values in variables.items():
            close(actual.tables[table][name], values, tolerance, f"{name} of table {table}")


def close(actual: np.ndarray, expected: np.ndarray, tolerance: float, what: str) -> None:
    """Asserts that two arrays are equal, up to a part of the largest magnitude and of 1."""
    scale = max(1.0, float(np.abs(expected).max()))
    difference = float(np.abs(actual - expected).max())
    assert difference <= tolerance * scale, f"{what}: {difference} of {scale}"


def trained(case: Case) -> Results:
    stock = Stock(case)
    stock.fill()
    return stock.train(sparse_cores.batches(case))


def test_stock_trains() -> None:
    """Activations, tables and slots are those of the float64 reference."""
    assert_equal(trained(QUICK), sparse_cores.reference(QUICK), TOLERANCE)


@pytest.mark.full
@pytest.mark.parametrize("case", FEW_STEPS, ids=str)
def test_stock_trains_with_every_setting(case: Case) -> None:
    """Stock's class follows the reference with all five optimizers, on several topologies."""
    assert_equal(trained(case), sparse_cores.reference(case), TOLERANCE)


@functools.cache
def exact(case: Case) -> Results:
    """Returns what the reference makes of a case, which does not know of stacks."""
    return sparse_cores.reference(case)


@pytest.mark.full
@pytest.mark.parametrize("group", crossing.crossed(), ids=crossing.name_of)
def test_stock_and_the_driver_train_for_many_steps(group: Group) -> None:
    """With every setting stock's class follows the reference for 200 steps, and our driver stock.

    The driver has the bits of stock's class, and the goldens hold for both.
    """
    few, stock = crossing.trained(Stock, group)
    of_driver, ours = crossing.trained(Engine, group)

    for number, case in enumerate(group):
        for steps, tables in ((FEW, few), (MANY, stock.tables)):
            expected = crossing.golden(GOLDENS, case, steps)
            crossing.assert_close(crossing.of_case(number, tables), expected, f"{case}, {steps}")
        reference = exact(dataclasses.replace(case, stacked=True))
        results = crossing.results_of(number, stock)
        assert_equal(results, reference, crossing.TOLERANCE)
    assert_same_bits(stock, ours)
    assert_same_bits(Results([], few), Results([], of_driver))


@pytest.mark.full
def test_a_loop_around_run_trains() -> None:
    """A loop in a tf.function may call `strategy.run`, on several cores."""
    case = Case("SGD", cores=2, sparse_cores=2, steps=1)
    stock = Stock(case)
    stock.fill()
    (step,) = sparse_cores.batches(case)
    arguments = stock.arguments(step)

    @tf.function
    def loop() -> None:
        for _ in tf.range(3):
            stock._step(*arguments)

    loop()
    # With gradients that are given, a step of SGD does not depend on the rows.
    once = sparse_cores.reference(case)
    for table in case.ROWS:
        start = case.initial(table)
        moved = once.tables[table]["parameters"] - start
        close(stock.read(table)["parameters"], start + 3 * moved, TOLERANCE, table)
