"""`verify` queries exported models, and reports models that cannot be queried."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.support import recordings
from estimator_bridge import errors
from estimator_bridge.recording.files import SERVED, Recording, read_arrays
from estimator_bridge.verification.compare import comparison
from estimator_bridge.verification.record import exported_models, processes
from estimator_bridge.verification.report import page

BATCH: dict[str, Any] = {
    "features/word.indices": np.array([[0, 0], [0, 1], [2, 0]]),
    "features/word.values": np.array([4, 5, 6]),
    "features/word.shape": np.array([3, 2]),
    "features/age": np.array([[0.5], [0.25], [0.125]], np.float32),
    "features/city": np.array([b"a", b"b", b"a"]),
    "labels": np.array([1, 0, 1]),
}
SUMS = [9.5, 0.25, 6.125]
"""The sum of the ids of the words and the age of each sample."""


def export(directory: pathlib.Path) -> str:
    """Exports a model that sums words and ages, with a signature for each kind of inputs."""
    with tf.Graph().as_default(), tf.Session() as session:
        word = tf.sparse_placeholder(tf.int64, [None, None])
        age = tf.placeholder(tf.float32, [None, 1])
        serialized = tf.placeholder(tf.string, [None])
        kinds = {"word": tf.io.VarLenFeature(tf.int64), "age": tf.io.FixedLenFeature([1], "float")}
        parsed = tf.io.parse_example(serialized, kinds)

        def signature(inputs: dict[str, Any], words: Any, ages: Any) -> Any:
            total = tf.sparse.reduce_sum(tf.cast(words, tf.float32), 1) + ages[:, 0]
            outputs = {"sum": tf.saved_model.build_tensor_info(total)}
            tensors = {key: tf.saved_model.build_tensor_info(one) for key, one in inputs.items()}
            return tf.saved_model.build_signature_def(tensors, outputs, "predict")

        signatures = {
            "by name": signature({"word": word, "age": age}, word, age),
            "by examples": signature({"examples": serialized}, parsed["word"], parsed["age"]),
            "by others": signature({"word": word, "height": age}, word, age),
        }
        builder = tf.saved_model.Builder(str(directory))
        builder.add_meta_graph_and_variables(session, [tf.saved_model.SERVING], signatures)
        builder.save()
    return str(directory)


def answers(tmp_path: pathlib.Path, **changes: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the answers of the model to the batch, and the failed signatures."""
    side = recordings.record(tmp_path / "a", batches=(BATCH, BATCH))
    request = {
        "model": export(tmp_path / "model"),
        "batches": [str(batch) for batch in side.batches()],
        "examples": None,
        "answers": str(tmp_path / "answers.npz"),
        "signatures": str(tmp_path / "signatures.json"),
        **changes,
    }
    (tmp_path / "told.json").write_text(json.dumps(request))
    assert exported_models.main(str(tmp_path / "told.json")) == 0
    signatures = json.loads((tmp_path / "signatures.json").read_text())
    return read_arrays(tmp_path / "answers.npz"), signatures["failed"]


def test_a_model_is_queried_with_batches_of_the_training(tmp_path: pathlib.Path) -> None:
    """Inputs are features by name (also sparse ones), Examples of them, or made-up numbers."""
    answered, failed = answers(tmp_path)

    assert answered.keys() == {"by name: sum", "by examples: sum", "by others: sum"}
    for way in ("by name", "by examples"):
        np.testing.assert_array_equal(answered[f"{way}: sum"], [*SUMS, *SUMS])
    # Two samples of the ids 0 and 1, and a quarter and a half.
    np.testing.assert_array_equal(answered["by others: sum"], [1.25, 1.5])
    assert not failed


def exported(
    directory: pathlib.Path, signatures: dict[str, Any], failed: dict[str, str] | None = None
) -> Recording:
    """Records a side with an export that has some signatures."""
    side = recordings.record(directory)
    (directory / "exported-0").mkdir()
    report = {"failed": failed or {}, "signatures": signatures}
    (directory / "signatures-0.json").write_text(json.dumps(report))
    return side


@pytest.mark.parametrize(
    "signatures, note",
    [
        ({"more": {"takes x": "int64"}}, "a signature on side B alone"),
        ({"p": {"takes x": "int32", "gives y": "float32"}}, "takes x: int64 on A, int32 on B"),
        ({"p": {"gives y": "float32"}}, "takes x: int64 on A, not set on B"),
    ],
)
def test_signatures_are_compared(
    signatures: dict[str, Any], note: str, tmp_path: pathlib.Path
) -> None:
    """A signature that one side lacks, or that has other types, makes the sides unequal."""
    shared = {"q": {"takes y": "string"}, "p": {"takes x": "int64", "gives y": "float32"}}
    a = exported(tmp_path / "a", shared)
    b = exported(tmp_path / "b", {**shared, **signatures})
    (outcome,) = comparison.compare(a, b).outcomes
    assert not outcome.equal
    assert note in outcome.note


def test_a_model_is_queried_with_examples_of_a_file(tmp_path: pathlib.Path) -> None:
    """Serialized Examples from a file go to the signature that accepts them."""
    records = str(tmp_path / "examples.tfrecord")
    with tf.python_io.TFRecordWriter(records) as writer:
        for example in exported_models.examples(BATCH)[:2]:
            writer.write(example)
    answered, _ = answers(tmp_path, examples=records)

    np.testing.assert_array_equal(answered["by examples: sum"], SUMS[:2])
    side = Recording(tmp_path / "a")
    with pytest.raises(errors.InvalidInput, match="There is no file of Examples 'no/such'"):
        processes.query_exported_models(side, side, "", "no/such")


def test_a_failing_signature_is_a_note_on_the_page(tmp_path: pathlib.Path) -> None:
    """If a signature fails on both sides, a note says so; if on one side, the sides differ."""
    failed = {"predict": "no such key"}
    sides = [exported(tmp_path / name, {"predict": {}}, failed) for name in "ab"]
    result = comparison.compare(*sides)
    assert result.equal
    assert "signature predict of export 0: it could not be queried" in page.page(result)

    np.savez(sides[0].directory / f"{SERVED}-0.npz", **{"=predict: p": np.ones(3, np.float32)})
    assert not comparison.compare(*sides).equal
