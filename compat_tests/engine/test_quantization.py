"""Simulated quantization rounds the values that lookups return, but not tables or gradients.

Oracle: the float64 reference, and stock's own code for the configuration.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cases.optimizers import MODES
from compat_tests.conftest import Array, Engine, Runner
from compat_tests.references.inputs import sparse
from compat_tests.references.lookup import combine
from compat_tests.references.quantization import quantize
from compat_tests.references.tolerance import assert_close, lookup_scale
from compat_tests.references.training import ReferenceTable, contributions
from compat_tests.support import fake_tpu
from tf2_engine import (
    SGD,
    EngineSpec,
    FeatureSpec,
    FrequencyEstimator,
    Quantization,
    TableSpec,
    TPUEmbedding,
    errors,
)
from tf2_engine.serving import cpu_embedding_lookup

emb = tf.tpu.experimental.embedding

ROWS, DIM = 12, 3
SETTINGS = (7, -0.75, 0.5)
"""Buckets, lower and upper end. The ends are float32 numbers."""
FIRST = np.random.default_rng(5).uniform(-1, 1, (ROWS, DIM)).astype(np.float32)
"""No number is near where float32 and float64 may round to different buckets; some are clipped."""
PLACES = [[0, 0], [0, 2], [2, 0], [2, 1], [2, 2], [3, 0]]
IDS = [4, 1, 7, 7, 0, 11]
WEIGHTS = [0.5, 2.0, 1.5, 3.0, 0.25, 4.0]
GRADIENT = np.random.default_rng(6).uniform(0.25, 1, (4, DIM)).astype(np.float32)


first_rows = tf.constant_initializer(FIRST)


def spec(combiner: str, quantization: Quantization | None) -> EngineSpec:
    table = TableSpec("table", ROWS, DIM, combiner, SGD(1.0), first_rows, quantization=quantization)
    return EngineSpec((table,), (FeatureSpec("ids", "table"),))


def ids() -> tf.SparseTensor:
    return tf.SparseTensor(PLACES, tf.constant(IDS, tf.int64), [4, 3])


def weights() -> tf.SparseTensor:
    return tf.SparseTensor(PLACES, tf.constant(WEIGHTS), [4, 3])


def step(mode: str, combiner: str, quantization: Quantization | None) -> tuple[Array, Array]:
    """Returns the activation of a step of SGD, and the table after it."""
    engine = Engine(Runner(mode), spec(combiner, quantization))
    engine.build_for([(4,)])
    (activations,) = engine.train(
        [{"ids": ids()}], [{"ids": weights()}], [{"ids": tf.constant(GRADIENT)}]
    )
    return activations["ids"], engine.read()["table"]["parameters"]


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("mode", MODES)
def test_a_step_follows_the_reference(mode: str, combiner: str) -> None:
    """Rows are rounded before they are combined; the update is that of rows as they are."""
    activation, after = step(mode, combiner, Quantization(*SETTINGS))
    occurrences = sparse(PLACES, IDS, WEIGHTS)
    rounded = quantize(FIRST, *SETTINGS)
    expected, gains = combine(rounded, occurrences, 4, combiner)
    table = ReferenceTable(FIRST, "SGD", {})
    table.apply(contributions(0, 0, occurrences, gains), {(0, 0): GRADIENT}, 1.0)

    # A rounded number has gone through five operations on numbers no larger than twice the ends.
    scale = lookup_scale(np.full_like(FIRST, 2 * 0.75), occurrences, gains)
    assert_close(expected, activation, n_terms=3, steps=1, scale=scale, where=f"{combiner}, {mode}")
    table.assert_held({"parameters": after}, f"{combiner}, {mode}")


def test_rounding_is_the_same_to_the_bit_in_every_mode() -> None:
    results = [step(mode, "mean", Quantization(*SETTINGS))[0] for mode in MODES]

    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_counts_are_rounded_before_they_are_weighted() -> None:
    """What a FrequencyEstimator's table holds is rounded, and then turned into a weight."""
    estimator = FrequencyEstimator(
        lambda: tf.constant(1.0),
        tau=0.5,
        max_delta=8.0,
        outlier_threshold=2.5,
        weight_exponent=2.0,
        weighted=True,
    )
    table = TableSpec("table", 2, 1, "sum", estimator, quantization=Quantization(3, 0.0, 8.0))
    engine = Engine(Runner("eager"), EngineSpec((table,), (FeatureSpec("ids", "table"),)))
    engine.build_for([(2,)])
    engine.write("table", np.array([[3.0], [7.0]], np.float32))

    (activations,) = engine.look_up([{"ids": tf.constant([0, 1])}])

    # The buckets are 0, 4 and 8; (4 / 8)^2 and (8 / 8)^2.
    assert activations["ids"].tolist() == [[0.25], [1.0]]


def stock_config() -> Any:
    """Returns a feature of a quantized table, and one of a table that is not."""
    low, plain = (
        emb.TableConfig(ROWS, DIM, first_rows, name=name, quantization_config=quantization)
        for name, quantization in (("low", emb.QuantizationConfig(*SETTINGS)), ("plain", None))
    )
    return {"a": emb.FeatureConfig(low, name="a"), "b": emb.FeatureConfig(plain, name="b")}


@pytest.mark.parametrize("packed", [0, 1])
def test_the_configuration_is_that_of_stock(packed: int) -> None:
    """Quantization and packing are configured as stock configures them, byte for byte."""
    optimizer = fake_tpu.stock_optimizer("Adagrad", learning_rate=0.1)
    optimizer.low_dimensional_packing_status = packed
    strategy = fake_tpu.strategy(1, 2)
    shapes = {"a": tf.TensorShape([4, 1]), "b": tf.TensorShape([4, 1])}
    with tf.Graph().as_default(), fake_tpu.stock_builds(), strategy.scope():
        stock = emb.TPUEmbedding(stock_config(), optimizer)
        stock.build(shapes)
        wanted = stock._create_config_proto()
    ours = TPUEmbedding(stock_config(), optimizer, num_cores=2)
    ours.build(shapes)

    assert ours.config_proto == wanted
    parameters = [table.optimization_parameters for table in ours.config_proto.table_descriptor]
    assert [one.simulated_quantization.enabled for one in parameters] == [True, False]
    assert [one.low_dimensional_packing_status for one in parameters] == [packed, packed]


def test_stocks_settings_are_honoured() -> None:
    """An engine of stock's configs rounds what the quantized table gives, and nothing else."""
    engine = TPUEmbedding(stock_config(), SGD(1.0))
    engine.enqueue({"a": tf.range(ROWS), "b": tf.range(ROWS)}, training=False)
    activations = engine.dequeue()

    np.testing.assert_allclose(activations["a"], quantize(FIRST, *SETTINGS), atol=1e-6)
    np.testing.assert_array_equal(activations["b"], FIRST)


def test_serving_rounds_as_the_engine_or_not_at_all_as_stock() -> None:
    """With an EngineSpec a served lookup is the engine's; with FeatureConfigs it is stock's."""
    inputs, held = {"ids": ids()}, {"table": tf.constant(FIRST)}
    served = cpu_embedding_lookup(inputs, None, held, spec("sum", Quantization(*SETTINGS)))
    engine = Engine(Runner("eager"), spec("sum", Quantization(*SETTINGS)))
    np.testing.assert_array_equal(served["ids"], engine.look_up([inputs])[0]["ids"])

    config = {"a": stock_config()["a"]}
    table, every = config["a"].table, {"a": tf.range(ROWS)}
    ours = cpu_embedding_lookup(every, None, {table: tf.Variable(FIRST)}, config)
    stocks = emb.serving_embedding_lookup(every, None, {table: tf.Variable(FIRST)}, config)
    np.testing.assert_array_equal(ours["a"], stocks["a"])
    np.testing.assert_array_equal(ours["a"], FIRST)


@pytest.mark.parametrize(
    "settings, message",
    [
        ((1, 0.0, 1.0), "`num_buckets`.*at least 2, got 1"),
        ((2.0, 0.0, 1.0), "`num_buckets`.*got 2.0"),
        ((3, 1.0, 1.0), "`lower` must be below `upper`.*1.0 and 1.0"),
        ((3, 0.0, float("inf")), "both finite.*inf"),
        ((3, 1.0, 1.0 + 1e-12), "`lower` must be below `upper`"),
    ],
)
def test_settings_that_make_no_buckets_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(errors.InvalidSpec, match=message):
        Quantization(*settings)

    config = emb.QuantizationConfig(3, 0.0, 1.0)
    config.num_buckets, config.lower, config.upper = settings
    table = emb.TableConfig(ROWS, DIM, name="low", quantization_config=config)
    with pytest.raises(errors.InvalidSpec, match=f"Table 'low': .*{message}"):
        TPUEmbedding({"a": emb.FeatureConfig(table)}, SGD(1.0))
