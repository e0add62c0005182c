"""Initial values of tables: shard by shard, with `shard_info`, and with unsuitable initializers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.conftest import Engine, Runner
from compat_tests.support import fake_tpu
from estimator_bridge.runtime.step.table_variables import table_factory
from tf2_engine import SGD, Adagrad, EngineSpec, FeatureSpec, TableSpec, TPUEmbedding, errors
from tf2_engine.plan import make_plan
from tf2_engine.tables import create_tables, variable_factory

emb = tf.tpu.experimental.embedding

DIM = 2
PLACES = [(1, "div"), (3, "div"), (5, "div"), (1, "mod"), (3, "mod"), (5, "mod")]


class Recorded:
    """Fills rows with their ids, and records how it is called."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any]] = []

    def __call__(self, shape: Any, dtype: Any = tf.float32, shard_info: Any = None) -> Any:
        part = None if shard_info is None else (shard_info.shape, shard_info.offset)
        self.calls.append((tuple(shape), part))
        rows, first = (shape, 0) if shard_info is None else (shard_info.shape, shard_info.offset[0])
        ids = tf.range(first, first + rows[0])
        return tf.cast(ids, dtype)[:, None] * tf.ones([1, rows[1]], dtype)


def spec(initializer: Any, rows: int, strategy: str) -> EngineSpec:
    table = TableSpec("table", rows, DIM, "sum", SGD(1.0), initializer)
    return EngineSpec((table,), (FeatureSpec("ids", "table"),), partition_strategy=strategy)


def engine_with(
    initializer: Any, rows: int, hosts: int, strategy: str, mode: str = "eager"
) -> Engine:
    engine = Engine(
        Runner(mode), spec(initializer, rows, strategy), num_hosts=hosts, num_cores=hosts
    )
    engine.build_for([(1,)])
    return engine


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("hosts, strategy", PLACES)
@pytest.mark.parametrize("rows", [13, 2])
def test_rows_know_who_they_are(rows: int, hosts: int, strategy: str, mode: str) -> None:
    """An initializer that takes `shard_info` fills a table alike wherever its rows are.

    With more hosts than rows, what makes them up is zero.
    """
    table = engine_with(Recorded(), rows, hosts, strategy, mode).read()["table"]["parameters"]

    assert table[:rows].tolist() == [[float(row)] * DIM for row in range(rows)]
    assert table[rows:].tolist() == [[0.0] * DIM] * max(hosts - rows, 0)


@pytest.mark.parametrize(
    "rows, hosts, strategy, parts",
    [
        (13, 5, "div", [*((3, 3 * host) for host in range(3)), (2, 9), (2, 11)]),
        (2, 3, "div", [(1, 0), (1, 1)]),  # The host beyond the vocabulary is not asked.
        (5, 2, "mod", [(5, 0), (5, 0)]),
    ],
)
def test_each_host_is_told_its_part(
    rows: int, hosts: int, strategy: str, parts: list[tuple[int, int]]
) -> None:
    """The calls have the table's shape, and the number and the first of consecutive rows.

    With "mod" every host asks for the whole table, of which it keeps its rows.
    """
    recorded = Recorded()
    engine_with(recorded, rows, hosts, strategy)

    shape = (rows, DIM)
    assert recorded.calls == [(shape, ((count, DIM), (first, 0))) for count, first in parts]


@pytest.mark.parametrize("rows", [13, 2])
@pytest.mark.parametrize(
    "make", [Recorded, lambda: tf.initializers.RandomUniform(seed=3)], ids=["aware", "seeded"]
)
def test_shards_are_those_of_stock(make: Callable[[], Any], rows: int) -> None:
    """Stock calls initializers the same, the seeded one anew for each host, and gets the same."""
    wanted = fake_tpu.stock_shards(make(), (rows, DIM), 3)
    engine = engine_with(make(), rows, 3, "div")

    actual = engine.embedding.tables["table"].variables["parameters"][: len(wanted)]
    for shard, (one, other) in enumerate(zip(wanted, actual, strict=True)):
        np.testing.assert_array_equal(one, other.numpy(), f"shard {shard}")


def test_the_tpu_driver_makes_the_same_shards() -> None:
    """Variables on the hosts of a TPU are told their part as well."""
    plan = make_plan(spec(Recorded(), 13, "div"), [(1,)], num_hosts=3, num_cores=3)
    (table,) = create_tables(plan, variable_factory(["/CPU:0"] * 3)).values()

    ids = np.concatenate([shard.numpy()[:, 0] for shard in table.variables["parameters"]])
    assert ids.tolist() == list(range(13))


def test_keyword_only_shard_info_is_given() -> None:
    def initializer(shape: Any, dtype: Any, *, shard_info: Any) -> Any:
        return Recorded()(shape, dtype, shard_info)

    table = engine_with(initializer, 7, 2, "div").read()["table"]["parameters"]
    assert table[:, 0].tolist() == list(range(7))


def test_variables_of_an_estimator_do_not_tell_parts_apart() -> None:
    """Several hosts whose rows are not known are refused by name; a single host works."""
    for hosts in (1, 2):
        plan = make_plan(spec(Recorded(), 4, "div"), [(1,)], num_hosts=hosts, num_cores=hosts)
        with tf.Graph().as_default():
            make = functools.partial(create_tables, plan, table_factory({"table": "table"}))
            if hosts == 1:
                assert make()["table"].num_shards == 1
                continue
            with pytest.raises(errors.InvalidSpec, match=r"Table 'table'.*`shard_info`.*one host"):
                make()


OFF_THE_RULE: dict[str, tuple[Any, str]] = {
    "a number": (0.5, "must be callable, got 0.5"),
    "no shape": (lambda: tf.zeros([4, DIM]), "cannot be called with a shape and a dtype"),
    "no dtype": (lambda shape: tf.zeros(shape), "cannot be called with a shape and a dtype"),
    "a shape already": (
        functools.partial(tf.zeros, shape=[4, DIM], dtype=tf.float32),
        "cannot be called with a shape and a dtype",
    ),
    "more to give": (
        lambda shape, dtype, scale: scale * tf.ones(shape, dtype),
        r"cannot be called with a shape and a dtype \(missing a required argument: 'scale'\)",
    ),
}


@pytest.mark.parametrize("initializer, message", OFF_THE_RULE.values(), ids=OFF_THE_RULE)
def test_what_cannot_be_called_is_refused(initializer: Any, message: str) -> None:
    """An unsuitable initializer is a ValueError with table, value and way out, in both APIs."""
    message = f"Table 'table': `initializer` {message}.*function of a shape and a dtype"
    with pytest.raises(errors.InvalidSpec, match=message) as caught:
        spec(initializer, 4, "div")
    assert isinstance(caught.value, ValueError)

    if callable(initializer):  # stock's config refuses the rest itself
        config = emb.TableConfig(4, DIM, initializer=initializer, name="table")
        with pytest.raises(errors.InvalidSpec, match=message):
            TPUEmbedding({"a": emb.FeatureConfig(config)}, SGD(1.0))


def test_a_function_of_the_whole_table_is_refused_on_several_hosts() -> None:
    """An initializer that ignores the shape works on one host; on two the message has both."""
    whole = np.arange(8.0).reshape(4, DIM)

    def fixed(shape: Any, dtype: Any) -> Any:
        return tf.constant(whole, dtype)

    assert engine_with(fixed, 4, 1, "div").read()["table"]["parameters"].tolist() == whole.tolist()
    message = r"'table'.*rows of host 0, with shape \(2, 2\), but returned \(4, 2\).*shard_inf"
    with pytest.raises(errors.InvalidSpec, match=message):
        engine_with(fixed, 4, 2, "div")


def test_another_dtype_is_refused() -> None:
    """A float64 tensor is named; numbers without a dtype of TensorFlow are taken."""
    with pytest.raises(errors.InvalidSpec, match=r"Table 'table'.*float32, but returned float64"):
        engine_with(lambda shape, dtype: tf.zeros(shape, tf.float64), 4, 1, "div")

    table = engine_with(lambda shape, dtype: np.ones(shape), 4, 1, "div")
    assert table.read()["table"]["parameters"].tolist() == [[1.0, 1.0]] * 4


def test_initializers_of_both_generations_are_on_the_rule() -> None:
    """Initializers of TF1 (with `partition_info`), TF2 and Keras are accepted."""
    for initializer in (
        tf.compat.v1.truncated_normal_initializer(),
        tf.compat.v1.constant_initializer(1.0),
        tf.initializers.GlorotUniform(),
        tf.keras.initializers.RandomNormal(),
    ):
        table = engine_with(initializer, 4, 2, "div").read()["table"]["parameters"]
        assert table.shape == (4, DIM), initializer


def test_slots_are_no_constants_of_a_graph() -> None:
    """A graph holds no constant of the size of a slot, which would take its memory once more."""
    tables = (TableSpec("table", 50, DIM, "sum", Adagrad(0.1)),)
    plan = make_plan(EngineSpec(tables, (FeatureSpec("ids", "table"),)), [(4,)])
    with tf.Graph().as_default() as graph:
        slot = create_tables(plan)["table"].variables["accumulators"][0]
        with tf.compat.v1.Session() as session:
            session.run(slot.initializer)
            np.testing.assert_array_equal(session.run(slot), np.full((50, DIM), np.float32(0.1)))
    constants = [op for op in graph.get_operations() if op.type == "Const"]
    assert constants
    assert [op.name for op in constants if op.outputs[0].shape.num_elements() >= 50 * DIM] == []
