"""The features of an input_fn are split into ids, weights and other features, as in stock.

Dense ids of tables with a combiner follow `quirks`; bad batches raise errors that name them.
Oracle: stock's `split_inputs`, if TensorFlow has it; otherwise the rules in its code.
"""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Mapping
from typing import Any

import pytest
import tensorflow as tf

from compat_tests.cases.legacy import Case, Feature
from compat_tests.conftest import HAS_STOCK
from compat_tests.support import batches, legacy_specs, tpu_jobs
from estimator_bridge import errors
from estimator_bridge.runtime.input.feature_splitting import split_batch, split_features

if HAS_STOCK:
    from compat_tests.support import stock

# --- Stock ---------------------------------------------------------------------------------


@legacy_specs.needs_stock
@pytest.mark.parametrize("num_cores", [1, 2, 4])
def test_ids_weights_and_the_rest_are_those_of_stock(num_cores: int) -> None:
    """On every core ids, their coordinates, weights and remaining features are stock's."""
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


# --- Splitting a nest ----------------------------------------------------------------------


def test_a_nest_is_split_leaf_by_leaf() -> None:
    """Dense, sparse and ragged leaves are split along their first axis; None stays None.

    For a single core nothing is copied, and scalars are allowed.
    """
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
    alone = {"scalar": tf.constant(1.0)}
    assert split_batch(alone, 1)[0] is alone


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


# --- Dense ids of a table with a combiner --------------------------------------------------


def test_documented_dense_ids_of_rank_one_are_taken_as_they_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With quirks="documented" each sample has its id, 0 too; one warning says so."""
    with caplog.at_level(logging.WARNING):
        core = split_features({"bag": tf.constant([3, 0, 3])}, batches.legacy(**batches.BAG))
    assert batches.plain(core.ids["bag"]) == ("int32", [3, 0, 3])
    (record,) = caplog.records
    assert "Feature 'bag'" in record.getMessage()


def test_stock_dense_ids_of_rank_one_without_zero_are_taken_as_they_are() -> None:
    """With quirks="stock" a batch without id 0 is looked up, one id per sample."""
    core = split_features({"bag": tf.constant([3, 1, 3])}, batches.legacy("stock", **batches.BAG))
    assert batches.plain(core.ids["bag"]) == ("int32", [3, 1, 3])


def test_stock_dense_ids_of_rank_one_with_zero_fail() -> None:
    """With quirks="stock" id 0 is an error at run time, whose message says why."""
    legacy = batches.legacy("stock", **batches.BAG)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"'bag'.*hold id 0"):
        split_features({"bag": tf.constant([3, 0, 3])}, legacy)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        bag = tf.compat.v1.placeholder(tf.int32, [None])
        ids = split_features({"bag": bag}, legacy).ids["bag"]
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"bag.*hold id 0"):
            session.run(ids, {bag: [3, 0, 3]})


@pytest.mark.parametrize("quirks", ["stock", "documented"])
def test_dense_ids_of_rank_two_drop_zeros_and_weights_with_a_warning(
    quirks: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Id 0 is padding and weights are ignored, with one warning; the weights stay a feature."""
    legacy = batches.legacy(quirks, bag=Feature("combined", weight_key="weight"))
    weights = tf.constant([[1.0, 2.0]])
    with caplog.at_level(logging.WARNING):
        core = split_features({"bag": tf.constant([[0, 5]]), "weight": weights}, legacy)
    assert batches.plain(core.ids["bag"]) == [
        ("int64", [[0, 1]]),
        ("int32", [5]),
        ("int64", [1, 2]),
    ]
    assert core.weights["bag"] is None
    assert core.features["weight"] is weights
    (record,) = caplog.records
    assert "id 0" in record.getMessage()
    assert "weights 'weight' are ignored" in record.getMessage()


def test_a_job_is_warned_of_dense_ids_once(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        out = tf.reduce_sum(features["bag"], 1)
        return tpu_jobs.spec(mode, tf.reduce_mean(tf.square(out)), predictions={"out": out})

    def input_fn(params: Mapping[str, Any]) -> Any:
        return tf.data.Dataset.from_tensors({"bag": tf.ones([params["batch_size"], 2], tf.int32)})

    case = Case(**{**vars(batches.CASE), **batches.only(batches.BAG)})
    job = tpu_jobs.make(
        *(model_fn, tmp_path, 8),
        tpu={"num_shards": 2, "per_host_input_for_training": 3},
        eval_batch_size=4,
        predict_batch_size=2,
        embedding_config_spec=legacy_specs.build(case),
    )
    for _ in range(2):
        job.train(lambda params: input_fn(params).repeat(), steps=1)
        job.evaluate(lambda params: input_fn(params).repeat(), steps=1)
        assert list(job.predict(input_fn))

    (line,) = [r.getMessage() for r in caplog.records if "ids are dense" in r.getMessage()]
    assert "Feature 'bag'" in line


# --- What is refused -----------------------------------------------------------------------

# A feature of the spec, the batch, and words of the message.
REFUSED: Mapping[str, tuple[Mapping[str, Feature], Any, str]] = {
    "string ids": (batches.BAG, {"bag": tf.constant([["a"]])}, "'bag'.*string as values.*integers"),
    "float ids": (batches.ONE, {"one": tf.constant([1.0])}, "'one'.*float32 as values.*integers"),
    "missing feature": (batches.BAG, {"dog": tf.constant([1])}, r"'bag'.*only \['dog'\]"),
    "features no dict": (batches.BAG, tf.constant([1]), "features as a dict"),
    "missing weights": (
        {"bag": Feature("combined", weight_key="w")},
        {"bag": batches.sparse([[1]])},
        "'bag'.*'w'",
    ),
    "dense weights": (
        {"bag": Feature("combined", weight_key="w")},
        {"bag": batches.sparse([[1]]), "w": tf.constant([[1.0]])},
        "'bag'.*weights 'w'.*SparseTensor",
    ),
    "dense sequence": (
        {"bag": Feature("combined", max_sequence_length=2)},
        {"bag": tf.constant([[1, 2]])},
        r"'bag'.*sequence.*SparseTensor.*\(1, 2\)",
    ),
    "weights without combiner": (
        {"one": Feature("single", weight_key="w")},
        {"one": tf.constant([1]), "w": batches.sparse([[1]])},
        "'one'.*weights 'w'.*combiner=None",
    ),
    "several ids without combiner": (
        batches.ONE,
        {"one": tf.constant([[1, 2]])},
        r"'one'.*combiner=None.*\(1, 2\)",
    ),
    "dense rank three": (batches.BAG, {"bag": tf.constant([[[1]]])}, r"'bag'.*\(1, 1, 1\)"),
    "sparse rank three": (
        batches.BAG,
        {"bag": tf.sparse.from_dense([[[1]]])},
        r"'bag'.*rank 2.*\(1, 1, 1\)",
    ),
}
KINDS = {"missing feature": KeyError, "features no dict": TypeError}
"""The built-in types of errors that are no ValueErrors."""


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("quirks", ["stock", "documented"])
def test_a_bad_batch_is_refused_by_name(name: str, quirks: str) -> None:
    features, batch, message = REFUSED[name]
    with pytest.raises(KINDS.get(name, ValueError), match=message) as caught:
        split_features(batch, batches.legacy(quirks, **features))
    assert isinstance(caught.value, errors.EngineError)


@legacy_specs.needs_stock
@pytest.mark.parametrize(
    "name",
    ["string ids", "missing feature", "missing weights", "dense weights"],
)
def test_stock_refuses_the_same_batches(name: str) -> None:
    features, batch, _ = REFUSED[name]
    case = Case(**{**vars(batches.CASE), **batches.only(features)})
    spec = legacy_specs.build(case, stock.CLASSES)
    call = lambda: stock.split_inputs(spec, batch, num_cores=1, batch_size=1)  # noqa: E731
    assert stock.raised(call) is KINDS.get(name, ValueError)


def test_a_missing_feature_reads_as_a_sentence() -> None:
    """The message of a missing feature is shown as it is, without the quotes of a KeyError."""
    with pytest.raises(errors.MissingFeature) as caught:
        split_features({}, batches.legacy(**batches.BAG))
    assert str(caught.value).startswith("Feature 'bag'")
