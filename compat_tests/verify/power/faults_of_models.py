"""Faults in the model, in its input, and in what follows the training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from compat_tests.verify.power import seams
from compat_tests.verify.power.fault import Fault, Subject, of_engine, of_model, of_program
from estimator_bridge.verification.procedure import ComparisonOptions


def _half_trained(gradients: Any) -> Any:
    return [
        (tf.zeros_like(g) if variable.op.name == "logits/bias" else g, variable)
        for g, variable in gradients
    ]


def _without(feature: str, *modes: str) -> Callable[[Any, str], Any]:
    def seen(features: Any, mode: str) -> Any:
        if mode not in modes:
            return features
        return {**features, feature: tf.zeros_like(features[feature])}

    return seen


def _stopped(feature: str) -> Callable[[Any, str], Any]:
    return lambda features, mode: {**features, feature: tf.stop_gradient(features[feature])}


def _doubled_from(first: int) -> Callable[[Any, Any, Any], Any]:
    """Creates a change that doubles the loss from step `first` on (counted from 0)."""

    def loss(loss: Any, logits: Any, labels: Any) -> Any:
        return loss * tf.where(tf.train.get_or_create_global_step() >= first, 2.0, 1.0)

    return loss


MODEL = {
    "norm's momentum": of_model(
        "batch norm's momentum is .99, not .9; another variable has the value 2e9",
        Subject("optimizer", "extremes", "batch norm|model variable"),
        norm_momentum=0.99,
    ),
    "norm's epsilon": of_model(
        "batch norm's epsilon is .0011, not .001",
        Subject("optimizer", "users", "model|model op"),
        norm_epsilon=1.1e-3,
    ),
    "model's Adam": of_model(
        "the epsilon of the model's Adam is doubled",
        Subject("optimizer", "users", "model optimizer"),
        optimizer=lambda: tf.train.AdamOptimizer(0.003, epsilon=2e-6),
    ),
    "model's rate": of_model(
        "the learning rate of the model's Adam is 0.1 % too high",
        Subject("optimizer", "users", "model optimizer"),
        optimizer=lambda: tf.train.AdamOptimizer(0.003003, epsilon=1e-6),
    ),
    # Side B applies a gradient of zeros, which verify may report as lost.
    "bias": of_model(
        "the bias of the last layer is not trained",
        Subject("optimizer", "users", "model optimizer|lost gradient"),
        trained=_half_trained,
    ),
    "relu": of_model(
        "relu multiplies negative numbers by .001, not by 0",
        Subject("optimizer", "users", "model|model op"),
        activation=lambda net: tf.nn.leaky_relu(net, 1e-3),
    ),
    "loss": of_model(
        "the loss is multiplied by 1.0005",
        Subject("large batch", "users", "model|model op"),
        loss=lambda loss, logits, labels: 1.0005 * loss,
    ),
    "late loss": of_model(
        "the loss and its gradients are doubled from step 19 on",
        Subject("late steps", "users", "model|model op"),
        loss=_doubled_from(18),
    ),
    "loss of step 300": of_model(
        "the loss and its gradients are doubled in step 300, the last one",
        Subject("late steps", "long", "model|model op"),
        loss=_doubled_from(299),
    ),
    "zero gradient": of_model(
        "one feature has no gradient; another feature's gradient is about 1e5",
        Subject("one feature", "extremes", "lost gradient|gradient scale|no update"),
        seen=_stopped("seldom"),
    ),
    "dropout's seed": of_model(
        "dropout has a different seed",
        Subject("seeds", "users", "random numbers|model|model op"),
        dropout_seed=12,
    ),
    "dropout's rate": of_model(
        "dropout's rate is .101, not .1",
        Subject("seeds", "users", "random numbers|model|model op"),
        dropout=0.101,
    ),
    "order of data": Fault(
        "seeds",
        "side B reads its own input, whose batches come in another order",
        "users",
        frozenset({"data order", "data"}),
        change=lambda right: dataclasses.replace(right, reordered=True),
        options=ComparisonOptions(own_input=True),
    ),
}


def _one_sample(predictions: Any) -> Any:
    """Halves the prediction of sample 1100."""
    p = predictions["p"]
    size = p.shape.as_list()[0]
    number = seams.per_call(lambda call: call - 1) * size
    is_it = tf.equal(number + tf.range(size, dtype=tf.float32), 1100.0)
    return {**predictions, "p": tf.where(is_it[:, tf.newaxis], 0.5 * p, p)}


def _scaled(mode: str, factor: float) -> Callable[[Any, str], Any]:
    return lambda logits, seen: logits * factor if seen == mode else logits


def _count_twice(metrics: Any, labels: Any, p: Any) -> Any:
    return {**metrics, "mean": tf.metrics.mean(p, weights=1.0 + labels)}


OUTCOMES = {
    "AUC": of_model(
        "AUC has 100 thresholds, not 200",
        Subject("metrics", "evaluated", "metric function"),
        auc_thresholds=100,
    ),
    "accuracy": of_model(
        "accuracy's threshold is .51, not .5",
        Subject("metrics", "evaluated", "metric function"),
        accuracy_threshold=0.51,
    ),
    "weighted metric": of_model(
        "in a mean over samples, each sample has the weight 1 + label",
        Subject("metrics", "evaluated", "metric function"),
        metrics=_count_twice,
    ),
    "last batch": of_program(
        "the evaluation leaves out the last batch",
        Subject("metrics", "evaluated", "evaluation"),
        evaluated=2,
    ),
    "zero in evaluation": of_model(
        "one feature's activations are zero in evaluation",
        Subject("one feature", "evaluated", "evaluated model"),
        seen=_without("shown", "eval"),
    ),
    "norm in evaluation": of_model(
        "the model's logits are multiplied by 1.001 in evaluation",
        Subject("metrics", "evaluated", "evaluated model"),
        output=_scaled("eval", 1.001),
    ),
    "predictions": of_model(
        "predicted probabilities are multiplied by 1.0001",
        Subject("predictions", "predicted", "predictions"),
        predictions=lambda all: {**all, "p": 1.0001 * all["p"]},
    ),
    "sample 1100": of_model(
        "the prediction of sample 1100 is halved",
        Subject("predictions", "predicted", "predictions"),
        predictions=_one_sample,
    ),
    "classes": of_model(
        "predicted classes are counted from 1, not from 0",
        Subject("predictions", "predicted", "predictions"),
        predictions=lambda all: {**all, "class": all["class"] + 1},
    ),
    "served": of_model(
        "the exported model's logits are multiplied by 1.001",
        Subject("exports", "exported", "served model"),
        output=_scaled("infer", 1.001),
    ),
    "exported rows": of_engine(
        "one table's rows are rounded to bfloat16 in the export",
        Subject("exports", "exported", "export"),
        seams.exported(
            "users", lambda rows: rows.astype(tf.bfloat16.as_numpy_dtype).astype(np.float32)
        ),
    ),
}
