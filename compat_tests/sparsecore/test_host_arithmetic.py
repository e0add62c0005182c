"""The host driver with the arithmetic of SparseCores, on any version of TensorFlow.

Oracle: the float64 references; on 2.21 the software SparseCores as well (test_driver.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf2_engine
from compat_tests.references import sparsecore
from compat_tests.support import sparse_cores
from compat_tests.support.sparse_cores import OPTIMIZERS, RATE, Case
from tf2_engine import EngineSpec, FeatureSpec, TableSpec, errors
from tf2_engine.backends import HostDriver
from tf2_engine.sparsecore_rules import of_sparsecore

RELATIVE = 2e-6
"""Of the largest magnitude: as for stock's class on the software SparseCores."""


class Host:
    """Our engine for a case, with emulated cores on the host."""

    def __init__(self, case: Case, *, native: bool) -> None:
        self.case = case
        driver = HostDriver(native, arithmetic="sparsecore")
        self.embedding = tf2_engine.TPUEmbedding(
            sparse_cores.spec(case), driver=driver, num_cores=case.cores
        )
        self.embedding.build()
        assert ("native ops" if native else "TensorFlow's ops") in repr(driver)
        for table in case.ROWS:
            self.embedding.tables[table].variables["parameters"][0].assign(case.initial(table))

    def train(self) -> list[Any]:
        """Returns the activations of each step and core, as the cases' batches have them."""
        activations = []
        for ids, gradients in sparse_cores.batches(self.case):
            inputs = [sparse_cores.tensors(self.case, batch) for batch in ids]
            weights = [{**weights, "dense": None} for _, weights in inputs]
            one = self.case.cores == 1
            features = [ids for ids, _ in inputs]
            self.embedding.enqueue(features[0] if one else features, weights[0] if one else weights)
            outputs = self.embedding.dequeue()
            sent = [{f: tf.constant(g) for f, g in of_core.items()} for of_core in gradients]
            self.embedding.apply_gradients(sent[0] if one else sent)
            activations.append([outputs] if one else outputs)
        return activations

    def tables(self) -> dict[str, dict[str, Any]]:
        """Returns parameters and slots, by table."""
        return {
            name: {kind: shards[0].numpy() for kind, shards in table.variables.items()}
            for name, table in self.embedding.tables.items()
        }


@pytest.mark.full
@pytest.mark.parametrize("native", [True, False], ids=["native", "tensorflow"])
@pytest.mark.parametrize(
    "case",
    [*(Case(name, cores=2) for name in OPTIMIZERS), Case("Adam", ("sum", "mean"), weighted=False)],
    ids=str,
)
def test_it_trains_as_the_reference(case: Case, native: bool) -> None:
    """Activations, tables and slots are those of the float64 reference."""
    host, expected = Host(case, native=native), sparse_cores.reference(case)
    for ours, theirs in zip(host.train(), expected.activations, strict=True):
        for core, features in enumerate(theirs):
            for name, values in features.items():
                np.testing.assert_allclose(ours[core][name], values, rtol=0, atol=2e-6 * 8)
    assert_close(host.tables(), expected.tables, RELATIVE)


def assert_close(actual: Any, expected: Any, tolerance: float) -> None:
    """Asserts that tables are equal, up to a part of the largest magnitude and of 1."""
    for table, variables in expected.items():
        for name, values in variables.items():
            scale = max(1.0, float(np.abs(values).max()))
            np.testing.assert_allclose(
                actual[table][name], values, rtol=0, atol=tolerance * scale, err_msg=name
            )


EXACT = ("SGD", "Adagrad", "Adam", "Adam, sum outside")
"""Optimizers without powers, which either ops compute by functions of their own."""


@pytest.mark.parametrize("name", [*OPTIMIZERS])
def test_either_ops_compute_the_same(name: str) -> None:
    """Native ops train what TensorFlow's ops train: to the bit, but for rounding of powers."""
    case = Case(name, cores=2, steps=2)
    native, plain = (Host(case, native=native) for native in (True, False))
    tolerance = 0.0 if name in EXACT else RELATIVE

    for ours, theirs in zip(native.train(), plain.train(), strict=True):
        for core, features in enumerate(theirs):
            for feature, values in features.items():
                np.testing.assert_allclose(ours[core][feature], values, rtol=0, atol=tolerance * 8)
    assert_close(native.tables(), plain.tables(), tolerance)


def test_the_order_of_operations_is_that_of_the_op() -> None:
    """(1 - beta) * g is rounded before it is multiplied by g again; first generation squares g."""
    rng = np.random.default_rng(0)
    g, v = rng.normal(size=(2, 1000, 1)).astype(np.float32)
    v = np.abs(v)
    optimizer = tf2_engine.Adam(1.0, beta_2=0.9)
    zeros, one = tf.zeros_like(g), tf.constant(1.0)
    slots = {"momenta": zeros, "velocities": tf.constant(v)}
    beta, rest = np.float32(0.9), np.float32(1) - np.float32(0.9)

    new = of_sparsecore("words", optimizer).update(zeros, slots, g, one)[1]["velocities"]
    np.testing.assert_array_equal(new, beta * v + rest * g * g)
    old = optimizer.update(zeros, slots, g, one)[1]["velocities"]
    np.testing.assert_array_equal(old, beta * v + rest * (g * g))
    assert (new.numpy() != old.numpy()).any()


def test_ftrl_divides_by_zero() -> None:
    """A row with an accumulator and a gradient of zeros is NaN on SparseCores, 0 on the first."""
    optimizer = tf2_engine.FTRL(1.0)
    zero, one = tf.zeros([1, 1]), tf.constant(1.0)
    slots = {"accumulators": zero, "linears": zero}

    assert np.isnan(of_sparsecore("words", optimizer).update(one, slots, zero, one)[0]).all()
    assert optimizer.update(one, slots, zero, one)[0].numpy() == 0.0


def test_what_sparsecores_cannot_do_is_refused() -> None:
    """A setting that SparseCores lack is refused with the table, the optimizer and its name."""
    table = TableSpec("words", 10, 4, "sum", tf2_engine.Momentum(RATE, momentum=0.5))
    spec = EngineSpec((table,), (FeatureSpec("title", "words", output_shape=(4,)),))
    embedding = tf2_engine.TPUEmbedding(spec, driver=HostDriver(arithmetic="sparsecore"))
    with pytest.raises(errors.InvalidSpec, match="'words', optimizer Momentum: SparseCores have"):
        embedding.build()


def test_another_arithmetic_is_refused() -> None:
    """There are two kinds of arithmetic, and a driver says which it has."""
    with pytest.raises(errors.InvalidSpec, match=r"`arithmetic` must be .*, got 'v5p'"):
        HostDriver(arithmetic="v5p")  # type: ignore[arg-type]
    assert "SparseCore's arithmetic" in repr(HostDriver(arithmetic="sparsecore"))


def test_the_reference_has_the_rows_where_they_are_worked_out() -> None:
    """The reference puts rows of 10 and 7 on 4 SparseCores where they are worked out by hand."""

    def saved(table: sparsecore.TableInStack, row: int) -> int:
        core, local = table.place(row)
        return core * table.total * table.sparse_cores + local

    one_core = sparsecore.stack({"a": 10, "b": 7}, 1, 4)
    assert [saved(one_core["a"], row) for row in range(10)] == [0, 16, 32, 48, 1, 17, 33, 49, 2, 18]
    assert [saved(one_core["b"], row) for row in range(7)] == [8, 24, 40, 56, 9, 25, 41]
    two_cores = sparsecore.stack({"a": 10, "b": 7}, 2, 2)
    assert [saved(two_cores["b"], row) for row in range(7)] == [40, 56, 8, 24, 41, 57, 9]
    assert saved(sparsecore.stack({"a": 10, "b": 7}, 2, 4)["b"], 0) == 72
