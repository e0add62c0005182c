"""Bit equality: between modes, and from run to run."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cases import optimizers as cases
from compat_tests.cases.optimizers import Combination
from compat_tests.conftest import Array, Engine, Runner
from compat_tests.engine.test_optimizers import as_tensors, spec_of, table_name

STEPS = 5
MODES = ("eager", "function", "two functions", "graph")


class Setup(NamedTuple):
    """The run of an engine.

    Attributes:
        mode: "two functions" enqueues in one tf.function and goes on in another.
        cores: the number of cores.
        driver: the name of the driver.
        kinds: the optimizers whose cases have a table each.
        attempt: distinguishes runs with the same settings.
    """

    mode: str
    cores: int = 1
    driver: str = "host"
    kinds: tuple[str, ...] = cases.KINDS
    attempt: int = 0


def combinations(setup: Setup) -> tuple[Combination, ...]:
    """Returns a table for each case, with all settings on or with few, in turns.

    The latter are without accumulation where the optimizer allows it. Two cores have it the other
    way round.
    """
    rows = []
    for number, case in enumerate(cases.CASES.values()):
        many = (number + setup.cores) % 2 == 0
        settings = {
            "clipping": "gradient and weight" if many else "unclipped",
            "decay": "decay times rate" if many else "decay",
            "accumulation": "accumulated" if many else "per core",
            "rate": "dynamic rate" if many else "constant rate",
        }
        settings |= {
            factor: levels[0]
            for factor, levels in case.needs.items()
            if factor in settings and settings[factor] not in levels
        }
        combiner = cases.COMBINERS[number % 3]
        rows.append(
            Combination(
                kind=case.kind,
                optimizer=case.name,
                cores=setup.cores,
                mode=setup.mode,
                combiner=combiner,
                driver=setup.driver,
                **settings,
            )
        )
    return tuple(
        row
        for row in rows
        if row.kind in setup.kinds and cases.allows(row.case, {"driver": row.driver})
    )


@functools.lru_cache
def history(setup: Setup) -> tuple[list[Any], dict[str, dict[str, Array]]]:
    """Returns the activations of some steps and the tables after them."""
    rows, cores = combinations(setup), setup.cores
    split = setup.mode == "two functions"
    runner = Runner("function" if split else setup.mode)
    with runner.scope():
        step_variable = tf.Variable(0.0, name="step")
    engine = Engine(
        runner, spec_of(rows, step_variable), driver=setup.driver, split=split, num_cores=cores
    )
    engine.build_for([(cases.BATCH,)] * (len(rows) * len(cases.FEATURES)))
    activations = []
    batches = zip(
        *(cases.steps(row.case, place, cores, STEPS) for place, row in enumerate(rows)),
        strict=True,
    )
    for number, of_tables in enumerate(batches):
        runner.write(step_variable, float(number))
        activations.append(engine.train(*as_tensors(of_tables, cores)))
    return activations, engine.read()


def tables_of(*setups: Setup) -> list[Any]:
    """Returns test parameters: a setup, and the place of one of its tables."""
    return [
        pytest.param(setup, place, id=str(row))
        for setup in setups
        for place, row in enumerate(combinations(setup))
    ]


# An engine of all optimizers takes ten seconds to trace; test_conformance.py has each of them in
# every mode.
FEW = ("SGD", "Adagrad", "Adam")
QUICK = [
    Setup("two functions", 2, "host", FEW),
    Setup("graph", 2, "native", FEW),
    Setup("function", 2, "tpu", FEW),
]
FULL = [
    *[Setup(mode, 2, driver) for mode in MODES[1:] for driver in cases.DRIVERS],
    *[Setup(mode) for mode in MODES[1:]],
]


@pytest.mark.parametrize("setup, place", tables_of(*QUICK))
def test_modes_agree_to_the_bit(setup: Setup, place: int) -> None:
    """Functions and graphs give the activations, rows and slots that eager execution gives."""
    assert_same(setup._replace(mode="eager"), setup, place)


@pytest.mark.full
@pytest.mark.parametrize("setup, place", tables_of(*FULL))
def test_more_modes_agree_to_the_bit(setup: Setup, place: int) -> None:
    """Modes agree to the bit for all optimizers on two cores, and in two functions, too."""
    assert_same(setup._replace(mode="eager"), setup, place)


@pytest.mark.parametrize("setup, place", tables_of(Setup("eager", 2, "host", FEW)))
def test_runs_agree_to_the_bit(setup: Setup, place: int) -> None:
    """A second engine with the same data gives the same bits."""
    assert_same(setup, setup._replace(attempt=1), place)


@pytest.mark.full
@pytest.mark.parametrize(
    "setup, place",
    tables_of(
        Setup("eager"), *[Setup(mode, 2, driver) for mode in MODES for driver in cases.DRIVERS]
    ),
)
def test_more_runs_agree_to_the_bit(setup: Setup, place: int) -> None:
    """Repeated runs in functions and graphs on two cores give the same bits."""
    assert_same(setup, setup._replace(attempt=1), place)


def assert_same(one: Setup, other: Setup, place: int) -> None:
    """Compares the activations and the final rows and slots of one table, bit by bit."""
    expected, actual = history(one), history(other)
    name, where = table_name(place), combinations(other)[place]
    for number in range(STEPS):
        for core in range(other.cores):
            for feature in cases.FEATURES:
                np.testing.assert_array_equal(
                    actual[0][number][core][f"{name}_{feature}"],
                    expected[0][number][core][f"{name}_{feature}"],
                    f"{where}, step {number}, activations of {feature!r} on core {core}",
                )
    for kind, values in expected[1][name].items():
        np.testing.assert_array_equal(actual[1][name][kind], values, f"{where}, {kind}")


def digest(mode: str) -> str:
    """Returns a hash of everything that `history` returns."""
    activations, tables = history(Setup(mode))
    digest = hashlib.sha256()
    for array in tf.nest.flatten([activations, tables]):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
def test_processes_agree_to_the_bit(mode: str) -> None:
    """A process with another hash seed, with other orders of sets, gives the same bits."""
    program = (
        f"from compat_tests.engine import test_reproducibility as t; print(t.digest({mode!r}))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "17"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert run.stdout.split()[-1] == digest(mode)
