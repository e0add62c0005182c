"""The host driver with the arithmetic of SparseCores, on any version of TensorFlow.

Oracle: the float64 references, and recorded results of stock's class on the software SparseCores
(support/sparse_core_crossing.py).
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf2_engine
from compat_tests.cases import sharing
from compat_tests.support import sparse_core_crossing as crossing
from compat_tests.support import sparse_cores
from compat_tests.support.sparse_core_crossing import FEW, MANY, Group, Tables
from compat_tests.support.sparse_cores import OPTIMIZERS, RATE, Array, Case, Step, by_ending
from tf2_engine import EngineSpec, FeatureSpec, TableSpec, errors
from tf2_engine.backends import HostDriver
from tf2_engine.sparsecore_rules import of_sparsecore

RELATIVE = 2e-6
"""Of the largest magnitude: as for stock's class on the software SparseCores."""


def bound(values: Any) -> float:
    """Returns the bound for activations: rows of about 1 may cancel, and round as rows do."""
    return RELATIVE * max(1.0, float(np.abs(values).max(initial=0.0)))


class Host:
    """Our engine with the tables of a group of cases, and emulated cores on the host.

    Its cases may differ in their weights. Steps are eager, or a `tf.function`.
    """

    def __init__(self, group: Group, *, native: bool, in_function: bool = False) -> None:
        self.cases, self.cores = by_ending(group).items(), group[0].cores
        driver = HostDriver(native, arithmetic="sparsecore")
        spec = sparse_cores.spec(*group)
        self.embedding = tf2_engine.TPUEmbedding(spec, driver=driver, num_cores=self.cores)
        self.embedding.build()
        self.train_step = tf.function(self._train, reduce_retracing=True)
        if not in_function:
            self.train_step = self._train
        assert ("native ops" if native else "TensorFlow's ops") in repr(driver)
        for end, case in self.cases:
            for table in case.ROWS:
                (rows,) = self.embedding.tables[f"{table}{end}"].variables["parameters"]
                rows.assign(case.initial(table))

    def train(self, first: int, last: int) -> list[list[dict[str, Array]]]:
        """Trains on the batches from `first` to `last`; returns activations by step and core."""
        of_cases = {c.weighted: sparse_cores.batches(c)[first:last] for _, c in self.cases}
        return [
            self._step({k: steps[i] for k, steps in of_cases.items()}) for i in range(last - first)
        ]

    def _step(self, batches: Mapping[bool, Step]) -> list[dict[str, Array]]:
        """Trains on one step, by whether it has weights."""
        ids: list[dict[str, Any]] = [{} for _ in range(self.cores)]
        weights: list[dict[str, Any]] = [{} for _ in range(self.cores)]
        gradients: list[dict[str, Any]] = [{} for _ in range(self.cores)]
        for core in range(self.cores):
            for end, case in self.cases:
                of_cores, sent = batches[case.weighted]
                values, gains = of_cores[core].tensors
                for feature in case.features:
                    name = f"{feature}{end}"
                    ids[core][name] = values[feature]
                    weights[core][name] = None if feature == "dense" else gains[feature]
                    gradients[core][name] = tf.constant(sent[core][feature])
        one = self.cores == 1
        batch = (ids, weights, gradients)
        activations = self.train_step(*(part[0] if one else part for part in batch))
        return [
            {name: value.numpy() for name, value in of_core.items()}
            for of_core in ([activations] if one else activations)
        ]

    def _train(self, ids: Any, weights: Any, gradients: Any) -> Any:
        self.embedding.enqueue(ids, weights)
        activations = self.embedding.dequeue()
        self.embedding.apply_gradients(gradients)
        return activations

    def tables_of(self, end: str) -> Tables:
        """Returns parameters and slots of the tables of a case, by the end of their names."""
        tables = {t: self.embedding.tables[f"{t}{end}"].variables for t in Case.ROWS}
        return {
            table: {name: shards[0].numpy() for name, shards in variables.items()}
            for table, variables in tables.items()
        }


GOLDENS = crossing.read()
PAIRED = sharing(crossing.paired(), "cores")
# On a host no tables are stacked.
CROSSED = [group for group in crossing.crossed() if group[0].stacked]

ON_EITHER_OPS = pytest.mark.parametrize("native", [True, False], ids=["native", "tensorflow"])


@pytest.mark.parametrize("group", PAIRED, ids=lambda group: f"{group[0].cores} cores")
def test_it_trains_as_stock_with_every_pair_of_settings(group: Group) -> None:
    """On native ops, twenty steps of every pair of settings end where stock's class ends."""
    host = Host(group, native=True)
    host.train(0, FEW)

    for end, case in host.cases:
        expected = crossing.golden(GOLDENS, case, FEW)
        crossing.assert_close(host.tables_of(end), expected, str(case))


@pytest.mark.full
@ON_EITHER_OPS
@pytest.mark.parametrize("group", CROSSED, ids=crossing.name_of)
def test_it_trains_as_stock_with_every_setting(group: Group, native: bool) -> None:
    """On either ops, 200 steps of every combination of settings end where stock's class ends."""
    # TensorFlow's are thousands a step, and slow one by one.
    host = Host(group, native=native, in_function=not native)
    for first, last in ((0, FEW), (FEW, MANY)):
        host.train(first, last)
        for end, case in host.cases:
            expected = crossing.golden(GOLDENS, case, last)
            crossing.assert_close(host.tables_of(end), expected, f"{case}, step {last}")


def test_every_case_has_a_golden_and_every_golden_a_case() -> None:
    """The golden file has exactly the combinations, and says which TensorFlow wrote it."""
    crossed = itertools.chain(*crossing.crossed())
    assert {case.numbers for case in crossed} == set(GOLDENS["cases"])
    assert {case.numbers for case in crossing.paired()} <= set(GOLDENS["cases"])
    assert GOLDENS["tensorflow"] == "2.21.0"


def test_the_goldens_tell_settings_apart() -> None:
    """No two combinations of optimizer, combiners, weights and cores have the same tables."""
    tables = [json.dumps(steps[str(MANY)]) for steps in GOLDENS["cases"].values()]

    assert len(set(tables)) == len(tables)


@pytest.mark.full
@ON_EITHER_OPS
@pytest.mark.parametrize(
    "case",
    [*(Case(name, cores=2) for name in OPTIMIZERS), Case("Adam", ("sum", "mean"), weighted=False)],
    ids=str,
)
def test_it_trains_as_the_reference(case: Case, native: bool) -> None:
    host, expected = Host([case], native=native), sparse_cores.reference(case)
    for ours, theirs in zip(host.train(0, case.steps), expected.activations, strict=True):
        for core, features in enumerate(theirs):
            for name, values in features.items():
                np.testing.assert_allclose(ours[core][name], values, rtol=0, atol=bound(values))
    crossing.assert_close(host.tables_of(""), expected.tables, str(case), RELATIVE)


EXACT = ("SGD", "Adagrad", "Adam", "Adam, sum outside")
"""Optimizers without powers, which either ops compute by functions of their own."""


@pytest.mark.parametrize("cores", [1, pytest.param(2, marks=pytest.mark.full)])
def test_either_ops_compute_the_same(cores: int) -> None:
    """Native ops train what TensorFlow's ops train: to the bit, but for rounding of powers."""
    cases = [Case(name, weighted=i % 2 == 0, cores=cores) for i, name in enumerate(OPTIMIZERS)]
    native, plain = (Host(cases, native=native) for native in (True, False))

    for ours, theirs in zip(native.train(0, 2), plain.train(0, 2), strict=True):
        for core, features in enumerate(theirs):
            for name, values in features.items():
                exact = cases[int(re.sub(r"\D", "", name))].optimizer in EXACT
                np.testing.assert_allclose(
                    ours[core][name], values, rtol=0, atol=0 if exact else bound(values)
                )
    for end, case in native.cases:
        tolerance = 0.0 if case.optimizer in EXACT else RELATIVE
        actual, expected = native.tables_of(end), plain.tables_of(end)
        crossing.assert_close(actual, expected, str(case), tolerance)


@ON_EITHER_OPS
def test_a_step_of_a_table_has_that_order(native: bool) -> None:
    """Adam and AdagradMomentum weigh a square last; 1 - beta is no power of two here."""
    gradient = np.random.default_rng(1).normal(size=(8, 64)).astype(np.float32)
    momentum = tf2_engine.AdagradMomentum(1.0, momentum=0.5, beta2=0.9, epsilon=0.125, exponent=2.0)
    adam = tf2_engine.Adam(1.0, beta_2=0.9)
    spec = EngineSpec(
        (TableSpec("a", 8, 64, "sum", adam), TableSpec("m", 8, 64, "sum", momentum)),
        tuple(FeatureSpec(name, name, output_shape=(8,)) for name in "am"),
    )
    driver = HostDriver(native, arithmetic="sparsecore")
    embedding = tf2_engine.TPUEmbedding(spec, driver=driver)
    embedding.enqueue(dict.fromkeys("am", tf.range(8, dtype=tf.int64)))
    embedding.dequeue()
    embedding.apply_gradients(dict.fromkeys("am", tf.constant(gradient)))

    weighed = (np.float32(1) - np.float32(0.9)) * gradient * gradient
    for table, slot in (("a", "velocities"), ("m", "accumulators")):
        (rows,) = embedding.tables[table].variables[slot]
        np.testing.assert_array_equal(rows, weighed, table)
    assert (weighed != (np.float32(1) - np.float32(0.9)) * (gradient * gradient)).any()


def test_ftrl_divides_by_zero() -> None:
    """A row with an accumulator and a gradient of zeros is NaN on SparseCores, 0 on the first."""
    optimizer = tf2_engine.FTRL(1.0)
    zero, one = tf.zeros([1, 1]), tf.constant(1.0)
    slots = {"accumulators": zero, "linears": zero}

    assert np.isnan(of_sparsecore("words", optimizer).update(one, slots, zero, one)[0]).all()
    assert optimizer.update(one, slots, zero, one)[0].numpy() == 0.0


def test_what_sparsecores_cannot_do_is_refused() -> None:
    table = TableSpec("words", 10, 4, "sum", tf2_engine.Momentum(RATE, momentum=0.5))
    spec = EngineSpec((table,), (FeatureSpec("title", "words", output_shape=(4,)),))
    embedding = tf2_engine.TPUEmbedding(spec, driver=HostDriver(arithmetic="sparsecore"))
    with pytest.raises(errors.InvalidSpec, match="'words', optimizer Momentum: SparseCores have"):
        embedding.build()


def test_another_arithmetic_is_refused() -> None:
    with pytest.raises(errors.InvalidSpec, match=r"`arithmetic` must be .*, got 'v5p'"):
        HostDriver(arithmetic="v5p")  # type: ignore[arg-type]
    assert "SparseCore's arithmetic" in repr(HostDriver(arithmetic="sparsecore"))
