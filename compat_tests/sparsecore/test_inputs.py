"""Every kind of input on SparseCores, including sequences, forward and backward.

Oracle: the reference, which reads the ids in plain Python.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf2_engine
from compat_tests.cases.optimizers import COMBINERS
from compat_tests.conftest import Array
from compat_tests.engine.test_lookup import assert_step, first_rows
from compat_tests.support.lookup_inputs import DIM, GAP_IDS, GAPS, INPUTS, ROWS, Input, a_sparse
from tf2_engine import SGD, EngineSpec, FeatureSpec, TableSpec, errors
from tf2_engine.soft_tpu import SoftTPUStrategy

MORE: dict[str, Input] = {
    "sequence that four SparseCores share": a_sparse(GAPS, GAP_IDS, shape=[4, 5], length=3),
    "sequence with a row for each of several": a_sparse(
        [[0, 0, 0], [0, 1, 0], [0, 1, 1], [3, 2, 0], [3, 3, 0]],
        [1, 2, 2, 3, 4],
        [1.0, 0.5, 2.0, 3.0, 1.0],
        shape=[4, 4, 2],
        length=3,
    ),
}
"""For cores of four SparseCores, among which 12 positions divide."""


@functools.lru_cache
def step(combiner: str, sparse_cores: int) -> dict[str, tuple[Array, tuple[Array, Array, Array]]]:
    """Runs a step of SGD at a rate of 1, with a feature for each input, and a table for each.

    Returns the rows before it and the arguments of `assert_step`, by input.
    """
    inputs = INPUTS if sparse_cores == 1 else MORE
    spec = EngineSpec(
        tuple(TableSpec(name, ROWS, DIM, combiner, SGD(1.0), first_rows) for name in inputs),
        tuple(
            FeatureSpec(
                name,
                name,
                max_sequence_length=one.length,
                output_shape=one.shape if one.declared else None,
            )
            for name, one in inputs.items()
        ),
    )
    strategy = SoftTPUStrategy(1, hardware="sparsecore", sparse_cores=sparse_cores)
    with strategy.scope():
        engine = tf2_engine.TPUEmbedding(spec)
        engine.build({name: (*one.shape, 1) for name, one in inputs.items()})
    chance = np.random.default_rng(0)
    gradients = {
        name: tf.constant(chance.uniform(-1, 1, (*one.shape, DIM)), tf.float32)
        for name, one in inputs.items()
    }
    before = tables_of(engine)

    @tf.function
    def train(ids: Any, weights: Any) -> Any:
        def replica(ids: Any, weights: Any) -> Any:
            engine.enqueue(ids, {**dict.fromkeys(inputs), **weights})
            activations = engine.dequeue()
            engine.apply_gradients(gradients)
            return activations

        return strategy.run(replica, args=(ids, weights))

    weights = {name: one.weight() for name, one in inputs.items() if one.weight is not None}
    outputs = train({name: one.value() for name, one in inputs.items()}, weights)
    after = tables_of(engine)
    return {
        name: (before[name], (outputs[name].numpy(), gradients[name].numpy(), after[name]))
        for name in inputs
    }


def tables_of(engine: tf2_engine.TPUEmbedding) -> dict[str, Array]:
    engine.retrieve()
    return {name: table.variables["parameters"][0].numpy() for name, table in engine.tables.items()}


@pytest.mark.parametrize(
    ("name", "sparse_cores", "combiner"),
    [
        *((name, 4, "mean") for name in MORE),
        *(
            pytest.param(name, 1, each, marks=pytest.mark.full)
            for name in INPUTS
            for each in COMBINERS
        ),
    ],
)
def test_inputs_are_looked_up_and_trained(name: str, sparse_cores: int, combiner: str) -> None:
    """Activations are those of the reference, and only the rows that were looked up move."""
    one = {**INPUTS, **MORE}[name]
    before, results = step(combiner, sparse_cores)[name]

    assert_step(one, combiner, before, results, f"{name}, {combiner}")


def look_up(ids: Any, **feature: Any) -> Any:
    """Returns the activation of one feature, on a core with one SparseCore."""
    strategy = SoftTPUStrategy(1, hardware="sparsecore", sparse_cores=1)
    spec = EngineSpec(
        (TableSpec("words", ROWS, DIM, "sum", SGD(1.0), first_rows),),
        (FeatureSpec("title", "words", **feature),),
    )
    with strategy.scope():
        engine = tf2_engine.TPUEmbedding(spec, batch_size=2)
        engine.build()

    @tf.function(input_signature=[tf.SparseTensorSpec([2, None, None], tf.int64)])
    def step(ids: Any) -> Any:
        def replica(ids: Any) -> Any:
            engine.enqueue({"title": ids})
            return engine.dequeue()

        return strategy.run(replica, args=(ids,))

    return step(ids)["title"].numpy()


def test_a_position_outside_of_the_output_shape_is_an_error() -> None:
    """The op would take it for the first position of the next sample."""
    ids = tf.SparseTensor([[0, 2, 0]], tf.constant([1], tf.int64), [2, 3, 1])

    with pytest.raises(tf.errors.InvalidArgumentError, match="outside"):
        look_up(ids, output_shape=(2, 2))
    assert look_up(ids, max_sequence_length=2).shape == (2, 2, DIM)


def test_sequences_of_other_ranks_are_refused() -> None:
    """Ids without positions, and of a plain feature with them, are refused by the feature."""
    ids = tf.SparseTensor([[0, 1, 0]], tf.constant([1], tf.int64), [2, 2, 1])

    with pytest.raises(errors.InvalidInput, match=r"'title'.*shape \(2,\), but .* leads to"):
        look_up(ids)
