"""After training, too, `verify` gives side B the data of side A and finds differences."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import estimator_bridge
from estimator_bridge import estimator
from estimator_bridge.legacy import parameters
from estimator_bridge.verification.compare import evaluation_metrics
from estimator_bridge.verification.result import Result

BATCH, ROWS = 8, 20


def samples(kind: Any = np.int64) -> tuple[Any, Any]:
    """Returns the ids and labels of 64 samples."""
    ids = np.arange(64) * 7 % ROWS
    return ids, (ids % 3 == 0).astype(kind)


def shuffled(params: dict[str, Any], kind: Any = np.int64) -> Any:
    """Returns a dataset that is shuffled without a seed, as many programs do."""
    ids, labels = samples(kind)
    data = tf.data.Dataset.from_tensor_slices((ids, labels)).shuffle(64)

    def features(ids: Any, labels: Any) -> Any:
        rows = tf.range(BATCH, dtype=tf.int64)
        sparse = tf.SparseTensor(tf.stack([rows, 0 * rows], 1), ids, [BATCH, 1])
        return {"word": sparse, "name": tf.as_string(ids)}, labels

    return data.repeat().batch(BATCH, drop_remainder=True).map(features)


def evaluated(params: dict[str, Any]) -> Any:
    return shuffled(params).take(6)


def numbers(params: dict[str, Any]) -> Any:
    """Returns a few batches without strings, which stock does not accept on a TPU."""
    return evaluated(params).map(lambda features, labels: ({"word": features["word"]}, labels))


def column() -> Any:
    identity = tf.feature_column.categorical_column_with_identity("word", ROWS)
    start = tf.random_normal_initializer(seed=1)
    return tf.tpu.experimental.embedding_column(identity, 4, combiner="sum", initializer=start)


def model(
    words: Any,
    *,
    auc: Any = None,
    predicted: Any = None,
    names: Any = estimator,
    layer: float = 1.0,
    loss: float = 1.0,
) -> Any:
    """Returns a model_fn with an AUC, and predictions of strings and numbers.

    Args:
        auc: returns the metric; None is `tf.metrics.auc`.
        predicted: changes the predictions.
        names: the namespace of estimators.
        layer, loss: factors on the output of a layer, and on the loss.
    """

    def metric_fn(labels: Any, logits: Any) -> dict[str, Any]:
        return {
            "auc": (auc or tf.metrics.auc)(labels, tf.sigmoid(logits)),
            "mean": tf.metrics.mean(logits),
        }

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
        net = tf.keras.layers.DenseFeatures([words])(features)
        with tf.variable_scope("hidden"):
            net = tf.tanh(tf.layers.dense(net, 4) * layer)
        logits = tf.layers.dense(net, 1)
        if mode == "infer":
            predictions = {"p": tf.sigmoid(logits), "name": features.get("name", 2 * logits)}
            return names.tpu.TPUEstimatorSpec(
                mode, predictions=(predicted or (lambda same: same))(predictions)
            )
        labels = tf.reshape(tf.cast(labels, tf.float32), [-1, 1])
        mean = tf.losses.sigmoid_cross_entropy(labels, logits)
        mean = mean if loss == 1 else mean * loss
        if mode == "eval":
            values = {"labels": labels, "logits": logits}
            return names.tpu.TPUEstimatorSpec(mode, loss=mean, eval_metrics=(metric_fn, values))
        train_op = tf.train.AdamOptimizer(0.01).minimize(mean, tf.train.get_global_step())
        return names.tpu.TPUEstimatorSpec(mode, loss=mean, train_op=train_op)

    return model_fn


def verified(tmp_path: pathlib.Path, **changes: Any) -> Result:
    words = column()
    options: dict[str, Any] = {
        "batch_size": BATCH,
        "steps": 6,
        "a": "bridge-ops",
        "b": "bridge-ops",
        "eval_input_fn": evaluated,
        "predict_input_fn": evaluated,
        "directory": tmp_path / "recordings",
        **changes,
    }
    model_b, names = options.pop("model_b", None), options.pop("names", estimator)
    if model_b is not None:
        options["model_fn_b"] = model(words, **model_b)
    return estimator_bridge.verify(
        model(words, names=names),
        options.pop("input_fn", shuffled),
        estimator.tpu.experimental.EmbeddingConfigSpec(
            feature_columns=[words], optimization_parameters=parameters.AdagradParameters(0.1)
        ),
        config=names.tpu.RunConfig(
            model_dir=str(tmp_path / "unused"), checkpoint_save_graph_def=False
        ),
        **options,
    )


def unequal(result: Result) -> dict[str, str]:
    """Returns the differences after the training, with their reasons."""
    return {f"{one.kind} {one.name}": one.note for one in result.outcomes if not one.equal}


def test_data_without_a_seed_are_the_same_after_the_training(tmp_path: pathlib.Path) -> None:
    """Evaluations and predictions of shuffled data, strings included, are equal to the last bit."""
    result = verified(tmp_path)

    assert result.equal, str(result)
    assert "EQUAL to the bit" in str(result)
    names = {f"{one.kind} {one.name}" for one in result.outcomes}
    assert names >= {"evaluation-0 auc", "evaluation-0 loss", "prediction-0 p", "prediction-0 name"}


def other_auc(labels: Any, predictions: Any) -> Any:
    return tf.metrics.auc(labels, predictions, num_thresholds=7)


@pytest.mark.full
def test_faults_after_the_training_are_told_apart(tmp_path: pathlib.Path) -> None:
    """Another metric function or other predictions are found although all else is equal."""
    notes = unequal(verified(tmp_path / "1", model_b={"auc": other_auc}))
    assert notes.keys() == {"evaluation-0 auc"}
    assert "the metric functions differ" in notes["evaluation-0 auc"]

    def nudged(predictions: dict[str, Any]) -> dict[str, Any]:
        return {**predictions, "p": predictions["p"] * (1 + 2**-22)}

    result = verified(tmp_path / "2", model_b={"predicted": nudged})
    assert unequal(result).keys() == {"prediction-0 p"}, str(result)


@pytest.mark.full
def test_own_input_that_differs_is_said_before_any_metric(tmp_path: pathlib.Path) -> None:
    """If side B evaluates other data, that is reported as the first difference."""

    def seeded(params: dict[str, Any]) -> Any:
        return evaluated(params) if tf.get_default_graph() else None

    result = verified(tmp_path, own_input=True, eval_input_fn=seeded)
    assert not result.equal
    assert "the sides read different data, from batch 0 on" in str(result).splitlines()[2]
    first = next(one for one in result.outcomes if not one.equal)
    assert (first.kind, first.name) == ("evaluation-0", "data")


@pytest.mark.full
def test_labels_of_other_types_are_named(tmp_path: pathlib.Path) -> None:
    """Labels of int32 and int64 give the same numbers, and the types are the first difference.

    Labels of another shape cannot be reused; this is reported by name and is no error.
    """
    calls = []

    def typed(params: dict[str, Any]) -> Any:
        calls.append(len(calls))
        return shuffled(params, np.int32 if len(calls) == 1 else np.int64)

    fns = {"eval_input_fn": None, "predict_input_fn": None}
    result = verified(tmp_path / "1", input_fn=typed, **fns)
    message = "labels is int32 [8] on A, int64 [8] on B"
    assert message in str(result).splitlines()[2]
    assert [cause.name for cause in result.causes] == ["data types"]
    assert result.first is None

    def shaped(params: dict[str, Any]) -> Any:
        calls.append(len(calls))
        data = shuffled(params)
        if len(calls) % 2:
            return data.map(lambda features, labels: (features, labels[:, tf.newaxis]))
        return data

    del calls[:]
    result = verified(tmp_path / "2", eval_input_fn=shaped, predict_input_fn=None, steps=2)
    assert result.first is None
    first = next(one for one in result.outcomes if not one.equal)
    assert first.name == "data"
    assert "labels is int64 [8, 1] on A, int64 [8] on B" in first.note


@pytest.mark.full
@pytest.mark.parametrize("fault", ["loss", "layer"])
def test_the_first_op_that_differs_is_named(fault: str, tmp_path: pathlib.Path) -> None:
    """If activations agree and the loss does not, the first differing op is named with its line."""
    fns = {"eval_input_fn": None, "predict_input_fn": None, "steps": 3}
    result = verified(tmp_path, model_b={fault: 1.002}, **fns)
    (cause,) = result.causes
    assert cause.name == "model op"
    where = f"{pathlib.Path(__file__).name}, line "
    if fault == "layer":  # The op is on both sides, with another number.
        assert "The first op of the model whose output differs is hidden/" in cause.text, cause
    else:
        assert "On side B alone: " in cause.text, cause
    assert where in cause.text, cause


@pytest.mark.full
@pytest.mark.stock
@pytest.mark.parametrize("a", ["stock-tpu", "stock-cpu"])
def test_stock_and_the_bridge_evaluate_alike(a: str, tmp_path: pathlib.Path) -> None:
    """Metrics of stock, also on the software TPU, follow from their recorded inputs."""
    b = "bridge-ops" if a == "stock-tpu" else "bridge-cpu"
    fns = dict.fromkeys(("input_fn", "eval_input_fn", "predict_input_fn"), numbers)
    if a == "stock-tpu":  # There stock predicts with dense features alone.
        fns["predict_input_fn"] = None
    result = verified(tmp_path, a=a, b=b, names=tf.estimator, **fns)

    assert result.equal, str(result)
    why = {one.name: one.why for one in result.outcomes if one.kind == "evaluation-0"}
    known = {evaluation_metrics.FOLLOWS, evaluation_metrics.COMPUTED_FROM_EQUAL}
    assert {why["auc"], why["loss"]} <= known, why
