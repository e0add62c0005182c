"""SoftTPUStrategy with SparseCores: what it reports and refuses, and how a step ends."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.support import fake_tpu, sparse_cores
from compat_tests.support.software_tpu import Waiting
from compat_tests.support.sparse_cores import Case, Stock
from tf2_engine import errors, soft_sparsecore, soft_tpu, tf_compat
from tf2_engine.soft_tpu import SoftTPUStrategy

emb = tf.tpu.experimental.embedding


def test_it_reports_its_hardware() -> None:
    """Code that looks finds the second generation with so many SparseCores, and no first."""
    strategy = SoftTPUStrategy(2, hardware="sparsecore", sparse_cores=2)

    assert repr(strategy) == "<SoftTPUStrategy 2 cores with 2 SparseCores each>"
    assert tf_compat.embedding_hardware(strategy) == "V2"
    assert strategy.extended.tpu_hardware_feature.num_embedding_devices_per_chip == 2
    with pytest.raises(tf.errors.FailedPreconditionError, match="has SparseCores, not the"):
        tf.raw_ops.ConfigureTPUEmbedding(config=b"")
    again = SoftTPUStrategy(2)
    assert tf_compat.embedding_hardware(again) == "V1"
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.raw_ops.ConfigureTPUEmbedding(config=b"")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hardware": "v5p"}, "`hardware` must be 'v1' or 'sparsecore', got 'v5p'"),
        ({"num_cores": 3}, "`sparse_cores`=4 with 3 core"),
        ({"sparse_cores": 8}, "`sparse_cores`=8 with 1 core"),
        ({"sparse_cores": 0}, "`sparse_cores`=0"),
        ({"sparse_cores": -1}, "`sparse_cores`=-1"),
        ({"out_of_range_ids": "drop"}, "must be 'error' or 'hardware', got 'drop'"),
    ],
)
def test_what_is_no_such_hardware_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.InvalidSpec, match=re.escape(message)):
        SoftTPUStrategy(**{"hardware": "sparsecore", **arguments})


def test_the_kernels_are_those_that_are_listed() -> None:
    """Every listed op has one kernel; an op that the sources name is listed."""
    SoftTPUStrategy(1, hardware="sparsecore")
    native = pathlib.Path(soft_tpu.__file__).parent / "native"
    sources = native.glob("software_sparsecore/*_kernels.h")
    text = "".join(source.read_text() for source in sources)
    named = set(re.findall(r'KERNEL\("(\w{12,})",', text))
    rules = (native / "rules" / "sparsecore.h").read_text()
    named |= {
        f"XlaSparseDenseMatmulGradWith{rule}AndStaticBufferSize"
        for rule in re.findall(r'kUpdateOp = "(\w+)"', rules)
    }

    assert named == set(soft_sparsecore.KERNELS)
    assert {name: tf_compat.num_kernels(name) for name in named} == dict.fromkeys(named, 1)


class TwoTables:
    """Two stacked tables of 10 and 7 rows, of one feature each, and a step of gradient descent."""

    def __init__(self, cores: int = 1, **settings: Any) -> None:
        self.strategy = SoftTPUStrategy(cores, hardware="sparsecore", **settings)
        tables = [emb.TableConfig(rows, 8, name=name) for name, rows in (("a", 10), ("b", 7))]
        features = {
            f"of_{table.name}": emb.FeatureConfig(table, output_shape=[4], name=f"of_{table.name}")
            for table in tables
        }
        with self.strategy.scope():
            self.embedding = emb.TPUEmbeddingV2(features, emb.SGD(1.0))
        self.embedding.build()
        self.step = tf.function(self._step)

    def _step(self, ids: Any) -> Any:
        def replica(ids: Any) -> Any:
            activations, preserved = self.embedding(ids)
            gradients = tf.nest.map_structure(tf.ones_like, activations)
            self.embedding.apply_gradients(gradients, preserved)
            return activations

        return self.strategy.run(replica, args=(ids,))

    def __call__(self, *of_a: list[int], dtype: Any = tf.int64) -> None:
        """Runs a step; the ids of table `a` are given for each core, those of `b` are zeros."""
        zeros = tf.zeros([4], dtype)
        parts = [{"of_a": tf.constant(ids, dtype), "of_b": zeros} for ids in of_a]
        self.step(fake_tpu.distribute(self.strategy, parts))

    def changed_rows(self) -> dict[int, set[int]]:
        """Returns by core the rows of its part of the stack that are not as they began."""
        (variable,) = self.embedding.embedding_tables.values()
        parts = [part.numpy() for part in variable.values]
        before, self._before = getattr(self, "_before", None), parts
        return {
            core: set(np.flatnonzero((part != before[core]).any(1)).tolist())
            for core, part in enumerate(parts)
            if before is not None
        }


@pytest.mark.parametrize("id_", [10, 31, 32, -1, 2**31 - 1, 2**31, 2**32 + 3, -(2**40)])
def test_an_id_outside_of_its_table_is_an_error(id_: int) -> None:
    model = TwoTables()
    model.changed_rows()
    shown = min(max(id_, -(2**31)), 2**31 - 1)
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=rf"id {shown} .*of feature 'of_a' \(table 'a'\) is outside of the table, which has "
        "10 rows",
    ):
        model([0, 1, id_, 2])
    assert model.changed_rows() == {0: set()}
    model([0, 1, 9, 2])
    assert model.changed_rows()[0]


def test_ids_outside_of_a_table_as_on_the_hardware() -> None:
    """On request ids outside of a table train padding or the next table, as on the hardware.

    Both tables are 32 rows with their padding, 8 on each SparseCore: row r of `a` is row
    16 * (r mod 4) + r div 4 of the stack, and `b` begins at 8.
    """
    model = TwoTables(out_of_range_ids="hardware")
    model.changed_rows()
    zero_of_b = 8
    for id_, rows in ((10, {34}), (31, {55}), (32, {zero_of_b}), (33, {24}), (2**32 + 3, {48})):
        model([id_] * 4)
        assert model.changed_rows() == {0: rows | {zero_of_b}}, id_
    for id_ in (64, -1):
        with pytest.raises(tf.errors.InvalidArgumentError, match="outside of all tables"):
            model([id_] * 4)


def test_the_rotated_table_is_hit_where_it_is() -> None:
    """On two cores with 4 SparseCores the id after the last of `a` is row 4 of the rotated `b`."""
    model = TwoTables(2, out_of_range_ids="hardware")
    model.changed_rows()
    model([64] * 4, [64] * 4)

    # Both are 64 rows, 8 on each of 8 SparseCores; `b` is rotated by 4: its row 4 is on
    # SparseCore 0 of core 0, its row 0 on SparseCore 0 of core 1.
    assert model.changed_rows() == {0: {8}, 1: {8}}


def test_a_core_that_fails_ends_the_others() -> None:
    """Too many ids on one of two cores end the step; nothing waits, and the next step works."""
    config = emb.SparseCoreEmbeddingConfig(max_ids_per_table={"a": 2})
    strategy = SoftTPUStrategy(2, hardware="sparsecore", sparse_cores=1)
    feature = emb.FeatureConfig(emb.TableConfig(16, 8, name="a"), output_shape=[4])
    with strategy.scope():
        embedding = emb.TPUEmbeddingV2(feature, emb.SGD(1.0), sparse_core_embedding_config=config)
    embedding.build()
    step = tf.function(lambda ids: strategy.run(lambda ids: embedding(ids)[0], args=(ids,)))

    def run(*parts: list[int]) -> Any:
        return step(fake_tpu.distribute(strategy, [tf.constant(part) for part in parts]))

    even_and_odd, even = [0, 1, 2, 3], [0, 2, 4, 6]
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match="gets 4 ids"):
            run(even_and_odd, even)
        assert soft_tpu.num_waiting() == 0
        for activations in strategy.experimental_local_results(run(even_and_odd, even_and_odd)):
            assert activations.shape == [4, 8]


def test_an_op_without_its_like_waits_and_can_be_ended() -> None:
    """A lookup of one core waits for the other's; starting anew ends it with an error."""
    SoftTPUStrategy(2, hardware="sparsecore", sparse_cores=1)

    # The table is an argument: what is constant is computed before the function runs.
    @tf.function
    def lookup(table: Any) -> Any:
        output = tf.raw_ops.XlaSparseDenseMatmulWithStaticBufferSize(
            row_pointers=tf.zeros([8], tf.int32),
            sorted_sample_ids=tf.zeros([0], tf.int32),
            sorted_token_ids=tf.zeros([0], tf.int32),
            sorted_gains=tf.zeros([0]),
            embedding_table=table,
            num_minibatches_per_physical_sparse_core=1,
            input_size=4,
            quantization_config_low=0.0,
            quantization_config_high=0.0,
            quantization_config_num_buckets=0,
            max_ids_per_sparse_core=8,
            max_unique_ids_per_sparse_core=8,
            table_name="a",
        )
        tf_compat.set_attributes(output.op, {"_software_tpu_core": 1})
        return output

    call = Waiting(lambda: lookup(tf.zeros([8, 8])))
    assert call.waits
    soft_tpu.start(2, 1)
    call.end()
    assert "restarted while an op waited for the other cores" in str(call.error)
    assert soft_tpu.num_waiting() == 0


def test_parts_are_read_and_assigned_by_their_device() -> None:
    """`embedding_table_shards` has the part of each core, and a part can be assigned."""
    model = TwoTables(2, sparse_cores=2)
    ((name, variable),) = model.embedding.embedding_tables.items()
    devices = model.strategy.extended.worker_devices
    for core, device in enumerate(devices):
        variable.assign_on_device(device, tf.fill(variable.values[core].shape, float(core)))

    for core, (device, rows) in enumerate(model.embedding.embedding_table_shards[name]):
        assert device == devices[core]
        np.testing.assert_array_equal(rows, np.full(rows.shape, core))


def test_quantized_rows_are_looked_up() -> None:
    """0.3 in 5 buckets from 0 to 1 is looked up as 0.25."""
    strategy = SoftTPUStrategy(1, hardware="sparsecore")
    table = emb.TableConfig(
        8,
        8,
        initializer=tf.constant_initializer(0.3),
        name="a",
        quantization_config=emb.QuantizationConfig(num_buckets=5, lower=0.0, upper=1.0),
    )
    with strategy.scope():
        embedding = emb.TPUEmbeddingV2(emb.FeatureConfig(table, output_shape=[4]), emb.SGD(1.0))
    embedding.build()
    run = tf.function(lambda ids: strategy.run(lambda ids: embedding(ids)[0], args=(ids,)))

    np.testing.assert_array_equal(run(tf.constant([0, 1, 2, 3])), np.full((4, 8), 0.25))


def test_statistics_of_a_batch() -> None:
    """The statistics of ids 0 ... 15 mod 10 and mod 7 are those worked out by hand."""
    SoftTPUStrategy(1, hardware="sparsecore")
    tables = {name: emb.TableConfig(rows, 6, name=name) for name, rows in (("a", 10), ("b", 7))}
    config = {name: emb.FeatureConfig(table, output_shape=[16]) for name, table in tables.items()}
    ids = {"a": tf.range(16) % 10, "b": tf.range(16) % 7}
    for cores in (1, 2):
        most, unique = emb.TPUEmbeddingV2.compute_sparse_core_stats(
            ids, config, num_tpu_chips=cores, num_sc_per_chip=4, optimizer=emb.SGD(1.0)
        )
        assert ({k: int(v) for k, v in most.items()}, {k: int(v) for k, v in unique.items()}) == (
            {"a_b": 3},
            {"a_b": 3},
        )


@pytest.mark.full
def test_several_lookups_in_a_step() -> None:
    """Two lookups and two updates of one step work, and both updates are kept."""
    case = Case("SGD", cores=2, sparse_cores=2, steps=2)
    stock = Stock(case)
    stock.fill()
    steps = sparse_cores.batches(case)

    def replica(*parts: Any) -> None:
        looked_up = [stock.embedding(ids, weights)[1] for ids, weights, _ in parts]
        for (_, _, gradients), preserved in zip(parts, looked_up, strict=True):
            stock.embedding.apply_gradients(gradients, preserved)

    arguments = [stock.arguments(step) for step in steps]
    tf.function(lambda *parts: stock.strategy.run(replica, args=parts))(*arguments)

    expected = sparse_cores.reference(case)
    for table, variables in expected.tables.items():
        np.testing.assert_allclose(
            stock.read(table)["parameters"], variables["parameters"], rtol=0, atol=2e-5
        )
