"""The features of an input_fn are split into ids, weights and other features, as in stock.

Oracle: stock's `split_inputs`, if TensorFlow has it; otherwise values in the tests.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cases.legacy import Case, Feature
from compat_tests.support import batches, fresh, legacy_specs
from compat_tests.support.paths import ROOT
from estimator_bridge.legacy.spec import EmbeddingConfigSpec
from estimator_bridge.runtime.input.feature_splitting import CoreInput, split_batch, split_features
from estimator_bridge.translation.read_spec import read_spec

# --- Stock ---------------------------------------------------------------------------------


@legacy_specs.needs_stock
@pytest.mark.parametrize("num_cores", [1, 2, 4])
def test_ids_weights_and_the_rest_are_those_of_stock(num_cores: int) -> None:
    """On every core ids, their coordinates, weights and remaining features are stock's."""
    from compat_tests.support import stock

    spec = legacy_specs.build(batches.CASE, stock.CLASSES)
    rest, enqueued = stock.split_inputs(spec, batches.batch(), num_cores=num_cores, batch_size=4)
    ours = batches.split(batches.batch(), batches.legacy(), num_cores)
    assert len(ours) == len(enqueued) == num_cores
    for core, theirs in zip(ours, enqueued, strict=True):
        for key, data in theirs.items():
            ids, weights = core.ids[key], core.weights[key]
            dense = not isinstance(ids, tf.SparseTensor)
            assert batches.plain(ids if dense else ids.values) == batches.plain(
                data.embedding_indices
            ), key
            assert batches.plain(None if dense else ids.indices) == batches.plain(
                data.sample_indices
            ), key
            values = None if weights is None else weights.values
            assert batches.plain(values) == batches.plain(data.aggregation_weights), key
    for key, value in rest.items():
        joined = tf.concat([core.features[key] for core in ours], 0)
        assert batches.plain(joined) == batches.plain(value), key
    assert set(ours[0].features) == set(rest)


@legacy_specs.needs_stock
def test_dense_ids_of_rank_two_lose_zeros_as_in_stock() -> None:
    """Id 0 is dropped, -1 is kept, and coordinates stay, exactly as in stock."""
    from compat_tests.support import stock

    ids = tf.constant([[1, 0, -1], [0, 0, 0], [2, 2, 0], [0, 3, 4]])
    case = Case(**{**vars(batches.CASE), **batches.only(batches.BAG)})
    spec = legacy_specs.build(case, stock.CLASSES)
    _, (theirs,) = stock.split_inputs(spec, {"bag": ids}, num_cores=1, batch_size=4)
    ours = split_features({"bag": ids}, batches.legacy(**batches.BAG))
    assert batches.plain(ours.ids["bag"].values) == batches.plain(theirs["bag"].embedding_indices)
    assert batches.plain(ours.ids["bag"].indices) == batches.plain(theirs["bag"].sample_indices)


# --- What comes out ------------------------------------------------------------------------


def test_the_users_dict_is_left_as_it_is() -> None:
    """The dict that the input_fn gave has the same keys and the same tensors afterwards."""
    batch = batches.batch()
    before = dict(batch)
    batches.split(batch, batches.legacy(), 2)
    assert batch.keys() == before.keys()
    assert all(batch[key] is before[key] for key in before)


def test_ids_and_weights_are_taken_out() -> None:
    """The model's features have neither ids nor weights, but the lengths of sequences.

    A length is the last position plus one, 0 for an empty row, at most the table's.
    """
    core = split_features(batches.batch(), batches.legacy())
    assert set(core.features) == {"dense", "sequence_seq_length_"}
    assert set(core.ids) == set(core.weights) == {"bag", "weighted", "sequence", "one"}
    lengths = core.features["sequence_seq_length_"]
    assert batches.plain(lengths) == ("int64", [0, 3, 1, 0])


def test_positions_of_a_sequence_may_have_several_ids() -> None:
    """Ids [batch, positions, ids of a position] keep their coordinates; a length is of positions.

    A position without ids before one with some counts too, as in stock.
    """
    ids = tf.SparseTensor(
        [[0, 0, 0], [0, 0, 1], [0, 2, 1], [2, 4, 0], [3, 0, 0]], [1, 2, 3, 4, 5], [4, 5, 2]
    )
    legacy = batches.legacy(sequence=Feature("combined", max_sequence_length=3))
    core = split_features({"sequence": ids}, legacy)
    assert batches.plain(core.ids["sequence"]) == batches.plain(ids)
    assert batches.plain(core.features["sequence_seq_length_"]) == ("int64", [3, 0, 3, 1])
    _, second = batches.split({"sequence": ids}, legacy, 2)
    assert batches.plain(second.ids["sequence"].indices)[1] == [[0, 4, 0], [1, 0, 0]]
    ragged = tf.ragged.constant([[[1, 2], [], [3]], []], dtype=tf.int64)
    core = split_features({"sequence": ragged}, legacy)
    assert batches.plain(core.ids["sequence"])[0][1] == [[0, 0, 0], [0, 0, 1], [0, 2, 0]]


def test_every_core_gets_its_samples_in_order() -> None:
    """Core i has the i-th part of every tensor, renumbered from row 0."""
    first, second = batches.split(batches.batch(), batches.legacy(), 2)
    assert batches.plain(second.ids["bag"]) == [
        ("int64", [[0, 0]]),
        ("int64", [4]),
        ("int64", [2, 3]),
    ]
    assert batches.plain(first.ids["one"]) == ("int32", [7, 0])
    assert batches.plain(second.features["dense"]) == ("float32", [[4.0, 5.0], [6.0, 7.0]])
    assert batches.plain(second.features["sequence_seq_length_"]) == ("int64", [1, 0])
    assert batches.plain(second.weights["weighted"])[1] == ("float32", [-1.0, 3.0])


@pytest.mark.parametrize("num_cores", [1, 2])
def test_ragged_ids_are_sparse_ids(num_cores: int) -> None:
    batch = batches.batch()
    expected = batches.split(batch, batches.legacy(), num_cores)
    for key in ("bag", "weighted", "weight", "sequence"):
        batch[key] = tf.RaggedTensor.from_sparse(batch[key])

    def values(nest: Any) -> dict[str, Any]:
        plain = {key: batches.plain(value) for key, value in nest.items()}
        # A core's part of a RaggedTensor is as wide as the longest row in it.
        return {key: value and value[: 3 if num_cores == 1 else 2] for key, value in plain.items()}

    cores = batches.split(batch, batches.legacy(), num_cores)
    for ours, sparse in zip(cores, expected, strict=True):
        for part in ("ids", "weights", "features"):
            assert values(getattr(ours, part)) == values(getattr(sparse, part))


def test_features_may_share_weights() -> None:
    legacy = batches.legacy(
        a=Feature("combined", weight_key="weight"), b=Feature("combined", weight_key="weight")
    )
    batch = batches.batch()
    ids = {"a": batch["weighted"], "b": batch["weighted"], "weight": batch["weight"]}
    core = split_features(ids, legacy)
    assert batches.plain(core.weights["a"]) == batches.plain(core.weights["b"])
    assert core.features == {}


@pytest.mark.parametrize("dtype", [tf.int8, tf.uint16, tf.int32, tf.int64], ids=lambda d: d.name)
def test_ids_have_a_type_that_can_be_looked_up(dtype: Any) -> None:
    """Ids of other integer types become int64, as a device takes int32 and int64 alone."""
    core = split_features({"one": tf.constant([1, 2], dtype)}, batches.legacy(**batches.ONE))
    assert core.ids["one"].dtype == (dtype if dtype in (tf.int32, tf.int64) else tf.int64)


def test_dense_ids_may_have_a_last_dimension_of_one() -> None:
    """With combiner=None dense ids [batch, 1] are one id per sample."""
    core = split_features({"one": tf.constant([[4], [0]])}, batches.legacy(**batches.ONE))
    assert batches.plain(core.ids["one"]) == ("int32", [4, 0])


def test_a_graph_gives_what_eager_gives() -> None:
    """In a tf.Graph, sizes unknown until it runs, every core gets the same values."""

    def make(batch: dict[str, Any]) -> Any:
        return [
            {"bag": core.ids["bag"], "one": core.ids["one"], **core.weights, **core.features}
            for core in _without_none(batches.split(batch, batches.legacy(), 2))
        ]

    eager = make(batches.batch())
    for ran, expected in zip(batches.in_graph(batches.batch(), make), eager, strict=True):
        assert ran.keys() == expected.keys()
        for key, value in expected.items():
            if isinstance(value, tf.SparseTensor):
                for part in ("indices", "values", "dense_shape"):
                    np.testing.assert_array_equal(
                        getattr(ran[key], part), getattr(value, part), err_msg=key
                    )
            else:
                np.testing.assert_array_equal(ran[key], value, err_msg=key)


def _without_none(cores: list[CoreInput]) -> list[CoreInput]:
    """Returns the cores without the weights that are None, which a session cannot run."""
    return [
        CoreInput(core.ids, {k: v for k, v in core.weights.items() if v is not None}, core.features)
        for core in cores
    ]


def test_inputs_are_split_after_v2_behavior_is_disabled() -> None:
    """A process that called disable_v2_behavior, as legacy programs do, gets the same values."""
    script = """
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
from compat_tests.support import batches
from compat_tests.cases.legacy import Feature
f = {'sequence': tf.constant([[1, 2, 0], [3, 4, 5]]), 'dense': tf.zeros([2, 3])}
f['sequence'] = tf.sparse.from_dense(f['sequence'])
feature = Feature('combined', max_sequence_length=2)
cores = batches.split(f, batches.legacy(sequence=feature), 2)
with tf.Session() as session:
    print(session.run([core.features['sequence_seq_length_'] for core in cores]))
    print(session.run([core.ids['sequence'].values for core in cores]))
"""
    ran = fresh.code(script, cwd=ROOT)
    assert ran.stdout.replace(", dtype=int32", "") == (
        "[array([2]), array([2])]\n[array([1, 2]), array([3, 4, 5])]\n"
    ), ran.stderr


def test_known_sizes_are_kept_in_a_graph() -> None:
    with tf.Graph().as_default():
        cores = batches.split(batches.batch(), batches.legacy(), 2)
        for core in cores:
            assert core.features["dense"].shape.as_list() == [2, 2]
            assert core.ids["bag"].shape.rank == 2


def test_tensor_core_ids_are_padded_and_masked() -> None:
    """Ids of a tensor-core column are padded and cut, with a mask beside them."""
    column = tf.compat.v1.tpu.experimental.embedding_column(
        tf.feature_column.categorical_column_with_identity("core", 9),
        4,
        embedding_lookup_device="tpu_tensor_core",
        tensor_core_shape=[None, 2],
    )
    spec = EmbeddingConfigSpec([column], legacy_specs.OURS.AdagradParameters(0.1))
    ids = batches.sparse([[5, 6, 7], []])
    core = split_features({"core": ids}, read_spec(spec))
    assert batches.plain(core.features["core"]) == ("int32", [[5, 6], [0, 0]])
    assert batches.plain(core.features["core__TENSOR_CORE_MASK"]) == (
        "float32",
        [[1.0, 1.0], [0.0, 0.0]],
    )


# --- Splitting a nest ----------------------------------------------------------------------


def test_a_nest_is_split_leaf_by_leaf() -> None:
    """Dense, sparse and ragged leaves are split along their first axis; None stays None."""
    nest = {
        "dense": tf.range(4),
        "sparse": batches.sparse([[1], [], [2, 3], []]),
        "ragged": tf.ragged.constant([[1], [], [2, 3], []]),
        "none": None,
        "pair": (tf.ones([2, 3]), [tf.zeros([4])]),
    }
    first, second = split_batch(nest, 2)
    assert batches.plain(second["dense"]) == ("int32", [2, 3])
    assert batches.plain(second["sparse"])[1] == ("int64", [2, 3])
    assert second["ragged"].to_list() == [[2, 3], []]
    assert first["none"] is None
    assert [part["pair"][0].shape.as_list() for part in (first, second)] == [[1, 3], [1, 3]]
    assert isinstance(first["pair"], tuple)


def test_one_core_gets_the_nest_itself() -> None:
    """For a single core nothing is copied, and scalars are allowed."""
    nest = {"scalar": tf.constant(1.0)}
    assert split_batch(nest, 1)[0] is nest


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (tf.constant(1.0), "scalar.*2 cores"),
        (tf.zeros([3, 2]), "3 samples.*2 cores"),
        (batches.sparse([[1], [2], [3]]), "3 samples.*2 cores"),
    ],
    ids=["scalar", "odd", "odd sparse"],
)
def test_what_cannot_be_split_is_refused(leaf: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_batch({"leaf": leaf}, 2)
