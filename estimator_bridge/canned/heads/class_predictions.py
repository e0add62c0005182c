"""The predictions of classifiers with one class for each example."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge.canned.heads import checks
from estimator_bridge.canned.heads.label_classes import LabelClasses
from estimator_bridge.canned.result_names import PredictionKeys
from tf2_engine.types import Object, Tensor

K = PredictionKeys
CLASS_KEYS = (K.PROBABILITIES, K.CLASS_IDS, K.CLASSES, K.ALL_CLASS_IDS, K.ALL_CLASSES)


def class_predictions(
    logits: Tensor,
    class_logits: Tensor,
    classes: LabelClasses,
    own: dict[str, Callable[[], Tensor]],
    keys: Sequence[str] | None,
) -> dict[Object, Tensor]:
    """Returns predictions by name.

    Args:
        logits: those of the model.
        class_logits: [..., classes], one for each class.
        own: the predictions that come before those of classes, as functions.
        keys: which of the predictions; None is all.
    """
    known = (*own, *CLASS_KEYS)
    checks.check_prediction_keys(keys or (), known)
    keys = keys or known
    found: dict[Object, Tensor] = {key: make() for key, make in own.items() if key in keys}
    if K.PROBABILITIES in keys:
        found[K.PROBABILITIES] = tf.nn.softmax(class_logits, name=K.PROBABILITIES)
    if K.CLASS_IDS in keys or K.CLASSES in keys:
        ids = tf.expand_dims(tf.argmax(class_logits, axis=-1, name=K.CLASS_IDS), axis=-1)
        if K.CLASS_IDS in keys:
            found[K.CLASS_IDS] = ids
        if K.CLASSES in keys:
            found[K.CLASSES] = classes.names_of(ids)
    if K.ALL_CLASS_IDS in keys:
        found[K.ALL_CLASS_IDS] = classes.all_ids(logits)
    if K.ALL_CLASSES in keys:
        found[K.ALL_CLASSES] = classes.all_names(logits)
    return found
