"""Lookups for serving: stock's numbers, the engine's numbers, and SavedModels of plain ops."""

from __future__ import annotations

import base64
import dataclasses
import functools
import itertools
import json
import pathlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf2_engine
from compat_tests.references.inputs import Occurrence, ragged, sparse
from compat_tests.references.lookup import combine
from compat_tests.references.tolerance import allowed, assert_close, lookup_scale
from tf2_engine import SGD, Adagrad, EngineSpec, FeatureSpec, FrequencyEstimator, TableSpec, errors
from tf2_engine.serving import cpu_embedding_lookup, serving_embedding_lookup

stock = tf.tpu.experimental.embedding

ROWS, DIM = 12, 3
TABLE = np.random.default_rng(5).uniform(-1, 1, (ROWS, DIM)).astype(np.float32)
COMBINERS = ("sum", "mean", "sqrtn")

# --- Batches --------------------------------------------------------------------------------


def a_sparse(indices: Any, shape: Sequence[int]) -> Callable[[Any, Any], Any]:
    """Returns what makes a SparseTensor of values and a dtype."""
    where = np.array(indices, np.int64).reshape(-1, len(shape))
    return lambda values, dtype: tf.SparseTensor(
        where, tf.constant(values, dtype, [len(where)]), shape
    )


def a_ragged(splits: Sequence[int], dtype: Any = tf.int64) -> Callable[[Any, Any], Any]:
    """Returns what makes a RaggedTensor of values and a dtype."""
    return lambda values, kind: tf.RaggedTensor.from_row_splits(
        tf.constant(values, kind), tf.constant(splits, dtype)
    )


def a_dense(ids: Any, dtype: Any) -> tf.Tensor:
    """Returns a dense tensor."""
    return tf.constant(ids, dtype)


# Sample 1 is empty, sample 2 has id 7 twice; three samples of four positions.
PLACES = [[0, 0], [0, 2], [2, 0], [2, 1], [2, 2], [3, 0]]
IDS = [4, 1, 7, 7, 0, 11]
SPARSE = a_sparse(PLACES, [4, 3])
RAGGED = a_ragged([0, 2, 2, 5, 6])
# (sample, position, which): several ids at a position, and positions without.
RANK_3 = a_sparse([[0, 0, 0], [0, 0, 1], [2, 1, 0], [2, 1, 1], [2, 1, 3], [2, 2, 0]], [4, 3, 4])


@dataclasses.dataclass(frozen=True)
class Kind:
    """A batch of one feature.

    Attributes:
        make: makes a tensor of values and a dtype.
        ids: its ids.
        weighted: whether it is looked up with weights too.
        setting: of the FeatureConfig.
    """

    make: Callable[[Any, Any], Any]
    ids: Any = dataclasses.field(default_factory=lambda: IDS)
    weighted: bool = False
    dtype: Any = tf.int64
    setting: dict[str, Any] = dataclasses.field(default_factory=dict)

    def features(self) -> Any:
        return self.make(self.ids, self.dtype)

    def weights(self, values: Sequence[float] | None) -> Any:
        return None if values is None else self.make(values[: len(self.ids)], tf.float32)


KINDS = {
    "dense": Kind(a_dense, [3, 0, 3, 11]),
    "dense, int32": Kind(a_dense, [3, 0, 3, 11], dtype=tf.int32),
    "dense, a column": Kind(a_dense, [[3], [0], [3], [11]]),
    "dense, rank 3": Kind(a_dense, [[[3, 1], [0, 2]], [[11, 3], [5, 5]], [[0, 0], [1, 2]]]),
    "dense, a scalar": Kind(a_dense, 3),
    "dense, out of range": Kind(a_dense, [3, 12]),
    "dense, below 0": Kind(a_dense, [3, -1]),
    "sparse": Kind(SPARSE, weighted=True),
    "sparse, int32": Kind(SPARSE, weighted=True, dtype=tf.int32),
    "sparse, last sample empty": Kind(a_sparse(PLACES[:5], [4, 3]), IDS[:5], weighted=True),
    "sparse, nothing": Kind(a_sparse([], [4, 3]), [], weighted=True),
    "sparse, below 0": Kind(SPARSE, [4, -1, 7, -2, 0, -1], weighted=True),
    "sparse, out of range": Kind(SPARSE, [4, 1, 12, 7, 0, 1], weighted=True),
    "sparse, rank 3": Kind(RANK_3, weighted=True),
    "sparse, rank 3, below 0": Kind(RANK_3, [4, -1, 7, -2, 0, -1], weighted=True),
    "sparse, output_shape": Kind(RANK_3, setting={"output_shape": [4, 3]}),
    "sparse, another output_shape": Kind(SPARSE, setting={"output_shape": [7, 2]}),
    "sparse, sequence": Kind(SPARSE, weighted=True, setting={"max_sequence_length": 2}),
    "sparse, long sequence": Kind(SPARSE, setting={"max_sequence_length": 5}),
    "sparse, sequence, a position twice": Kind(
        a_sparse([[0, 0], [0, 0], [1, 1]], [2, 3]), [1, 2, 3], setting={"max_sequence_length": 2}
    ),
    "sparse, sequence, below 0": Kind(
        SPARSE, [4, -1, 7, -2, 0, -1], setting={"max_sequence_length": 3}
    ),
    "sparse, sequence, rank 3": Kind(RANK_3, setting={"max_sequence_length": 2}),
    "sparse, sequence, output_shape": Kind(
        SPARSE, setting={"max_sequence_length": 2, "output_shape": [4]}
    ),
    "ragged": Kind(RAGGED, weighted=True),
    "ragged, int32 splits": Kind(a_ragged([0, 2, 2, 5, 6], tf.int32), weighted=True),
    "ragged, below 0": Kind(RAGGED, [4, -1, 7, 7, 0, 1], weighted=True),
    "ragged, rank 3": Kind(
        lambda values, dtype: tf.ragged.constant([[[1], [2]], [[3]]], dtype=dtype)
    ),
    "ragged, sequence": Kind(RAGGED, weighted=True, setting={"max_sequence_length": 2}),
    "ragged, sequence of length 1": Kind(RAGGED, setting={"max_sequence_length": 1}),
    "ragged, output_shape": Kind(RAGGED, weighted=True, setting={"output_shape": [4]}),
    "ragged, folded": Kind(RAGGED, weighted=True, setting={"output_shape": [2, 2]}),
    "ragged, sequence by output_shape": Kind(
        RAGGED, weighted=True, setting={"output_shape": [4, 2]}
    ),
    "ragged, flat sequence by output_shape": Kind(RAGGED, setting={"output_shape": [8]}),
    "ragged, both": Kind(RAGGED, setting={"output_shape": [4, 2], "max_sequence_length": 3}),
    "ragged, output_shape that does not fit": Kind(RAGGED, setting={"output_shape": [6]}),
    "ragged, open output_shape": Kind(RAGGED, setting={"output_shape": [None, 2]}),
}

WEIGHTS: dict[str, list[float] | None] = {
    "unweighted": None,
    "weighted": [0.5, 2.0, 1.5, 3.0, 0.25, 4.0],
    "some weights not positive": [0.0, -2.0, 1.5, -3.0, 0.25, 0.0],
    "weights of 0": [0.0] * 6,
}


# --- Stock ----------------------------------------------------------------------------------

DIFFERENCES = {
    ("sparse, last sample empty", "unvalidated"): (
        "stock cuts the samples behind the last id off, which is of no use to a model"
    ),
    ("sparse, nothing", "unvalidated"): "the same: stock returns no sample at all",
    ("ragged, open output_shape", "validated"): "stock fails where it needs the first dimension",
}
"""Where we intend another result than stock, whatever combiner and weights, and why."""


def config(kind: Kind, combiner: str = "mean", **settings: Any) -> Any:
    """Returns a nest with one FeatureConfig, whose path is n/x."""
    table = stock.TableConfig(ROWS, DIM, combiner=combiner, name="users")
    return {"n": {"x": stock.FeatureConfig(table, **{**kind.setting, **settings})}}


def outcome(lookup: Any, features: Any, weights: Any, of: Any) -> Any:
    """Returns the activation of the feature, or the error."""
    tables = {of["n"]["x"].table: tf.Variable(TABLE)}
    weights = None if weights is None else {"n": {"x": weights}}
    try:
        return lookup({"n": {"x": features}}, weights, tables, of)["n"]["x"].numpy()
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        return error


def agree(wanted: Any, found: Any) -> bool:
    """Whether two outcomes are the same: numbers, or a refusal of the same type."""
    if isinstance(wanted, Exception) or isinstance(found, Exception):
        common = ValueError if isinstance(wanted, ValueError) else tf.errors.InvalidArgumentError
        return isinstance(wanted, Exception) and isinstance(found, common)
    # Both are off by what sums of at most 6 float32 terms of at most 4 may be off.
    bound = 2 * allowed(6, 0, 6 * 4)
    return wanted.shape == found.shape and bool(np.all(np.abs(wanted - found) <= bound))


@pytest.mark.filterwarnings("ignore:.*max_sequence_length.*is ignored")
@pytest.mark.parametrize(
    "name, validation",
    [(name, "validated") for name in KINDS]
    # `validate_weights_and_indices` is of sparse features.
    + [(name, "unvalidated") for name in KINDS if name.startswith("sparse")],
)
def test_lookups_are_those_of_stock(name: str, validation: str) -> None:
    """Numbers, shapes and refusals are stock's for every combiner and weight.

    Where a difference is intended, there is one.
    """
    kind = KINDS[name]
    intended = (name, validation) in DIFFERENCES
    for combiner, (label, values) in itertools.product(COMBINERS, WEIGHTS.items()):
        if values is not None and not kind.weighted:
            continue
        of = config(kind, combiner, validate_weights_and_indices=validation == "validated")
        both = [
            outcome(lookup, kind.features(), kind.weights(values), of)
            for lookup in (stock.serving_embedding_lookup, cpu_embedding_lookup)
        ]
        where = f"{name}, {combiner}, {label}: stock {both[0]!r}, ours {both[1]!r}"
        assert agree(*both) is not intended, where


def test_the_intended_differences_are_of_kinds_that_exist() -> None:
    """Every intended difference names a kind of batch that is compared."""
    assert {name for name, _ in DIFFERENCES} <= set(KINDS)


def test_stock_has_the_same_two_names() -> None:
    """The lookup also has the name under which TensorFlow exports it."""
    assert serving_embedding_lookup is cpu_embedding_lookup


@pytest.mark.parametrize("ignored", ["rank of the ids is 3", "`output_shape` is set"])
def test_a_sequence_length_is_not_ignored_in_silence(ignored: str) -> None:
    """Where stock ignores `max_sequence_length`, so do we; a warning tells the caller why."""
    kind = KINDS[f"sparse, sequence, {'rank 3' if 'rank' in ignored else 'output_shape'}"]

    with pytest.warns(UserWarning, match=f"'n/x' .*{ignored}") as caught:
        outcome(cpu_embedding_lookup, kind.features(), None, config(kind))
    assert caught[0].filename == __file__


# --- The formulas -----------------------------------------------------------------------------


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("make", [SPARSE, RAGGED], ids=["sparse", "ragged"])
def test_combiners_follow_their_formulas(make: Any, combiner: str) -> None:
    """Weighted rows are combined as the float64 reference does it, "sqrtn" with a division."""
    kind, weights = Kind(make), WEIGHTS["weighted"]
    assert weights is not None
    found = (
        sparse(PLACES, IDS, weights)
        if make is SPARSE
        else ragged([0, 2, 2, 5, 6], IDS, weights, num_cells=4)
    )
    wanted, gains = combine(TABLE, found, 4, combiner)

    result = outcome(
        cpu_embedding_lookup, kind.features(), kind.weights(weights), config(kind, combiner)
    )

    scale = lookup_scale(TABLE, found, gains)
    assert_close(wanted, result, n_terms=3, steps=0, scale=scale, where=combiner)


def test_a_sequence_is_cut_and_padded() -> None:
    """Position t of a sequence holds the row of its id; what is beyond the length is cut."""
    kind = KINDS["sparse, sequence"]
    found = [Occurrence(cell, id_, 1.0) for cell, id_ in [(0, 4), (4, 7), (5, 7), (6, 11)]]
    wanted, _ = combine(TABLE, found, 8, "sum")

    for name in ("sparse, sequence", "ragged, sequence"):
        kind = KINDS[name]
        result = outcome(cpu_embedding_lookup, kind.features(), None, config(kind))
        moved = wanted.reshape(4, 2, DIM).astype(np.float32)
        if name.startswith("ragged"):  # there is no gap in a ragged row
            moved[0, 1] = TABLE[1]
        np.testing.assert_array_equal(moved, result, err_msg=name)


# --- The engine -------------------------------------------------------------------------------


def spec(kind: Kind, combiner: str = "mean", **options: Any) -> EngineSpec:
    """Returns an EngineSpec with one feature x in a table."""
    setting = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in kind.setting.items()
    }
    table = TableSpec("users", ROWS, DIM, combiner=combiner, optimizer=SGD(0.5))
    return EngineSpec((table,), (FeatureSpec("x", "users", **setting),), **options)


def built(of: EngineSpec, hosts: int, features: Any, weights: Any) -> tuple[Any, Any]:
    """Returns an engine that holds TABLE, and what it looks up."""
    engine = tf2_engine.TPUEmbedding(of, num_hosts=hosts, num_cores=hosts)
    batch = [{"x": features}] * hosts if hosts > 1 else {"x": features}
    weight = [{"x": weights}] * hosts if hosts > 1 else {"x": weights}
    for step in range(2):
        engine.enqueue(batch, None if weights is None else weight, training=False)
        if not step:
            engine.dequeue()
            write(engine, TABLE)
    looked_up = engine.dequeue()
    return engine, (looked_up[0] if hosts > 1 else looked_up)["x"].numpy()


def write(engine: Any, rows: Any) -> None:
    """Puts rows, by id, into the engine's only table."""
    table = engine.tables["users"]
    for number, shard in enumerate(table.variables["parameters"]):
        ids = (
            np.arange(ROWS)[number :: table.num_shards]
            if table.strategy == "mod"
            else np.array_split(np.arange(ROWS), table.num_shards)[number]
        )
        shard.assign(rows[ids])


AS_ENGINE = [
    "dense",
    "dense, a column",
    "sparse",
    "sparse, last sample empty",
    "sparse, nothing",
    "sparse, rank 3",
    "sparse, output_shape",
    "sparse, sequence",
    "sparse, sequence, a position twice",
    "sparse, sequence, rank 3",
    "ragged",
    "ragged, sequence",
    "ragged, sequence of length 1",
    "ragged, output_shape",
    "ragged, folded",
    "ragged, sequence by output_shape",
]


@pytest.mark.parametrize("name", AS_ENGINE)
def test_with_a_spec_the_numbers_are_the_engines(name: str) -> None:
    """With an EngineSpec a lookup equals the engine's to the bit, weights and shapes included."""
    kind = KINDS[name]
    for (label, values), combiner in itertools.product(WEIGHTS.items(), COMBINERS):
        if values is not None and not kind.weighted:
            continue
        of = spec(kind, combiner)
        features, weights = kind.features(), kind.weights(values)
        engine, wanted = built(of, 1, features, weights)

        weighted = None if weights is None else {"x": weights}
        found = cpu_embedding_lookup({"x": features}, weighted, engine.embedding_tables, of)["x"]

        np.testing.assert_array_equal(wanted, found, err_msg=f"{name}, {combiner}, {label}")


@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize("hosts", [2, 3, 5])
def test_with_a_spec_shards_lie_as_it_says(strategy: str, hosts: int) -> None:
    """The shards of an engine are read by the partition strategy of its spec."""
    kind = KINDS["sparse"]
    of = spec(kind, partition_strategy=strategy)
    engine, wanted = built(of, hosts, kind.features(), None)

    for tables in (engine.embedding_tables, engine.tables):
        found = cpu_embedding_lookup({"x": kind.features()}, None, tables, of)["x"]
        np.testing.assert_array_equal(wanted, found)


def test_with_a_spec_an_absent_id_is_absent() -> None:
    """With `out_of_range_ids="drop"` ids outside the table count for nothing; they fail else."""
    kind = Kind(SPARSE, [4, -1, 7, 12, 0, 99])
    of = spec(kind, "mean", out_of_range_ids="drop")
    _, wanted = built(of, 1, kind.features(), None)
    tables = {"users": TABLE}

    found = cpu_embedding_lookup({"x": kind.features()}, None, tables, of)["x"]
    single = cpu_embedding_lookup({"x": tf.constant([4, 12])}, None, tables, of)["x"]

    np.testing.assert_array_equal(wanted, found)
    np.testing.assert_array_equal([TABLE[4], np.zeros(DIM)], single)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"'x'.*'users'.*rows 0 to 11"):
        cpu_embedding_lookup({"x": kind.features()}, None, tables, spec(kind))


def test_a_batch_may_have_another_size_than_in_training() -> None:
    """A ragged feature with an `output_shape` for 4 samples is looked up for 2, and for 1."""
    kind = KINDS["ragged, sequence by output_shape"]
    two = a_ragged([0, 1, 4])([4, 7, 0, 1], tf.int64)

    found = cpu_embedding_lookup({"x": two}, None, {"users": TABLE}, spec(kind))["x"]

    wanted = [[TABLE[4], np.zeros(DIM)], [TABLE[7], TABLE[0]]]
    np.testing.assert_array_equal(wanted, found)
    traced = tf.function(
        lambda ids: cpu_embedding_lookup({"n": {"x": ids}}, None, {"users": TABLE}, config(kind)),
        input_signature=[tf.RaggedTensorSpec([None, None], tf.int64)],
    )
    np.testing.assert_array_equal(wanted, traced(two)["n"]["x"])
    np.testing.assert_array_equal(wanted[1:], traced(two[1:])["n"]["x"])


def test_what_a_row_is_looked_up_as_is_up_to_the_optimizer() -> None:
    """A table of FrequencyEstimator is looked up as the engine looks it up."""
    optimizer = FrequencyEstimator(
        learning_rate=lambda: 1.0,
        tau=0.1,
        max_delta=8.0,
        outlier_threshold=2.0,
        weight_exponent=0.5,
        weighted=True,
    )
    of = EngineSpec(
        (TableSpec("users", ROWS, 1, combiner="sum", optimizer=optimizer),),
        (FeatureSpec("x", "users"),),
    )
    rows = np.arange(1, ROWS + 1, dtype=np.float32)[:, None]
    engine = tf2_engine.TPUEmbedding(of)
    engine.build_for([(2,)])
    engine.tables["users"].variables["parameters"][0].assign(rows)
    ids = tf.constant([3, 5])
    engine.enqueue({"x": ids}, training=False)

    found = cpu_embedding_lookup({"x": ids}, None, {"users": rows}, of)["x"]

    np.testing.assert_array_equal(engine.dequeue()["x"], found)
    np.testing.assert_allclose(np.sqrt(rows[[3, 5]] / 8), found, rtol=1e-6)


# --- Tables and nests ---------------------------------------------------------------------------


def in_shards(count: int) -> list[Any]:
    """Returns TABLE in div shards."""
    return np.array_split(TABLE, count)


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
    of = config(kind)
    other = stock.TableConfig(1, 1, name="others")

    for key in ("users", of["n"]["x"].table):
        tables = {other: np.zeros([1, 1]), key: FORMS[form]()}
        found = cpu_embedding_lookup({"n": {"x": kind.features()}}, None, tables, of)["n"]["x"]

        np.testing.assert_array_equal(TABLE[[3, 0, 3, 11]], found, err_msg=f"{form}, {key}")


def test_more_hosts_than_rows_are_no_matter() -> None:
    """Shards of a table that is padded to one row per host are read as such."""
    of = EngineSpec((TableSpec("few", 2, DIM, optimizer=SGD(0.5)),), (FeatureSpec("x", "few"),))
    shards = [TABLE[[0]], TABLE[[1]], TABLE[[2]]]

    found = cpu_embedding_lookup({"x": tf.constant([1, 0])}, None, {"few": shards}, of)["x"]

    np.testing.assert_array_equal(TABLE[[1, 0]], found)


def test_any_nest_and_any_part_of_it_is_looked_up() -> None:
    """Features are found by their path in the config; absent ones need no table."""
    users, items = stock.TableConfig(ROWS, DIM), stock.TableConfig(2, 1)
    user, item = stock.FeatureConfig(users), stock.FeatureConfig(items)
    of = {"a": [user, item], "b": (user, {"c": item})}
    ids, zero = tf.constant([1, 2]), tf.constant([0])
    tables = {"table_0": TABLE, "table_1": np.array([[5.0], [6.0]], np.float32)}

    whole = cpu_embedding_lookup({"a": [ids, zero], "b": (zero, {"c": zero})}, None, tables, of)
    part = cpu_embedding_lookup({"a": [ids]}, None, {"table_0": TABLE}, of)
    single = cpu_embedding_lookup(ids, None, {users: TABLE}, user)

    np.testing.assert_array_equal(TABLE[[1, 2]], whole["a"][0])
    np.testing.assert_array_equal([[5.0]], whole["b"][1]["c"])
    assert isinstance(whole["b"], tuple)
    np.testing.assert_array_equal(TABLE[[1, 2]], part["a"][0])
    np.testing.assert_array_equal(TABLE[[1, 2]], single)


def test_nothing_that_is_passed_in_is_changed() -> None:
    """An unnamed TableConfig stays unnamed."""
    table = stock.TableConfig(ROWS, DIM)

    cpu_embedding_lookup(tf.constant([1]), None, {table: TABLE}, stock.FeatureConfig(table))

    assert table.name is None
    assert table.optimizer is None


def test_arrays_are_welcome() -> None:
    """A numpy array of ids is looked up like a tensor."""
    found = cpu_embedding_lookup(
        {"n": {"x": np.array([3, 1])}}, None, {"users": TABLE}, config(KINDS["dense"])
    )

    np.testing.assert_array_equal(TABLE[[3, 1]], found["n"]["x"])


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
    "weights of a sequence": (
        SEQUENCE,
        SEQUENCE.features,
        lambda: SPARSE([1.0] * 6, tf.float32),
        "'n/x'.*sequence feature .max_sequence_length=2.*Drop the weights",
    ),
    "a dense sequence": (
        SEQUENCE, DENSE.features, lambda: None, "'n/x'.*ids are dense.*max_sequence_length=2"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_what_stock_refuses_is_refused_by_name(case: str) -> None:
    """Stock's four errors are ValueErrors here too, and name the feature's path."""
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


def test_an_engine_weighs_sequences() -> None:
    """With an EngineSpec a sparse sequence may have weights: each row comes times its weight."""
    of = spec(SEQUENCE, "sum")
    weights = SPARSE([2.0] * 6, tf.float32)
    plain = cpu_embedding_lookup({"x": SEQUENCE.features()}, None, {"users": TABLE}, of)["x"]

    found = cpu_embedding_lookup({"x": SEQUENCE.features()}, {"x": weights}, {"users": TABLE}, of)[
        "x"
    ]

    np.testing.assert_array_equal(2 * plain, found)


def refused(inputs: Any, weights: Any = None, tables: Any = None) -> Any:
    """Looks up in the config of two features, n/x and n/y."""
    of = config(KINDS["dense"])
    of["n"]["y"] = of["n"]["x"]
    return cpu_embedding_lookup(inputs, weights, tables or {"users": TABLE}, of)


IDS_2 = tf.constant([1, 2])


@pytest.mark.parametrize(
    "call, kind, message",
    [
        (lambda: refused({"n": {"z": IDS_2}}), ValueError, r"'n/z'.*\['n/x', 'n/y'\]"),
        (lambda: refused({"n": {"x": [1, 2]}}), ValueError, "'n/x/0'"),
        (lambda: refused({"n": {"x": "word"}}), TypeError, "'n/x'.*got str"),
        (lambda: refused({"n": {"x": tf.constant(["a"])}}), TypeError, "'n/x'.*got string"),
        (lambda: refused({"n": {"x": tf.constant([0.5])}}), TypeError, "'n/x'.*got float32"),
        (lambda: refused({"n": {"x": IDS_2}}, {"n": {}}), ValueError, "`weights`.*structure"),
        (
            lambda: refused({"n": {"x": IDS_2}}, None, {"items": TABLE}),
            ValueError,
            r"'n/x' \(table 'users'\).*\['items'\]",
        ),
        (
            lambda: refused({"n": {"x": IDS_2}}, None, {"users": TABLE[:5]}),
            ValueError,
            r"'n/x'.*\(5, 3\).*expected.*\(12, 3\)",
        ),
        (
            lambda: refused({"n": {"x": IDS_2}}, None, {"users": TABLE[:, :2]}),
            ValueError,
            r"'users'.*\(12, 2\).*expected.*\(12, 3\)",
        ),
        (
            lambda: refused({"n": {"x": IDS_2}}, None, {"users": [TABLE[:2], TABLE[2:]]}),
            ValueError,
            r"\(2, 3\), \(10, 3\).*expected.*\(6, 3\), \(6, 3\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(call: Any, kind: Any, message: str) -> None:
    """Inputs, weights and tables that do not fit are refused with what is wrong and where."""
    with pytest.raises(kind, match=message) as caught:
        call()
    assert isinstance(caught.value, errors.EngineError)


@pytest.mark.parametrize("name", ["dense, out of range", "sparse, out of range"])
def test_an_id_outside_of_the_table_fails_by_name(name: str) -> None:
    """An id of 12 in a table of 12 rows fails with the names of feature and table, and the id."""
    kind = KINDS[name]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)'n/x' \(table 'users'\).*12$"):
        cpu_embedding_lookup({"n": {"x": kind.features()}}, None, {"users": TABLE}, config(kind))


# --- Functions ----------------------------------------------------------------------------------

UNKNOWN = {
    tf.Tensor: lambda value: tf.TensorSpec([None] * value.shape.rank, value.dtype),
    tf.SparseTensor: lambda value: tf.SparseTensorSpec([None] * value.shape.rank, value.dtype),
    tf.RaggedTensor: lambda value: tf.RaggedTensorSpec(
        [None, None], value.dtype, row_splits_dtype=value.row_splits.dtype
    ),
}


def spec_of(value: Any) -> Any:
    """Returns the spec of a tensor, with every size unknown."""
    return next(make(value) for kind, make in UNKNOWN.items() if isinstance(value, kind))


TRACED = [
    name
    for name in KINDS
    if not any(word in name for word in ("range", "below 0", "not fit", "ragged, rank 3"))
]


@functools.cache
def traced(name: str) -> tuple[Any, list[Any]]:
    """Returns a function of ids and weights, for any sizes, and a batch for it."""
    kind, weighted = KINDS[name], may_be_weighted(name)
    of = config(kind, "sqrtn")
    arguments = [kind.features()]
    if weighted:
        arguments.append(kind.weights(WEIGHTS["weighted"]))
    shards = tuple(map(tf.Variable, in_shards(2)))

    def lookup(ids: Any, weight: Any = None) -> Any:
        weights = None if weight is None else {"n": {"x": weight}}
        return cpu_embedding_lookup({"n": {"x": ids}}, weights, {"users": shards}, of)["n"]["x"]

    function = tf.function(lookup, input_signature=[spec_of(value) for value in arguments])
    return function, arguments


def may_be_weighted(name: str) -> bool:
    """Whether a kind of batch is looked up with weights."""
    return KINDS[name].weighted and "max_sequence_length" not in KINDS[name].setting


@pytest.mark.filterwarnings("ignore:.*max_sequence_length.*is ignored")
@pytest.mark.parametrize("name", TRACED)
def test_a_traced_lookup_is_the_eager_one(name: str) -> None:
    """A function that knows no size returns what the eager call returns, from two shards.

    Where an `output_shape` folds samples, it takes each row for a sample: nothing tells otherwise.
    """
    kind = KINDS[name]
    values = WEIGHTS["weighted"] if may_be_weighted(name) else None
    of = config(kind, "sqrtn")
    eager = outcome(cpu_embedding_lookup, kind.features(), kind.weights(values), of)
    function, arguments = traced(name)

    found = function(*arguments)

    if name in ("ragged, folded", "ragged, flat sequence by output_shape"):
        assert found.shape != eager.shape
        return
    np.testing.assert_array_equal(eager, found)
    assert function.get_concrete_function().structured_outputs.shape[-1] == DIM


_PLAIN = """
    AddV2 Assert Cast ConcatV2 Const DivNoNan DynamicPartition EnsureShape Equal Fill FloorDiv
    FloorMod GatherV2 Greater GreaterEqual Identity If Less LogicalAnd LogicalNot LogicalOr Max
    Maximum Min Mul NoOp Pack ParallelDynamicStitch Placeholder Prod RaggedTensorToSparse Range
    Reshape ResourceGather Select SelectV2 Shape Size SparseReshape Sqrt Square Squeeze StridedSlice
    Sub UnsortedSegmentSum UpperBound Where
"""
PLAIN = frozenset(_PLAIN.split())
"""Ops that any TensorFlow runtime has, TensorFlow Serving among them."""


def op_types(function: Any) -> set[str]:
    """Returns the types of all ops of a traced function, those of its branches included."""
    graph = function.get_concrete_function().graph.as_graph_def()
    nodes = itertools.chain(graph.node, *(inner.node_def for inner in graph.library.function))
    names = {inner.signature.name for inner in graph.library.function}
    return {node.op for node in nodes} - names


@pytest.mark.filterwarnings("ignore:.*max_sequence_length.*is ignored")
def test_a_traced_lookup_holds_plain_ops() -> None:
    """The ops of all kinds of lookups are those on the list: none is of a TPU, none our own."""
    found: set[str] = set()
    for name in TRACED:
        found |= op_types(traced(name)[0])

    assert found == PLAIN, (sorted(found - PLAIN), sorted(PLAIN - found))


# --- Export -------------------------------------------------------------------------------------

LOADER = """
import base64, json, sys
import numpy as np, tensorflow as tf
report = {}
for name in sys.argv[2:]:
    path = f"{sys.argv[1]}/{name}"
    model = tf.saved_model.load(path)
    given = dict(np.load(path + ".npz", allow_pickle=False))
    wanted = given.pop("wanted")
    if "examples" in given:  # numpy would cut zeros off the end of bytes
        given["examples"] = [base64.b64decode(text) for text in given["examples"]]
    found = model.signatures["serving_default"](
        **{key: tf.constant(value) for key, value in given.items()}
    )["activations"]
    report[name] = bool(np.array_equal(wanted, found.numpy()))
ours = [name for name in sys.modules if name.split(".")[0] in ("tf2_engine", "estimator_bridge")]
print("REPORT", json.dumps([report, ours]))
"""


@dataclasses.dataclass(frozen=True)
class Export:
    """A model to export, what its signature is called with, and what it must return."""

    model: tf.Module
    signature: Any
    given: dict[str, Any]
    wanted: Any


def pull(step: int, activation: Any) -> Any:
    """Returns the gradient of an activation that is drawn to another place at every step."""
    return activation - 0.5 * step


def trained(of: Any, features: Any, steps: int = 3, **options: Any) -> Any:
    """Returns an engine after some steps of Adagrad on one batch per core."""
    optimizer = None if isinstance(of, EngineSpec) else Adagrad(0.3)
    engine = tf2_engine.TPUEmbedding(of, optimizer, **options)
    cores = options.get("num_cores", 1)
    for step in range(steps):
        engine.enqueue([features] * cores if cores > 1 else features)
        activations = engine.dequeue()
        engine.apply_gradients(tf.nest.map_structure(functools.partial(pull, step), activations))
    return engine


def rows_of(engine: Any, table: str) -> Any:
    """Returns the rows of a table by id."""
    engine.retrieve()
    held = engine.tables[table]
    shards = [shard.numpy() for shard in held.variables["parameters"]]
    if held.strategy == "mod":
        whole = np.empty([sum(map(len, shards)), shards[0].shape[1]], np.float32)
        for number, shard in enumerate(shards):
            whole[number :: len(shards)] = shard
        return whole
    return np.concatenate(shards)


def pipelined_model() -> Export:
    """Returns a model whose engine has an update pending when it is exported."""
    of = {"x": stock.FeatureConfig(stock.TableConfig(ROWS, DIM, name="users"))}
    engine = trained(of, {"x": tf.constant([1, 2])}, pipeline_execution_with_tensor_core=True)
    before = engine.tables["users"].variables["parameters"][0].numpy()
    model = tf.Module()
    model.embedding = engine

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
    def serve(ids: Any) -> Any:
        found = cpu_embedding_lookup({"x": ids}, None, engine.embedding_tables, of)
        return {"activations": found["x"]}

    return Export(model, serve, {"ids": np.arange(ROWS)}, (engine, before))


def model_of_examples() -> Export:
    """Returns a model of a mod-partitioned job on three hosts, which reads serialized Examples."""
    tables = (TableSpec("users", ROWS, DIM, combiner="mean"), TableSpec("items", 2, 2))
    of = EngineSpec(
        tuple(dataclasses.replace(table, optimizer=Adagrad(0.3)) for table in tables),
        (
            FeatureSpec("bag", "users"),
            FeatureSpec("history", "users", max_sequence_length=2),
            FeatureSpec("item", "items"),
        ),
        partition_strategy="mod",
    )
    batch = {
        "bag": SPARSE(IDS, tf.int64),
        "history": SPARSE(IDS, tf.int64),
        "item": tf.constant([1, 0, 1, 1]),
    }
    engine = trained(of, batch, num_hosts=3, num_cores=3)
    model = tf.Module()
    model.embedding = engine

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def serve(examples: Any) -> Any:
        features = tf.io.parse_example(
            examples,
            {
                "bag": tf.io.VarLenFeature(tf.int64),
                "history": tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64),
                "item": tf.io.FixedLenFeature([], tf.int64),
            },
        )
        found = cpu_embedding_lookup(features, None, engine.embedding_tables, of)
        flat = tf.reshape(found["history"], [-1, 2 * DIM])
        return {"activations": tf.concat([found["bag"], flat, found["item"]], 1)}

    bags, items = [[4, 1], [], [7, 7, 0]], [1, 0, 1]
    examples = [
        tf.train.Example(
            features=tf.train.Features(
                feature={
                    "bag": int_list(bag),
                    "history": int_list(bag),
                    "item": int_list([item]),
                }
            )
        ).SerializeToString()
        for bag, item in zip(bags, items, strict=True)
    ]
    users, held = rows_of(engine, "users"), rows_of(engine, "items")
    none = np.zeros(DIM, np.float32)
    third = np.float32(1) / np.float32(3)
    bag_rows = [
        np.float32(0.5) * users[4] + np.float32(0.5) * users[1],
        none,
        third * users[7] + third * users[7] + third * users[0],
    ]
    sequences = [[users[4], users[1]], [none, none], [users[7], users[7]]]
    wanted = np.concatenate([bag_rows, np.reshape(sequences, [3, -1]), held[items]], 1)
    return Export(
        model, serve, {"examples": np.array(list(map(base64.b64encode, examples)))}, wanted
    )


def int_list(values: list[int]) -> Any:
    """Returns a feature of an Example."""
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def model_of_arrays() -> Export:
    """Returns a model whose table is part of the graph."""
    of = config(KINDS["dense"])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
    def serve(ids: Any) -> Any:
        found = cpu_embedding_lookup({"n": {"x": ids}}, None, {"users": TABLE}, of)
        return {"activations": found["n"]["x"]}

    return Export(tf.Module(), serve, {"ids": np.arange(ROWS)}, TABLE)


def test_an_export_needs_nothing_but_tensorflow(tmp_path: pathlib.Path) -> None:
    """A process that imports TensorFlow alone loads the exports and computes the same to the bit.

    One was made with an update pending, which it holds; one is of a mod-partitioned job.
    """
    exports = {
        "pipelined": pipelined_model(),
        "examples": model_of_examples(),
        "arrays": model_of_arrays(),
    }
    for name, export in exports.items():
        tf.saved_model.save(export.model, str(tmp_path / name), signatures=export.signature)
        wanted = export.wanted
        if name == "pipelined":
            engine, before = wanted
            wanted = engine.tables["users"].variables["parameters"][0].numpy()
            assert np.abs(wanted - before).max() > 0.01
            np.testing.assert_array_equal(wanted, rows_of(engine, "users"))
        np.savez(tmp_path / f"{name}.npz", wanted=wanted, **export.given)

    done = subprocess.run(
        [sys.executable, "-c", LOADER, str(tmp_path), *exports],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    lines = [line for line in done.stdout.splitlines() if line.startswith("REPORT")]
    assert lines, done.stderr[-2000:]
    same, ours = json.loads(lines[0].removeprefix("REPORT"))
    assert same == dict.fromkeys(exports, True)
    assert ours == []


def small_model() -> tuple[Any, Any]:
    """Returns an engine, and a function that looks up in it."""
    of = {"x": stock.FeatureConfig(stock.TableConfig(ROWS, DIM, name="users"))}
    engine = trained(of, {"x": tf.constant([1, 2])})

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
    def serve(ids: Any) -> Any:
        return cpu_embedding_lookup({"x": ids}, None, engine.embedding_tables, of)

    return engine, serve


def test_an_export_holds_the_parameters_alone(tmp_path: pathlib.Path) -> None:
    """The variables of an export are the tables' parameters; slots, which no lookup reads, are not.

    They have the keys of a checkpoint.
    """
    model = tf.Module()
    model.embedding, serve = small_model()

    tf.saved_model.save(model, str(tmp_path), signatures=serve)

    saved = dict(tf.train.list_variables(str(tmp_path / "variables" / "variables")))
    saved.pop("_CHECKPOINTABLE_OBJECT_GRAPH")
    assert saved == {"embedding/users/.ATTRIBUTES/VARIABLE_VALUE": [ROWS, DIM]}


def test_an_engine_that_is_not_part_of_the_model_is_refused(tmp_path: pathlib.Path) -> None:
    """TensorFlow names the table and says that it must be an attribute of what is exported."""
    engine, serve = small_model()

    with pytest.raises(AssertionError, match=r"attribute of a tracked object(.|\n)*users_0"):
        tf.saved_model.save(tf.Module(), str(tmp_path), signatures=serve)
    assert engine.embedding_tables
