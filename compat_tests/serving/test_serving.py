"""Lookups for serving equal stock's, for all tables and nests; and refusals."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.references.tolerance import allowed
from compat_tests.support import serving_inputs
from compat_tests.support.serving_inputs import (
    COMBINERS,
    DIM,
    KINDS,
    RAGGED,
    ROWS,
    SPARSE,
    TABLE,
    WEIGHTS,
    config,
    in_shards,
    outcome,
    spec,
    stock,
)
from tf2_engine import SGD, EngineSpec, FeatureSpec, TableSpec, TPUEmbedding, errors
from tf2_engine.serving import cpu_embedding_lookup, serving_embedding_lookup

# --- Stock ----------------------------------------------------------------------------------

DIFFERENCES = {
    ("sparse, last sample empty", "unvalidated"): (
        "stock cuts the samples behind the last id off, which is of no use to a model"
    ),
    ("sparse, nothing", "unvalidated"): "the same: stock returns no sample at all",
    ("ragged, open output_shape", "validated"): "stock fails where it needs the first dimension",
}
"""Batches whose result differs from stock's on purpose, for every combiner and weight, and why."""


def agree(wanted: Any, actual: Any) -> bool:
    """Whether two outcomes are the same: numbers, or a refusal of the same type."""
    if isinstance(wanted, Exception) or isinstance(actual, Exception):
        common = ValueError if isinstance(wanted, ValueError) else tf.errors.InvalidArgumentError
        return isinstance(wanted, Exception) and isinstance(actual, common)
    # Both are off by what sums of at most 6 float32 terms of at most 4 may be off.
    bound = 2 * allowed(6, 0, 6 * 4)
    return wanted.shape == actual.shape and bool(np.all(np.abs(wanted - actual) <= bound))


@pytest.mark.filterwarnings("ignore:.*max_sequence_length.*is ignored")
@pytest.mark.parametrize(
    "name, validation",
    [(name, "validated") for name in KINDS]
    # `validate_weights_and_indices` is of sparse features.
    + [(name, "unvalidated") for name in KINDS if name.startswith("sparse")],
)
def test_lookups_are_those_of_stock(name: str, validation: str) -> None:
    """Numbers, shapes and refusals are stock's for every combiner and weight."""
    kind = KINDS[name]
    intended = (name, validation) in DIFFERENCES
    for combiner, (label, values) in itertools.product(COMBINERS, WEIGHTS.items()):
        if values is not None and not kind.weighted:
            continue
        feature_config = config(
            kind, combiner, validate_weights_and_indices=validation == "validated"
        )
        both = [
            outcome(lookup, kind.features(), kind.weights(values), feature_config)
            for lookup in (stock.serving_embedding_lookup, cpu_embedding_lookup)
        ]
        where = f"{name}, {combiner}, {label}: stock {both[0]!r}, ours {both[1]!r}"
        assert agree(*both) is not intended, where


def test_stock_has_the_same_two_names() -> None:
    """The lookup also has the name under which TensorFlow exports it."""
    assert serving_embedding_lookup is cpu_embedding_lookup


@pytest.mark.parametrize("ignored", ["rank of the ids is 3", "`output_shape` is set"])
def test_a_sequence_length_is_not_ignored_in_silence(ignored: str) -> None:
    """Where stock ignores `max_sequence_length`, so do we; a warning tells the caller why."""
    kind = KINDS[f"sparse, sequence, {'rank 3' if 'rank' in ignored else 'output_shape'}"]

    with pytest.warns(UserWarning, match=f"'n/x' .*{ignored}") as caught:
        outcome(cpu_embedding_lookup, kind.features(), None, config(kind))
    assert caught[0].filename == serving_inputs.__file__, "`outcome` is the caller"


# --- Tables and nests -------------------------------------------------------------------

FORMS: dict[str, Callable[[], Any]] = {
    "array": lambda: TABLE,
    "tensor": lambda: tf.constant(TABLE),
    "variable": lambda: tf.Variable(TABLE),
    "one shard": lambda: (tf.Variable(TABLE),),
    "tuple of variables": lambda: tuple(map(tf.Variable, in_shards(2))),
    "list of variables": lambda: list(map(tf.Variable, in_shards(5))),
    "list of arrays": lambda: in_shards(5),
    "sharded variable": lambda: tf.__internal__.distribute.ShardedVariable(
        list(map(tf.Variable, in_shards(5)))
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_tables_may_have_any_form(form: str) -> None:
    """Rows are the same from an array, a variable and shards, under a name or a TableConfig."""
    kind = KINDS["dense"]
    feature_config = config(kind)
    other = stock.TableConfig(1, 1, name="others")

    for key in ("users", feature_config["n"]["x"].table):
        tables = {other: np.zeros([1, 1]), key: FORMS[form]()}
        activations = cpu_embedding_lookup(
            {"n": {"x": kind.features()}}, None, tables, feature_config
        )["n"]["x"]

        np.testing.assert_array_equal(TABLE[[3, 0, 3, 11]], activations, err_msg=f"{form}, {key}")


def test_more_hosts_than_rows_are_no_matter() -> None:
    """Shards of a table that is padded to one row per host are read as such."""
    engine_spec = EngineSpec(
        (TableSpec("few", 2, DIM, optimizer=SGD(0.5)),), (FeatureSpec("x", "few"),)
    )
    shards = [TABLE[[0]], TABLE[[1]], TABLE[[2]]]

    activations = cpu_embedding_lookup(
        {"x": tf.constant([1, 0])}, None, {"few": shards}, engine_spec
    )["x"]

    np.testing.assert_array_equal(TABLE[[1, 0]], activations)


def test_any_nest_and_any_part_of_it_is_looked_up() -> None:
    """Features are found by their path in the config; absent ones need no table."""
    users, items = stock.TableConfig(ROWS, DIM), stock.TableConfig(2, 1)
    user, item = stock.FeatureConfig(users), stock.FeatureConfig(items)
    feature_config = {"a": [user, item], "b": (user, {"c": item})}
    ids, zero = tf.constant([1, 2]), tf.constant([0])
    tables = {"table_0": TABLE, "table_1": np.array([[5.0], [6.0]], np.float32)}

    whole = cpu_embedding_lookup(
        {"a": [ids, zero], "b": (zero, {"c": zero})}, None, tables, feature_config
    )
    part = cpu_embedding_lookup({"a": [ids]}, None, {"table_0": TABLE}, feature_config)
    single = cpu_embedding_lookup(ids, None, {users: TABLE}, user)

    np.testing.assert_array_equal(TABLE[[1, 2]], whole["a"][0])
    np.testing.assert_array_equal([[5.0]], whole["b"][1]["c"])
    assert isinstance(whole["b"], tuple)
    np.testing.assert_array_equal(TABLE[[1, 2]], part["a"][0])
    np.testing.assert_array_equal(TABLE[[1, 2]], single)


def test_nothing_that_is_passed_in_is_changed() -> None:
    table = stock.TableConfig(ROWS, DIM)

    cpu_embedding_lookup(tf.constant([1]), None, {table: TABLE}, stock.FeatureConfig(table))

    assert table.name is None
    assert table.optimizer is None


def test_arrays_are_welcome() -> None:
    activations = cpu_embedding_lookup(
        {"n": {"x": np.array([3, 1])}}, None, {"users": TABLE}, config(KINDS["dense"])
    )

    np.testing.assert_array_equal(TABLE[[3, 1]], activations["n"]["x"])


# --- Refusals -----------------------------------------------------------------------------------

DENSE, SEQUENCE = KINDS["dense"], KINDS["sparse, sequence"]

REFUSALS: dict[str, tuple[Any, Any, Any, str]] = {
    "weights of dense ids": (
        DENSE, DENSE.features, lambda: tf.ones([4]), "'n/x'.*weights are given.*ids are dense"
    ),
    "weights of another kind": (
        KINDS["sparse"],
        KINDS["sparse"].features,
        lambda: RAGGED([1.0] * 6, tf.float32),
        "'n/x'.*SparseTensor, got RaggedTensor",
    ),
    "a dense sequence": (
        SEQUENCE, DENSE.features, lambda: None, "'n/x'.*ids are dense.*max_sequence_length=2"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_what_stock_refuses_is_refused_by_name(case: str) -> None:
    """Stock's errors are ValueErrors here too, and name the feature's path."""
    kind, features, weights, message = REFUSALS[case]
    weight = weights()
    assert isinstance(
        outcome(stock.serving_embedding_lookup, features(), weight, config(kind)), ValueError
    )
    inputs = {"n": {"x": features()}}

    with pytest.raises(errors.InvalidInput, match=message):
        cpu_embedding_lookup(
            inputs,
            None if weight is None else {"n": {"x": weight}},
            {"users": TABLE},
            config(kind),
        )


@pytest.mark.parametrize("combiner", ["sum", "mean"])
@pytest.mark.parametrize("name", ["sparse, sequence", "ragged, sequence"])
def test_weights_of_sequences_mean_what_they_do_in_training(name: str, combiner: str) -> None:
    """Stock refuses them in serving; with FeatureConfigs and without they are the engine's."""
    kind = KINDS[name]
    make = SPARSE if name.startswith("sparse") else RAGGED
    weights = make([2.0, 0.5, 3.0, 4.0, 0.25, 1.5], tf.float32)
    feature_config = config(kind, combiner)["n"]
    refused = outcome(
        stock.serving_embedding_lookup, kind.features(), weights, config(kind, combiner)
    )
    assert isinstance(refused, ValueError)
    trained = spec(kind, combiner)
    table = dataclasses.replace(
        trained.tables[0], initializer=lambda shape, dtype: tf.constant(TABLE, dtype)
    )
    engine = TPUEmbedding(dataclasses.replace(trained, tables=(table,)))
    engine.enqueue({"x": kind.features()}, {"x": weights})
    activations = engine.dequeue()["x"]

    for each in (feature_config, trained):
        served = cpu_embedding_lookup(
            {"x": kind.features()}, {"x": weights}, {"users": TABLE}, each
        )
        np.testing.assert_array_equal(activations, served["x"])


def refused(inputs: Any, weights: Any = None, tables: Any = None) -> Any:
    """Looks up in the config of two features, n/x and n/y."""
    feature_config = config(KINDS["dense"])
    feature_config["n"]["y"] = feature_config["n"]["x"]
    return cpu_embedding_lookup(inputs, weights, tables or {"users": TABLE}, feature_config)


IDS_2 = tf.constant([1, 2])


def of(**tables: Any) -> Any:
    return refused({"n": {"x": IDS_2}}, None, tables)


@pytest.mark.parametrize(
    "call, kind, message",
    [
        (lambda: refused({"n": {"z": IDS_2}}), ValueError, r"'n/z'.*\['n/x', 'n/y'\]"),
        (lambda: refused({"n": {"x": [1, 2]}}), ValueError, "'n/x/0'"),
        (lambda: refused({"n": {"x": "word"}}), TypeError, "'n/x'.*got str"),
        (lambda: refused({"n": {"x": tf.constant(["a"])}}), TypeError, "'n/x'.*got string"),
        (lambda: refused({"n": {"x": tf.constant([0.5])}}), TypeError, "'n/x'.*got float32"),
        (lambda: refused({"n": {"x": IDS_2}}, {"n": {}}), ValueError, "`weights`.*structure"),
        (lambda: of(items=TABLE), ValueError, r"'n/x' \(table 'users'\).*\['items'\]"),
        (lambda: of(users=TABLE[:5]), ValueError, r"'n/x'.*\(5, 3\).*expected.*\(12, 3\)"),
        (lambda: of(users=TABLE[:, :2]), ValueError, r"'users'.*\(12, 2\).*expected.*\(12, 3\)"),
        (
            lambda: of(users=[TABLE[:2], TABLE[2:]]),
            *(ValueError, r"\(2, 3\), \(10, 3\).*expected.*\(6, 3\), \(6, 3\)"),
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(call: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        call()
    assert isinstance(caught.value, errors.EngineError)


@pytest.mark.parametrize("name", ["dense, out of range", "sparse, out of range"])
def test_an_id_outside_of_the_table_fails_by_name(name: str) -> None:
    kind = KINDS[name]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)'n/x' \(table 'users'\).*12$"):
        cpu_embedding_lookup({"n": {"x": kind.features()}}, None, {"users": TABLE}, config(kind))
