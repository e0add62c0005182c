"""Batches of predictions with fewer samples than the TPU is configured for."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.support.legacy_specs import OURS
from tf2_engine import training
from tf2_engine.soft_tpu import SoftTPUStrategy
from tf2_engine.training import model

SIZE, SAMPLES = 8, 11


def test_a_batch_is_filled_and_its_predictions_are_cut() -> None:
    """Tensors of every kind get samples without ids; arrays, not scalars, lose them again."""
    sparse = tf.sparse.from_dense([[1, 2], [0, 3]])
    batch = {
        "ids": {"word": sparse},
        "rest": {
            "ragged": tf.ragged.constant([[1.0], [2.0, 3.0]]),
            "dense": tf.ones([2, 3]),
            "text": tf.constant(["a", "b"]),
            "rate": tf.constant(0.5),
        },
    }
    filled = model.padded(batch, 4)
    rest = filled["rest"]

    assert filled["ids"]["word"].dense_shape.numpy().tolist() == [4, 2]
    np.testing.assert_array_equal(filled["ids"]["word"].values, sparse.values)
    assert rest["ragged"].to_list() == [[1.0], [2.0, 3.0], [], []]
    np.testing.assert_array_equal(rest["dense"], [[1.0] * 3] * 2 + [[0.0] * 3] * 2)
    assert rest["text"].numpy().tolist() == [b"a", b"b", b"", b""]
    assert rest["rate"].numpy() == 0.5
    present = filled[model.PRESENT].numpy()
    assert present.tolist() == [True, True, False, False]

    predictions = {"net": np.arange(4), "rate": np.float32(0.5), model.PRESENT: present}
    cut = model.without_padding(predictions)
    assert cut["net"].tolist() == [0, 1]
    assert cut["rate"] == 0.5
    assert list(cut) == ["net", "rate"]
    assert model.without_padding({"net": np.arange(4)})["net"].tolist() == [0, 1, 2, 3]


def test_a_batch_that_is_too_large_is_refused() -> None:
    batch = {"ids": {"word": tf.sparse.from_dense([[1], [2], [3]])}}
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"of 2 samples, .* at most"):
        model.padded(batch, 2)


def model_fn(features: Any, mode: str) -> training.ModelSpec:
    """Predicts the sum of a row and of numbers, and the text of the sample."""
    net = tf.reduce_sum(features["word"], 1) + features["number"]
    return training.ModelSpec(mode, predictions={"net": net, "batch": tf.reduce_sum(net) * 0.0})


def input_fn() -> Any:
    samples = np.arange(SAMPLES)

    def sparse(ids: Any, number: Any) -> Any:
        return {"word": tf.sparse.from_dense(ids[:, tf.newaxis]), "number": number}

    dataset = tf.data.Dataset.from_tensor_slices((samples + 1, samples.astype(np.float32)))
    return dataset.batch(SIZE).map(sparse)


def predicted(folder: pathlib.Path, strategy: Any, arithmetic: Any) -> list[float]:
    spec = OURS.EmbeddingConfigSpec(
        table_to_config_dict={
            "words": OURS.TableConfig(20, 4, initializer=tf.ones_initializer(), combiner="sum")
        },
        feature_to_config_dict={"word": OURS.FeatureConfig("words")},
        optimization_parameters=OURS.AdagradParameters(0.1),
    )
    with strategy.scope():
        trainer = training.Trainer(
            model_fn,
            str(folder),
            embedding_config_spec=spec,
            train_batch_size=SIZE,
            predict_batch_size=SIZE,
            arithmetic=arithmetic,
        )
        return [float(each["net"]) for each in trainer.predict(input_fn, ["net"])]


HARDWARE: dict[str, dict[str, Any]] = {"v1": {}}
if hasattr(tf.tpu.experimental.embedding, "TPUEmbeddingV2"):
    HARDWARE["sparsecore"] = {"hardware": "sparsecore", "sparse_cores": 2}


@pytest.mark.full
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("hardware", HARDWARE)
def test_a_tpu_predicts_for_the_samples_that_are_there(
    hardware: str, cores: int, tmp_path: pathlib.Path
) -> None:
    """A last batch of three samples has three predictions, on either hardware, as on a host."""
    arithmetic = "sparsecore" if hardware == "sparsecore" else "tpu"
    strategy = SoftTPUStrategy(cores, **HARDWARE[hardware])

    assert predicted(tmp_path, strategy, arithmetic) == [4.0 + each for each in range(SAMPLES)]
