"""Combinations of settings for training on SparseCores, and stock's results as goldens.

The goldens are results of stock's TPUEmbeddingV2 on the software SparseCores. On TensorFlow 2.21,
goldens/record_sparse_cores.py writes them; tests on any version read them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compat_tests.cases import every, pairwise, sharing
from compat_tests.support import sparse_cores
from compat_tests.support.paths import GOLDENS
from compat_tests.support.sparse_cores import (
    Array,
    Case,
    Results,
    Stock,
)

PATH = GOLDENS / "sparse_cores.json"

Tables = dict[str, dict[str, Array]]
"""Maps each table to its parameters and slots."""

FEW, MANY = 20, 200
"""The numbers of steps after which the goldens contain the tables."""

TOLERANCE = 1e-5
"""The tolerance for 200 steps, relative to the largest magnitude but at least to 1.

In a step, 20 gradients are summed and a rule is applied, so there are about 4,000 roundings. Rules
forget old gradients or divide by growing sums, so most of the error disappears. About a hundred
units in the last place remain: 100 * 2^-24 = 6e-6.
"""

FACTORS: Mapping[str, tuple[Any, ...]] = {
    "optimizer": ("SGD", "Adagrad", "AdagradMomentum", "Adam", "FTRL"),
    "combiners": (("mean", "sqrtn"), ("sum", "mean"), ("sqrtn", "sum")),
    "weighted": (True, False),
    "stacked": (True, False),
    "cores": (1, 2, 4),
}
"""The settings to combine. Tables `a` and `c` have the first combiner of a pair, `b` the second."""

Group = Sequence[Case]
"""Cases with the same cores, weights and stacking, whose tables are in one model.

In the model, the names of tables and features end with the number of the case.
"""


def crossed() -> list[Group]:
    """Lists all combinations, with 200 steps, and with four SparseCores on all cores together."""
    cases = [_case(row) for row in every(FACTORS)]
    return sharing(cases, "cores", "weighted", "stacked")


def paired() -> list[Case]:
    return [_case(row) for row in pairwise(FACTORS)]


def name_of(group: Group) -> str:
    words = ["weighted"] * group[0].weighted + ["unstacked"] * (not group[0].stacked)
    return " ".join([f"{group[0].cores} cores", *words])


def of_case(number: int, tables: Tables) -> Tables:
    return {table: tables[f"{table}{number}"] for table in Case.ROWS}


def results_of(number: int, results: Results) -> Results:
    activations = [
        [{name: of_core[f"{name}{number}"] for name in Case().features} for of_core in of_step]
        for of_step in results.activations
    ]
    return Results(activations, of_case(number, results.tables))


def trained(kind: type[Stock], group: Group) -> tuple[Tables, Results]:
    """Returns the tables of all cases after FEW steps, and the results of MANY steps."""
    model, steps = kind(*group), sparse_cores.batches(group[0])
    model.fill()
    first, rest = model.train(steps[:FEW]), model.train(steps[FEW:])
    return first.tables, Results(first.activations + rest.activations, rest.tables)


def _case(row: Mapping[str, Any]) -> Case:
    return Case(**row, sparse_cores=4 // row["cores"], steps=MANY)


def read() -> dict[str, Any]:
    """Reads the golden file: the version of TensorFlow, and the cases by `Case.numbers`."""
    goldens: dict[str, Any] = json.loads(PATH.read_text())
    return goldens


def golden(goldens: Mapping[str, Any], case: Case, steps: int) -> Tables:
    """Returns the golden tables of a case after `steps` steps, which are FEW or MANY."""
    of_case = goldens["cases"][case.numbers][str(steps)]
    return {
        table: {name: _array(text, case, table) for name, text in variables.items()}
        for table, variables in of_case.items()
    }


def encoded(tables: Tables) -> dict[str, dict[str, str]]:
    """Encodes tables for the goldens: float32, row by row, in base64."""
    return {
        table: {
            name: base64.b64encode(np.asarray(values, "<f4").tobytes()).decode()
            for name, values in variables.items()
        }
        for table, variables in tables.items()
    }


def _array(text: str, case: Case, table: str) -> Array:
    values = np.frombuffer(base64.b64decode(text), "<f4")
    return values.reshape(case.ROWS[table], case.DIMS[table])


def assert_close(
    actual: Tables, expected: Tables, where: str, tolerance: float = TOLERANCE
) -> None:
    """Asserts that tables are equal up to `tolerance`, relative to the largest magnitude or 1."""
    assert actual.keys() == expected.keys(), where
    for table, variables in expected.items():
        assert actual[table].keys() == variables.keys(), f"{where}, table {table}"
        for name, values in variables.items():
            difference = float(np.abs(actual[table][name] - values).max())
            allowed = tolerance * max(1.0, float(np.abs(values).max()))
            assert difference <= allowed, f"{where}, {name} of table {table}: {difference}"
