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
from compat_tests.engine.test_optimizers import Record, table_name, train

STEPS = 5
MODES = ("eager", "function", "two functions", "graph")


class Setup(NamedTuple):
    """The run of an engine.

    Attributes:
        mode: as for `test_optimizers.train`.
        kinds: the optimizers whose cases have a table each.
    """

    mode: str
    cores: int = 1
    driver: str = "host"
    kinds: tuple[str, ...] = cases.KINDS


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
        if case.kind in setup.kinds and cases.allows(case, {"driver": setup.driver}):
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
    return tuple(rows)


@functools.lru_cache
def history(setup: Setup) -> Record:
    return train.__wrapped__(combinations(setup), count=STEPS)


def tables_of(*setups: Setup, full: bool = False) -> list[Any]:
    """Returns test parameters: a setup, and the place of one of its tables."""
    marks = [pytest.mark.full] if full else []
    return [
        pytest.param(setup, place, id=str(row), marks=marks)
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


@pytest.mark.parametrize("setup, place", [*tables_of(*QUICK), *tables_of(*FULL, full=True)])
def test_modes_agree_to_the_bit(setup: Setup, place: int) -> None:
    """Functions and graphs give the activations, rows and slots that eager execution gives."""
    assert_same(setup._replace(mode="eager"), setup, place)


def assert_same(one: Setup, other: Setup, place: int) -> None:
    """Compares the activations and the final rows and slots of one table, bit by bit."""
    expected, actual = history(one), history(other)
    name, where = table_name(place), combinations(other)[place]
    for number in range(STEPS):
        for core in range(other.cores):
            for feature in cases.FEATURES:
                np.testing.assert_array_equal(
                    actual.activations[number][core][f"{name}_{feature}"],
                    expected.activations[number][core][f"{name}_{feature}"],
                    f"{where}, step {number}, activations of {feature!r} on core {core}",
                )
    for kind, values in expected.tables[-1][name].items():
        np.testing.assert_array_equal(actual.tables[-1][name][kind], values, f"{where}, {kind}")


def digest(mode: str) -> str:
    """Returns a hash of everything that `history` returns."""
    digest = hashlib.sha256()
    for array in tf.nest.flatten(list(history(Setup(mode)))):
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
