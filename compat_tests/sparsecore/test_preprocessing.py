"""The ops that prepare ids for SparseCores: order, padding and limits.

Oracle: the references' plain Python, and numbers worked out by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.references import sparsecore
from compat_tests.references.inputs import Occurrence, dense
from compat_tests.references.sparsecore import FeatureOnCore, TableInStack
from compat_tests.support.sparse_cores import as_tensors
from tf2_engine.soft_tpu import SoftTPUStrategy

raw = tf.raw_ops
WEIGHT_SIZE = 2.0**-22
"""What a gain may be off, relatively: a sum of few weights, a root, a quotient, a product."""


@pytest.fixture(autouse=True, scope="module")
def _kernels() -> Iterator[None]:
    SoftTPUStrategy(1, hardware="sparsecore")
    return


class Buffer(NamedTuple):
    """The output of the last op, of which the sizes are numbers."""

    row_pointers: Any
    sample_ids: Any
    tokens: Any
    gains: Any
    num_pointers: int
    num_ids: int
    minibatches: int


def triples(feature: FeatureOnCore, before: int, of_stack: int, kind: str = "ragged") -> Any:
    """Calls the op that reads the ids of a feature; `before` is its place among the samples."""
    table = feature.table
    ids, weights = as_tensors(kind, feature.samples, feature.occurrences)
    index = tf.zeros([0], tf.int32)
    if kind != "dense":
        index = tf.cast(ids.indices if kind == "sparse" else ids.row_splits, tf.int32)
        ids, weights = ids.values, weights.values
    return raw.ConvertToListOfSparseCoreCooTensors(
        indices_or_row_splits=index,
        values=tf.cast(ids, tf.int32),
        weights=weights,
        sample_count=feature.samples,
        num_sc_per_chip=table.sparse_cores,
        row_offset=before,
        col_offset=table.row_offset * table.shards,
        col_shift=table.rotation,
        num_sc_shards=table.shards,
        stacked_table_sample_count=of_stack,
        combiner=feature.combiner,
    )


def sorting(features: Sequence[FeatureOnCore], kind: str = "ragged") -> list[dict[str, Any]]:
    """Returns for each SparseCore the arguments that the sorting ops have in common."""
    table = features[0].table
    of_stack = sum(feature.samples for feature in features)
    lists, before = [], 0
    for feature in features:
        lists.append(triples(feature, before, of_stack, kind))
        before += feature.samples
    return [
        {
            "row_ids_list": [of_feature[0][core] for of_feature in lists],
            "col_ids_list": [of_feature[1][core] for of_feature in lists],
            "gains_list": [of_feature[2][core] for of_feature in lists],
            "sample_count_list": [f.samples // table.sparse_cores for f in features],
            "col_offset_list": [f.table.row_offset * table.shards for f in features],
            "num_replica": table.cores,
            "table_vocab_size": table.total * table.shards,
            "feature_width": 8,
            "num_sc_per_chip": table.sparse_cores,
            "table_name": "words",
        }
        for core in range(table.sparse_cores)
    ]


def packed(
    features: Sequence[FeatureOnCore],
    kind: str = "ragged",
    *,
    max_ids: int = 256,
    max_unique: int = 256,
    per_sample: int = 64,
    dropping: bool = False,
) -> Buffer:
    table = features[0].table
    ordered = [
        raw.SortListOfSparseCoreCooTensors(
            **arguments, max_ids_per_sparse_core=max_ids, max_unique_ids_per_sparse_core=max_unique
        )
        for arguments in sorting(features, kind)
    ]
    outputs = raw.ConvertToSparseCoreCsrWrappedCooTensor(
        sorted_row_ids_list=[one.sorted_row_ids for one in ordered],
        sorted_col_ids_list=[one.sorted_col_ids for one in ordered],
        sorted_gains_list=[one.sorted_gains for one in ordered],
        id_counts_list=[one.id_counts for one in ordered],
        splits=tf.constant(0, tf.int64),
        sample_count_per_sc=sum(f.samples for f in features) // table.sparse_cores,
        num_replica=table.cores,
        max_minibatches_per_sc=64,
        max_ids_per_chip_per_sample=per_sample,
        table_vocab_size=table.total * table.shards,
        feature_width=8,
        table_name="words",
        allow_id_dropping=dropping,
    )
    *arrays, pointers, ids, minibatches = (output.numpy() for output in outputs)
    return Buffer(*arrays, int(pointers), int(ids), int(minibatches))


def statistics(features: Sequence[FeatureOnCore]) -> tuple[int, int]:
    """Calls the op for statistics for one core; returns the larger numbers of its SparseCores."""
    counts = [
        raw.GetStatsFromListOfSparseCoreCooTensors(**arguments) for arguments in sorting(features)
    ]
    return (
        max(int(one.max_ids_per_sparse_core) for one in counts),
        max(int(one.max_unique_ids_per_sparse_core) for one in counts),
    )


def by_chance(
    rng: np.random.Generator, table: TableInStack, rows: int, combiner: str
) -> FeatureOnCore:
    """Returns a feature with ids by chance, some of them twice in a sample."""
    samples = table.sparse_cores * int(rng.integers(1, 5))
    counts = rng.integers(0, 6, samples)
    occurrences = [
        Occurrence(sample, int(rng.integers(0, rows)), float(rng.integers(1, 16)) / 8)
        for sample, count in enumerate(counts)
        for _ in range(count)
    ] or [Occurrence(0, 0, 1.0)]
    return FeatureOnCore(table, combiner, samples, occurrences)


def assert_packed(actual: Buffer, features: Sequence[FeatureOnCore]) -> None:
    """Asserts that a buffer is that of the reference."""
    expected = sparsecore.pack(features)
    shards, sparse_cores = features[0].table.shards, features[0].table.sparse_cores
    assert actual.minibatches == 1
    assert actual.num_pointers == sparsecore.round_up(shards) * sparse_cores
    assert actual.row_pointers[: actual.num_pointers].tolist() == expected.row_pointers
    assert actual.num_ids == len(expected.tokens)
    of_ids = zip(actual.sample_ids, actual.tokens, actual.gains, strict=True)
    for at, (sample, token, gain) in enumerate(list(of_ids)[: actual.num_ids]):
        if expected.tokens[at] is None:
            assert (sample, token, gain) == (2**31 - 1, 2**31 - 1, 2.0**31)
        else:
            assert (sample, token) == (expected.sample_ids[at], expected.tokens[at]), at
            assert gain == pytest.approx(expected.gains[at], rel=WEIGHT_SIZE)


@pytest.mark.parametrize("seed", range(12))
def test_buffers_are_those_of_the_reference(seed: int) -> None:
    """Buffers equal the reference's for random stacks, features, combiners and topologies."""
    rng = np.random.default_rng(seed)
    cores, sparse_cores = [(1, 4), (2, 2), (4, 1), (2, 4), (1, 1), (8, 2)][seed % 6]
    rows = {name: int(rng.integers(1, 60)) for name in "abc"[: rng.integers(1, 4)]}
    tables = sparsecore.stack(rows, cores, sparse_cores)
    combiners = rng.choice(["sum", "mean", "sqrtn"], 4)
    names = rng.choice(list(rows), 4)
    features = [
        by_chance(rng, tables[name], rows[name], combiner)
        for name, combiner in zip(names, combiners, strict=True)
    ]

    assert_packed(packed(features), features)
    assert statistics(features) == sparsecore.most_ids([features])


@pytest.mark.parametrize("kind", ["dense", "sparse", "ragged"])
def test_sixteen_ids_in_order(kind: str) -> None:
    """The ids 0 ... 15 mod 10 on one core with 4 SparseCores give buffers worked out by hand."""
    (table,) = sparsecore.stack({"a": 10}, 1, 4).values()
    feature = FeatureOnCore(table, "mean", 16, dense([i % 10 for i in range(16)]))
    buffer = packed([feature], kind)

    # Samples 0 ... 3 have one id for each SparseCore; each begins at a multiple of 8.
    assert buffer.row_pointers[:8].tolist() == [1, 9, 17, 25, 32, 32, 32, 32]
    assert buffer.tokens[:9].tolist() == [0, *[2**31 - 1] * 7, 0]
    # Samples 8 ... 11 have the ids 8, 9, 0 and 1: SparseCores 0 and 1 get two, 2 and 3 none.
    assert (buffer.num_pointers, buffer.num_ids) == (32, 112)
    assert len(buffer.tokens) == 64 * 16
    assert set(buffer.gains[: buffer.num_ids]) == {1.0, 2.0**31}


def test_weights_that_cancel() -> None:
    """A sum of zero gives gains of zero; a negative one divides like any other."""
    (table,) = sparsecore.stack({"a": 10}, 1, 1).values()
    occurrences = [Occurrence(0, 3, 1.0), Occurrence(0, 4, -1.0), Occurrence(1, 5, -1.0)]
    feature = FeatureOnCore(table, "mean", 2, [*occurrences, Occurrence(1, 6, -1.0)])
    buffer = packed([feature])

    assert buffer.tokens[:4].tolist() == [3, 4, 5, 6]
    assert buffer.gains[:4].tolist() == [0.0, 0.0, 0.5, 0.5]


def one_id_each(count: int, shards: int = 1) -> list[FeatureOnCore]:
    """Returns a feature of one sample with so many distinct ids, all on SparseCore 0."""
    (table,) = sparsecore.stack({"a": shards * count}, shards, 1).values()
    occurrences = [Occurrence(0, shards * i, 1.0) for i in range(count)]
    return [FeatureOnCore(table, "sum", 1, occurrences)]


def test_the_limits_are_kept() -> None:
    """A batch within the limits of ids passes; one id more is refused in stock's words."""
    packed(one_id_each(256), per_sample=512)
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"Sparse core 0 gets 257 ids while the max ids per sparse core is set to be 256 "
        "for table words",
    ):
        packed(one_id_each(257), per_sample=512)
    packed(one_id_each(9), max_unique=9)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"gets 10 unique ids while .* set to be 9 for table"
    ):
        packed(one_id_each(10), max_unique=9)


def test_what_does_not_fit_is_refused_or_cut() -> None:
    """Ids beyond the room of a batch, padding included, are refused, or cut at the end."""
    (table,) = sparsecore.stack({"a": 24}, 1, 2).values()
    # Of 4 samples each has 12 ids, 6 on either SparseCore: 24 partitions' ids take 24 places.
    occurrences = [Occurrence(sample, id_, 1.0) for sample in range(4) for id_ in range(12)]
    feature = FeatureOnCore(table, "mean", 4, occurrences)
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"max_ids_per_chip is set to be 32 which is not going to fit all ids"
        r"\. The remaining id count is 24",
    ):
        packed([feature], per_sample=8)
    whole, cut = packed([feature]), packed([feature], per_sample=8, dropping=True)

    assert (whole.num_ids, cut.num_ids) == (64, 32)
    kept = slice(0, 28)
    assert cut.tokens[kept].tolist() == whole.tokens[kept].tolist()
    assert cut.gains[kept].tolist() == whole.gains[kept].tolist()
    assert cut.row_pointers[:16].tolist()[:2] == whole.row_pointers[:2].tolist()


def test_sizes_are_cut_on_the_way_to_the_device() -> None:
    """Tensors are cut to their unpadded sizes; cutting them again changes nothing."""
    tensors = [tf.range(8), tf.range(4.0)]
    on_device = raw.TPUCopyWithDynamicShape(tensors=tensors, unpadded_sizes=[3, 0])
    annotated = raw.TPUAnnotateTensorsWithDynamicShape(tensors=on_device)

    assert [tensor.numpy().tolist() for tensor in annotated] == [[0, 1, 2], []]
