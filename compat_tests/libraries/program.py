"""Trains, evaluates and uses an estimator of a library: program.py LIBRARY MODEL_DIR."""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

v1 = tf.compat.v1
SGD = functools.partial(v1.train.GradientDescentOptimizer, 0.05)


class Job(NamedTuple):
    """An estimator, what it reads, the measure that training lowers, and what shows its use."""

    estimator: Any
    input_fn: Callable[[], Any]
    measure: str
    is_used: Callable[[], bool]


def batches(features: Any, labels: Any) -> Callable[[], tf.data.Dataset]:
    return lambda: tf.data.Dataset.from_tensors((features, labels)).repeat(1000)


POINTS = [[-2.0], [-1.0], [-0.6], [-0.2], [0.3], [0.7], [1.5], [2.5]]
SIDES = [[0]] * 4 + [[1]] * 4


def first_prediction(job_estimator: Any, input_fn: Callable[[], Any]) -> Any:
    return next(job_estimator.predict(input_fn))


def tensorflow_ranking(tfr: Any, model_dir: str) -> Job:
    """Returns a groupwise model that ranks lists of four, whose relevance grows with a feature."""
    rows = [[[0.1], [0.9], [0.4], [0.2]], [[0.8], [0.3], [0.5], [0.1]]]
    input_fn = batches({"x": rows}, [[0.0, 2.0, 1.0, 0.0], [2.0, 0.0, 1.0, 0.0]])

    def score_fn(context: Any, group: Any, mode: str, params: Any, config: Any) -> Any:
        x = tf.reshape(group["x"], [-1, 1])
        return v1.layers.dense(x, 1, kernel_initializer=tf.constant_initializer(-0.5))

    head = tfr.head.create_ranking_head(
        loss_fn=tfr.losses.make_loss_fn("pairwise_logistic_loss"),
        eval_metric_fns={"ndcg": tfr.metrics.make_ranking_metric_fn("ndcg")},
        train_op_fn=lambda loss: v1.train.AdagradOptimizer(0.5).minimize(
            loss, v1.train.get_global_step()
        ),
    )
    model_fn = tfr.model.make_groupwise_ranking_fn(
        group_score_fn=score_fn, group_size=1, transform_fn=None, ranking_head=head
    )
    estimator = tf.estimator.Estimator(model_fn, model_dir)
    return Job(
        estimator, input_fn, "loss", lambda: first_prediction(estimator, input_fn).argmax() == 1
    )


def neural_structured_learning(nsl: Any, model_dir: str) -> Job:
    input_fn = batches({"x": POINTS}, SIDES)
    columns = [tf.feature_column.numeric_column("x")]
    base = v1.estimator.LinearClassifier(columns, model_dir, optimizer=SGD)
    adversary = nsl.configs.make_adv_reg_config(multiplier=0.2, adv_step_size=0.1)
    estimator = nsl.estimator.add_adversarial_regularization(
        base, optimizer_fn=SGD, adv_config=adversary
    )
    return Job(
        estimator, input_fn, "loss", lambda: estimator.evaluate(input_fn, 1)["accuracy"] == 1
    )


def tensorflow_hub(hub: Any, model_dir: str) -> Job:
    """Returns a classifier over a module, which is exported and loaded again."""
    input_fn = batches({"x": POINTS}, SIDES)

    def module_fn() -> None:
        x = v1.placeholder(tf.float32, [None, 1])
        outputs = v1.layers.dense(x, 2, kernel_initializer=tf.constant_initializer([-0.5, 0.5]))
        hub.add_signature(inputs=x, outputs=outputs)

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        module = hub.Module(hub.create_module_spec(module_fn), trainable=True)
        hub.register_module_for_export(module, "halves")
        logits = v1.layers.dense(module(features["x"]), 1)
        if mode == tf.estimator.ModeKeys.PREDICT:
            return tf.estimator.EstimatorSpec(mode, predictions=logits)
        loss = v1.losses.sigmoid_cross_entropy(labels, logits)
        train_op = SGD().minimize(loss, v1.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def is_exported() -> bool:
        features = {"x": v1.placeholder_with_default(POINTS, [None, 1])}
        received = tf.estimator.export.build_raw_serving_input_receiver_fn(features)
        exporter = hub.LatestModuleExporter("hub", received)
        path = exporter.export(estimator, model_dir, estimator.latest_checkpoint())
        return hub.load_module_spec(f"{tf.compat.as_str(path)}/halves").get_output_info_dict() != {}

    estimator = tf.estimator.Estimator(model_fn, model_dir)
    return Job(estimator, input_fn, "loss", is_exported)


def deepctr(package: Any, model_dir: str) -> Job:
    """Returns DeepFM over a column of numbers and one of ids."""
    models = importlib.import_module("deepctr.estimator")
    input_fn = batches({"x": POINTS, "id": [0, 0, 1, 1, 2, 2, 3, 3]}, SIDES)
    ids = tf.feature_column.categorical_column_with_identity("id", 4)
    number = tf.feature_column.numeric_column("x")
    estimator = models.DeepFMEstimator(
        [ids, number],
        [tf.feature_column.embedding_column(ids, 2), number],
        dnn_hidden_units=(4,),
        model_dir=model_dir,
    )

    def are_in_order() -> bool:
        of_batch = itertools.islice(estimator.predict(input_fn), len(POINTS))
        first, *_, last = (each["pred"].item() for each in of_batch)
        return 0 < first < last < 1

    return Job(estimator, input_fn, "loss", are_in_order)


LIBRARIES = {
    each.__name__: each
    for each in (deepctr, neural_structured_learning, tensorflow_hub, tensorflow_ranking)
}


def main(library: str, model_dir: str) -> None:
    """Writes the measure before and after a training, and whether the library did its work."""
    pathlib.Path(model_dir).mkdir(parents=True)
    tf.keras.utils.set_random_seed(1)
    job = LIBRARIES[library](importlib.import_module(library), model_dir)
    measures = [
        float(job.estimator.train(job.input_fn, steps=steps).evaluate(job.input_fn, 1)[job.measure])
        for steps in (1, 500)
    ]
    result = {"measures": measures, "is_used": bool(job.is_used())}
    pathlib.Path(model_dir, "result.json").write_text(json.dumps(result))  # libraries print, too


if __name__ == "__main__":
    main(*sys.argv[1:])
