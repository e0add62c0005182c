"""The predictions of classifiers, each computed only if it is asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge.canned.heads import head_checks
from estimator_bridge.canned.heads.head import Predictions
from estimator_bridge.canned.heads.label_classes import LabelClasses
from estimator_bridge.canned.result_names import PredictionKeys
from tf2_engine.types import Tensor

K = PredictionKeys
ALL_CLASSES = (K.ALL_CLASS_IDS, K.ALL_CLASSES)

Makers = Mapping[str, Callable[[], Tensor]]
"""Functions that compute predictions, by name."""


def predictions_of(
    makers: Makers, keys: Sequence[str] | None, first: Collection[str] = ()
) -> Predictions:
    """Computes the predictions with the given keys, or all; those in `first` come first.

    Raises:
        InvalidInput: there is no prediction with a key.
    """
    head_checks.check_prediction_keys(keys or (), makers)
    chosen = [key for key in makers if key in (keys or makers)]
    # The order of ops decides their names, which appear in export signatures.
    predictions = {key: makers[key]() for key in sorted(chosen, key=lambda key: key not in first)}
    return {key: predictions[key] for key in chosen}


def class_makers(logits: Tensor, class_logits: Tensor, classes: LabelClasses) -> Makers:
    """Makes the functions that predict one class for each example.

    Args:
        logits: the model's logits.
        class_logits: [..., classes], one for each class.
    """

    @functools.cache
    def ids() -> Tensor:
        return tf.expand_dims(tf.argmax(class_logits, axis=-1, name=K.CLASS_IDS), axis=-1)

    return {
        K.PROBABILITIES: lambda: tf.nn.softmax(class_logits, name=K.PROBABILITIES),
        K.CLASS_IDS: ids,
        K.CLASSES: lambda: classes.names_of(ids()),
        K.ALL_CLASS_IDS: lambda: classes.all_ids(logits),
        K.ALL_CLASSES: lambda: classes.all_names(logits),
    }
