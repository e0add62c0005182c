"""Tables in small types: rows are as accurate as promised, and lookups use the rounded rows."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf2_engine
from compat_tests.references import small_types as reference
from compat_tests.support.serving_inputs import (
    DIM,
    KINDS,
    LOOKED_UP,
    ROWS,
    TABLE,
    WEIGHTS,
    config,
    in_shards,
    spec,
    stock,
)
from tf2_engine import errors, serving, small_types
from tf2_engine.backends import HostDriver
from tf2_engine.serving import cpu_embedding_lookup
from tf2_engine.tables import whole as joined

SMALL = ("float16", "bfloat16", "int8")
LARGEST = {"float16": 65504.0, "bfloat16": 3.38e38, "int8": 1.7e38}
"""What the rows of a test go up to: int8 holds the distance of two numbers."""


def rows_of_all_scales(table_dtype: str, dim: int) -> np.ndarray:
    """Returns rows from the smallest denormal number up to the largest of a type, and edge cases.

    Of each scale there is a row around 0, one far from 0, one of a single sign, and a constant one.
    """
    random = np.random.default_rng(11)
    exponents = np.arange(-149, np.log2(LARGEST[table_dtype]), 3)
    around = random.uniform(-1, 1, (len(exponents), dim))
    of_scale = [around, 0.999 + 0.001 * around, -np.abs(around), np.ones_like(around)]
    scaled = [rows * 2.0 ** exponents[:, None] for rows in of_scale]
    largest = LARGEST[table_dtype]
    edges = [[0.0] * dim, [largest] * dim, [-largest] * dim, [-largest, *[largest] * (dim - 1)]]
    mixed = [[0.0, *[2.0**-140] * (dim - 1)], [1.0, *[2.0**-140] * (dim - 1)]]
    return np.concatenate([*scaled, edges, mixed]).astype(np.float32)


def decoded(rows: np.ndarray, table_dtype: str) -> np.ndarray:
    """Returns the rows that a lookup sees of rows that are held in a type."""
    stored = small_types.encode(rows, table_dtype, "The table")
    assert stored.shape == (len(rows), small_types.stored_width(rows.shape[1], table_dtype))
    return small_types.decode(tf.constant(stored)).numpy()


@pytest.mark.parametrize("table_dtype", SMALL)
@pytest.mark.parametrize("dim", [1, 2, 7, 64])
def test_rows_are_as_near_as_is_promised(table_dtype: str, dim: int) -> None:
    """No element of any scale is further off than the bound, which is not more than it takes."""
    rows = rows_of_all_scales(table_dtype, dim)

    error = np.abs(decoded(rows, table_dtype).astype(np.float64) - rows)

    bound = reference.bound(rows, table_dtype)
    worst = np.unravel_index(np.argmax(error / bound), error.shape)
    assert (error <= bound).all(), (rows[worst[0]], error[worst], bound[worst])
    normal = np.random.default_rng(3).uniform(-1, 1, (2000, 8)).astype(np.float32)
    of_normal = np.abs(decoded(normal, table_dtype).astype(np.float64) - normal)
    assert (of_normal / reference.bound(normal, table_dtype)).max() > 0.98


@pytest.mark.parametrize("table_dtype", SMALL)
def test_what_a_type_holds_exactly_stays_as_it_is(table_dtype: str) -> None:
    """Zeros, constant rows and rows of both ends of the codes come back to the bit."""
    exact = [[0.0, 0.0, 0.0], [1.5, 1.5, 1.5], [-0.25, -0.25, 0.25], [-2.0, 2.0, 2.0]]
    rows = np.array(exact, np.float32)
    if table_dtype == "int8":
        third = np.float32([[1 / 3] * 3, [1e38] * 3, [2.0**-120] * 3])
        rows = np.concatenate([rows[:2], third])
    np.testing.assert_array_equal(decoded(rows, table_dtype), rows)


def test_int8_rows_are_fbgemm_s() -> None:
    """A row is the codes, the scale and the least element, as fused 8-bit rowwise tables hold it.

    The literal bytes: 0 to 255 in steps of 1/2 from -1, so scale 0.5 and least element -1.
    """
    rows = np.float32([[-1.0, -0.5, 126.5, 0.2]])
    stored = small_types.encode(rows, "int8", "The table")
    assert stored.dtype == np.uint8
    assert stored.tolist() == [[0, 1, 255, 2, 0, 0, 0, 0x3F, 0, 0, 0x80, 0xBF]]


@pytest.mark.parametrize("table_dtype", ["float16", "bfloat16"])
def test_floating_point_types_keep_inf_and_nan(table_dtype: str) -> None:
    rows = np.float32([[np.inf, -np.inf, np.nan, 1.0]])
    np.testing.assert_array_equal(decoded(rows, table_dtype), rows)


@pytest.mark.parametrize(
    ("table_dtype", "row"),
    [
        ("int8", [1.0, np.inf]),
        ("int8", [np.nan, 1.0]),
        ("int8", [-np.inf, -np.inf]),
        ("int8", [-3e38, 3e38]),
        ("float16", [1.0, 65520.0]),
        ("float16", [-1e38, np.nan]),
        ("bfloat16", [3.4e38, 0.0]),
    ],
)
def test_rows_that_a_type_cannot_hold_are_named(table_dtype: str, row: list[float]) -> None:
    """The error names the table, the type, and the number of the row, in whichever shard it is."""
    rows = np.zeros((4, 2), np.float32)
    bad = rows.copy()
    bad[1] = row
    table = rf"^Table 'users': `table_dtype`='{table_dtype}'"
    message = rf"{table} cannot hold row 5, .*a dict that maps names"
    with pytest.raises(errors.InvalidSpec, match=message):
        tf2_engine.serving_table(
            joined([tf.Variable(rows), tf.Variable(bad)], "users"),
            table_dtype,
            "users",
        )


FEW = ("sparse", "ragged, sequence")


@pytest.mark.filterwarnings("ignore:.*max_sequence_length.*is ignored")
@pytest.mark.parametrize("names", [FEW, pytest.param(LOOKED_UP, marks=pytest.mark.full)])
@pytest.mark.parametrize("table_dtype", SMALL)
def test_lookups_are_those_of_the_rows_that_are_held(table_dtype: str, names: list[str]) -> None:
    """All kinds of batches give what float32 rows of the same values give, to the bit."""
    rows = decoded(TABLE, table_dtype)
    small = tf2_engine.serving_table(TABLE, table_dtype, "users")
    of_shards = [tf2_engine.serving_table(each, table_dtype) for each in in_shards(3)]
    for name in names:
        kind = KINDS[name]
        for tables in ({"users": small}, {"users": tuple(of_shards)}, {"users": small.numpy()}):
            values = WEIGHTS["weighted"] if kind.weighted else None
            ids, weights = kind.features(), kind.weights(values)
            of_float32, of_small = (
                cpu_embedding_lookup({"n": {"x": ids}}, nest(weights), each, config(kind, "mean"))
                for each in ({"users": rows}, tables)
            )
            activation = of_small["n"]["x"]
            assert activation.dtype == tf.float32
            np.testing.assert_array_equal(activation, of_float32["n"]["x"], err_msg=name)


def nest(weights: Any) -> Any:
    return None if weights is None else {"n": {"x": weights}}


@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize("table_dtype", SMALL)
def test_the_shards_of_an_engine_stay_shards(table_dtype: str, strategy: str) -> None:
    """Of an engine on several hosts a table is one variable, or one for each host with "mod"."""
    kind = KINDS["sparse"]
    engine_spec = dataclasses.replace(spec(kind, "sum"), partition_strategy=strategy)
    engine = tf2_engine.TPUEmbedding(engine_spec, num_hosts=3, num_cores=3)
    engine.enqueue([{"x": kind.features()}] * 3, training=False)
    parameters = engine.embedding_tables["users"]

    small = tf2_engine.serving_table(parameters, table_dtype, "users")

    assert isinstance(small, tuple) == (strategy == "mod")
    shards = [each.numpy() for each in engine.tables["users"].variables["parameters"]]
    held = tuple(decoded(shard, table_dtype) for shard in shards)
    actual, expected, before = (
        cpu_embedding_lookup({"x": kind.features()}, None, {"users": each}, engine_spec)["x"]
        for each in (small, held, parameters)
    )
    np.testing.assert_array_equal(actual, expected)
    assert np.abs(actual - before).max() > 0


@pytest.mark.parametrize("table_dtype", [*SMALL, "float32"])
def test_tables_are_read_in_parts(table_dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is read some rows at a time is the one that is read at once; it may be empty."""
    whole = tf2_engine.serving_table(tf.Variable(TABLE), table_dtype, "users")
    monkeypatch.setattr(serving, "_ELEMENTS_AT_ONCE", 5 * DIM)
    parts = tf2_engine.serving_table(tf.Variable(TABLE), table_dtype, "users")
    np.testing.assert_array_equal(whole.numpy(), parts.numpy())
    assert parts.dtype == small_types.stored_dtype(table_dtype)
    assert not parts.trainable
    empty = tf2_engine.serving_table(np.zeros([0, DIM], np.float32), table_dtype)
    assert empty.shape == [0, small_types.stored_width(DIM, table_dtype)]


@pytest.mark.parametrize("value", ["int4", "INT8", None, 8, tf.float64, ["int8"]])
def test_other_types_are_refused(value: Any) -> None:
    message = r"`table_dtype` must be one of float32, float16, bfloat16, int8, got "
    with pytest.raises(errors.InvalidSpec, match=message):
        tf2_engine.serving_table(TABLE, value)
    with pytest.raises(errors.InvalidSpec, match="`table_dtype` of table 'a' must be one of"):
        small_types.checked({"a": value}, ["a", "b"])


def test_types_are_chosen_by_table() -> None:
    """A dict has the types of some tables; the others are float32, and unknown ones refused."""
    assert small_types.checked({"a": tf.float16}, ["a", "b"]) == {"a": "float16", "b": "float32"}
    assert small_types.checked("int8", ["a", "b"]) == {"a": "int8", "b": "int8"}
    with pytest.raises(
        errors.InvalidSpec, match=r"names the tables \['c'\].*the tables are \['a', 'b'"
    ):
        small_types.checked({"c": "int8"}, ["b", "a"])


def test_what_is_no_table_is_refused() -> None:
    """A vector, integers, and a call while a graph is built are errors that name the table."""
    for value in (np.zeros(3, np.float32), np.zeros((3, 2), np.int64), [[1, 2]], []):
        with pytest.raises(
            errors.WrongType, match=r"^Table 'users': `parameters` must be a matrix"
        ):
            tf2_engine.serving_table(value, "int8", "users")
    with (
        tf.Graph().as_default(),
        pytest.raises(errors.OutOfOrder, match="Call `serving_table` eagerly"),
    ):
        tf2_engine.serving_table(TABLE, "int8")
    small = tf2_engine.serving_table(TABLE, "int8")
    wide = stock.FeatureConfig(stock.TableConfig(ROWS, DIM + 1, name="users"))
    with pytest.raises(errors.InvalidInput, match=r"its parameters have the shapes \[\(12, 3\)\]"):
        cpu_embedding_lookup({"x": tf.constant([1])}, None, {"users": small}, {"x": wide})


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("table_dtype", SMALL)
def test_an_engine_that_serves_takes_small_tables(table_dtype: str, native: bool) -> None:
    """Its activations are those of float32 rows of the same values; ids outside are refused."""
    kind = KINDS["sparse"]
    small = tf2_engine.serving_table(TABLE, table_dtype)
    held = tf.Variable(decoded(TABLE, table_dtype))
    activations = []
    for parameters in (small, held):
        engine = tf2_engine.TPUEmbedding(
            spec(kind, "mean"),
            driver=HostDriver(native=native),
            training=False,
            variable_factory=lambda *_, parameters=parameters: [parameters],
        )
        found, _ = engine.differentiable_lookup({"x": kind.features()}, training=False)
        activations.append(found["x"])
        outside = tf.SparseTensor([[0, 0]], tf.constant([ROWS], tf.int64), [4, 1])
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"(?s)table 'users'.*{ROWS}"):
            engine.differentiable_lookup({"x": outside}, training=False)
    np.testing.assert_array_equal(*activations)
