"""FrequencyEstimator end to end: counting, lookup, saving, restoring and further counting.

Oracle: the float64 reference of the rule.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cases.optimizers import MODES
from compat_tests.conftest import Engine, Runner
from compat_tests.references.inputs import dense
from compat_tests.references.tolerance import assert_lookup
from compat_tests.references.training import Lookup, ReferenceTable, assert_step
from tf2_engine import EngineSpec, FeatureSpec, FrequencyEstimator, TableSpec
from tf2_engine.serving import cpu_embedding_lookup

ROWS, BATCH = 6, 3
# No number of steps comes to equal threshold times D, where rounding would decide.
SETTINGS = {"tau": 0.3, "max_delta": 6.5, "outlier_threshold": 1.37, "weight_exponent": 0.75}
STEPS = [[0, 1, 0], [0, 2, 3], [0, 0, 0], [1, 4, 0], [0, 3, 3], [2, 2, 1], [0, 1, 4], [0, 0, 2]]
"""Row 5 is never hit."""


class Counting:
    """An engine whose learning rate is the step, and the reference beside it."""

    def __init__(self, mode: str, weighted: bool) -> None:
        self.runner = Runner(mode)
        with self.runner.scope():
            self.step = tf.Variable(0, dtype=tf.int64, name="step")
        step = self.step
        estimator = FrequencyEstimator(lambda: step.read_value(), weighted=weighted, **SETTINGS)
        self.spec = EngineSpec(
            (TableSpec("counts", ROWS, 1, "sum", estimator),), (FeatureSpec("ids", "counts"),)
        )
        self.engine = Engine(self.runner, self.spec)
        self.engine.build_for([(BATCH,)])
        self.weighted = weighted
        # A power near 1 of a quotient below 1: the roundings of one update are plenty.
        self.roundings = 1 if weighted else 0

    def looked_up(self, rows: Any) -> Any:
        """Returns what a lookup of rows is, [num_ids, 1] float64."""
        rows = np.asarray(rows, np.float64)
        if not self.weighted:
            return rows
        return (rows / SETTINGS["max_delta"]) ** SETTINGS["weight_exponent"]

    def train(self, reference: ReferenceTable, numbers: range) -> None:
        for number in numbers:
            ids = STEPS[number]
            self.runner.write(self.step, number + 1)
            before = self.engine.read()["counts"]["parameters"]
            (activations,) = self.engine.train(
                [{"ids": tf.constant(ids)}], None, [{"ids": tf.zeros([BATCH, 1])}]
            )
            zeros = np.zeros((BATCH, 1), np.float32)
            assert_step(
                [reference],
                [Lookup(0, 0, dense(ids), activations["ids"], zeros)],
                self.engine.read()["counts"],
                float(number + 1),
                f"step {number}, weighted: {self.weighted}, {self.runner.mode}",
                rows=self.looked_up(before),
                n_terms=1,
                steps=self.roundings,
            )


def new_reference() -> ReferenceTable:
    """Returns the reference of a table that starts at `max_delta`."""
    return ReferenceTable(np.full((ROWS, 1), SETTINGS["max_delta"]), "FrequencyEstimator", SETTINGS)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_counting_follows_the_reference(mode: str, weighted: bool) -> None:
    counting, reference = Counting(mode, weighted), new_reference()
    reference.assert_held(counting.engine.read()["counts"], "start")

    counting.train(reference, range(len(STEPS)))

    held = counting.engine.read()["counts"]
    assert held["parameters"][5] == [6.5]
    assert held["last_hit_step"][:, 0].tolist() == [8, 7, 8, 5, 7, 0]


@pytest.mark.parametrize("weighted", [False, True])
def test_counting_goes_on_after_a_restore(weighted: bool, tmp_path: pathlib.Path) -> None:
    """A checkpoint has D and the last hits, whatever lookups make of D; training goes on there."""
    counting, reference = Counting("eager", weighted), new_reference()
    counting.train(reference, range(4))
    path = tf.train.Checkpoint(embedding=counting.engine.embedding).write(str(tmp_path / "counts"))

    saved = tf.train.load_checkpoint(path)
    key = "embedding/counts{}/.ATTRIBUTES/VARIABLE_VALUE"
    held = counting.engine.read()["counts"]
    np.testing.assert_array_equal(saved.get_tensor(key.format("")), held["parameters"])
    np.testing.assert_array_equal(
        saved.get_tensor(key.format(".Slast_hit_step")), held["last_hit_step"]
    )

    other = Counting("eager", not weighted)  # the switch is no part of a checkpoint
    tf.train.Checkpoint(embedding=other.engine.embedding).read(path).assert_consumed()
    other.train(reference, range(4, len(STEPS)))


@pytest.mark.parametrize("weighted", [False, True])
def test_lookups_do_not_count(weighted: bool) -> None:
    """Evaluation and serving give what training would, and leave D and the last hits alone."""
    counting, reference = Counting("eager", weighted), new_reference()
    counting.train(reference, range(5))
    rows = counting.looked_up(counting.engine.read()["counts"]["parameters"])
    ids, steps = [0, 3, 5], counting.roundings

    activation = counting.engine.look_up([{"ids": tf.constant(ids)}])[0]["ids"]
    assert_lookup(rows, dense(ids), "sum", activation, n_terms=1, steps=steps, where="evaluation")
    served = cpu_embedding_lookup(
        {"ids": tf.constant(ids)}, None, counting.engine.embedding.tables, counting.spec
    )
    np.testing.assert_array_equal(served["ids"], activation)
    reference.assert_held(counting.engine.read()["counts"], "after lookups")


def test_the_gradient_is_not_used() -> None:
    tables = []
    for gradient in (0.0, 1e30):
        counting = Counting("eager", False)
        counting.step.assign(3)
        counting.engine.train(
            [{"ids": tf.constant([0, 1, 1])}], None, [{"ids": tf.fill([BATCH, 1], gradient)}]
        )
        tables.append(counting.engine.read()["counts"])
    np.testing.assert_array_equal(tables[0]["parameters"], tables[1]["parameters"])
    np.testing.assert_array_equal(tables[0]["last_hit_step"], tables[1]["last_hit_step"])
