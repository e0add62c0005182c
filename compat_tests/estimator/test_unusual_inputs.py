"""Dense ids of tables with a combiner follow `quirks`; bad batches raise errors that name them.

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
from compat_tests.support import batches, legacy_specs, tpu_jobs
from estimator_bridge import errors
from estimator_bridge.runtime.input.feature_splitting import split_features

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
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"'bag'.*hold id 0"):
        split_features({"bag": tf.constant([3, 0, 3])}, batches.legacy("stock", **batches.BAG))
    legacy = batches.legacy("stock", **batches.BAG)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"bag.*hold id 0"):
        batches.in_graph(
            {"bag": tf.constant([3, 0, 3])},
            lambda batch: split_features(batch, legacy).ids["bag"],
        )


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
    from compat_tests.support import stock

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
