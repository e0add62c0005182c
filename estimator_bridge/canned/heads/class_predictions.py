"""The predictions of classifiers with one class for each example."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge.canned.heads import head_checks
from estimator_bridge.canned.heads.label_classes import LabelClasses
from estimator_bridge.canned.result_names import PredictionKeys
from tf2_engine.types import Object, Tensor

K = PredictionKeys
CLASS_KEYS = (K.PROBABILITIES, K.CLASS_IDS, K.CLASSES, K.ALL_CLASS_IDS, K.ALL_CLASSES)


def class_predictions(
    logits: Tensor,
    class_logits: Tensor,
    classes: LabelClasses,
    before_classes: dict[str, Callable[[], Tensor]],
    keys: Sequence[str] | None,
    all_classes_first: bool = False,
) -> dict[Object, Tensor]:
    """Returns predictions by name.

    Args:
        logits: those of the model.
        class_logits: [..., classes], one for each class.
        before_classes: the predictions that come before those of classes, as functions.
        keys: which of the predictions; None is all.
        all_classes_first: makes the ops of the predictions that list all classes first.
    """
    known = (*before_classes, *CLASS_KEYS)
    head_checks.check_prediction_keys(keys or (), known)
    keys = keys or known
    all_classes = {K.ALL_CLASS_IDS: classes.all_ids, K.ALL_CLASSES: classes.all_names}
    parts = [
        lambda: {key: make() for key, make in before_classes.items() if key in keys},
        lambda: _of_classes(class_logits, classes, keys),
        lambda: {key: make(logits) for key, make in all_classes.items() if key in keys},
    ]
    # The order in which ops are made decides their names, which signatures of exports have.
    predictions: dict[Object, Tensor] = {}
    for part in reversed(parts) if all_classes_first else parts:
        predictions |= part()
    return {key: predictions[key] for key in known if key in predictions}


def _of_classes(
    class_logits: Tensor, classes: LabelClasses, keys: Sequence[str]
) -> dict[Object, Tensor]:
    """Returns the probabilities of all classes, and the most probable one."""
    predictions: dict[Object, Tensor] = {}
    if K.PROBABILITIES in keys:
        predictions[K.PROBABILITIES] = tf.nn.softmax(class_logits, name=K.PROBABILITIES)
    if K.CLASS_IDS in keys or K.CLASSES in keys:
        ids = tf.expand_dims(tf.argmax(class_logits, axis=-1, name=K.CLASS_IDS), axis=-1)
        if K.CLASS_IDS in keys:
            predictions[K.CLASS_IDS] = ids
        if K.CLASSES in keys:
            predictions[K.CLASSES] = classes.names_of(ids)
    return predictions
