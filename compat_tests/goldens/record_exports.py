"""Records SavedModels, as TensorFlow 2.15.1 exports them, and what they answer.

    python -m compat_tests.goldens.record_exports

They stand for the models that teams have in production: newer versions of TensorFlow have to load
these files and give the same answers.
"""

from __future__ import annotations

import base64
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from compat_tests.programs import clicks, clicks_served, jobs
from estimator_bridge import estimator
from tf2_engine import Adagrad, keras

FOLDER = pathlib.Path(__file__).parent / "exports"
ANSWERS = FOLDER / "answers.json"
WORDS = tf.tpu.experimental.embedding.TableConfig(10, 4, combiner="mean", name="words")
SPEC = {"word": tf.io.FixedLenFeature([1], tf.int64), "x": tf.io.FixedLenFeature([2], tf.float32)}


def _export_tpu_estimator(folder: str) -> str:
    job = jobs.make(os.path.join(folder, "job"))
    job.train(clicks.input_fn, steps=5)
    return os.fsdecode(job.export_saved_model(folder, clicks_served.receiver))


def _export_canned(folder: str) -> str:
    word = tf.feature_column.categorical_column_with_identity("word", 10)
    columns = [
        tf.feature_column.numeric_column("x", (2,)),
        tf.feature_column.embedding_column(word, 3),
    ]
    job = estimator.DNNClassifier([4], columns, os.path.join(folder, "job"), n_classes=3)
    features = {"x": [[0.5, 1.0], [-1.0, 2.0]], "word": [[3], [7]]}
    job.train(lambda: tf.data.Dataset.from_tensors((features, [[0], [2]])).repeat(), steps=5)
    receiver = estimator.export.build_parsing_serving_input_receiver_fn(SPEC)
    return os.fsdecode(job.export_saved_model(folder, receiver))


def _export_keras(folder: str) -> str:
    tables = keras.TPUEmbedding(
        {"word": tf.tpu.experimental.embedding.FeatureConfig(WORDS)}, Adagrad(0.1)
    )
    activation = tf.keras.layers.Lambda(lambda activations: activations["word"])
    model = tf.keras.Sequential([tables, activation, tf.keras.layers.Dense(1)])
    model({"word": tf.constant([1])})

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def serve(examples: Any) -> Any:
        return {"scores": model({"word": tf.io.parse_example(examples, SPEC)["word"][:, 0]})}

    tf.saved_model.save(keras.exportable(model), folder, signatures=serve)
    return folder


def _simple_examples() -> list[bytes]:
    rows = [(1, (0.25, -1.0)), (9, (3.0, 0.5)), (0, (0.0, 0.0))]
    made = []
    for word, x in rows:
        example = tf.train.Example()
        example.features.feature["word"].int64_list.value.append(word)
        example.features.feature["x"].float_list.value.extend(x)
        made.append(example.SerializeToString())
    return made


def answers(path: str | os.PathLike[str], examples: Sequence[bytes]) -> dict[str, Any]:
    """Returns the numeric outputs of the default signature for serialized examples, as lists."""
    serve = tf.saved_model.load(os.fspath(path)).signatures["serving_default"]
    [name] = serve.structured_input_signature[1]
    outputs = serve(**{name: tf.constant(list(examples))})
    return {
        key: value.numpy().tolist() for key, value in outputs.items() if value.dtype.is_floating
    }


def main() -> None:
    if not tf.__version__.startswith("2.15."):
        raise SystemExit("The models are those of TensorFlow 2.15.1; run this in .envs/tf215.")
    shutil.rmtree(FOLDER, ignore_errors=True)
    recorded = {}
    for export in (_export_tpu_estimator, _export_canned, _export_keras):
        name = export.__name__.removeprefix("_export_")
        clicked = name == "tpu_estimator"
        examples = clicks_served.examples(1, jobs.BATCH) if clicked else _simple_examples()
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(export(folder), FOLDER / name, ignore=shutil.ignore_patterns("job"))
        texts = [base64.b64encode(example).decode() for example in examples]
        recorded[name] = {"examples": texts, "answers": answers(FOLDER / name, examples)}
    assert all(np.ptp(next(iter(each["answers"].values()))) > 0 for each in recorded.values())
    ANSWERS.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
