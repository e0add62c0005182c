"""The names under which heads return predictions and metrics."""

from __future__ import annotations

from typing import Final


class PredictionKeys:
    """Keys of the predictions of a head."""

    LOGITS: Final = "logits"
    LOGISTIC: Final = "logistic"
    PROBABILITIES: Final = "probabilities"
    CLASS_IDS: Final = "class_ids"
    CLASSES: Final = "classes"
    ALL_CLASS_IDS: Final = "all_class_ids"
    ALL_CLASSES: Final = "all_classes"
    PREDICTIONS: Final = "predictions"


class MetricKeys:
    """Names of the metrics of a head; those with a placeholder belong to a threshold or class."""

    LOSS: Final = "loss"
    LOSS_MEAN: Final = "average_loss"
    LOSS_REGULARIZATION: Final = "regularization_loss"
    ACCURACY: Final = "accuracy"
    PRECISION: Final = "precision"
    RECALL: Final = "recall"
    ACCURACY_BASELINE: Final = "accuracy_baseline"
    AUC: Final = "auc"
    AUC_PR: Final = "auc_precision_recall"
    LABEL_MEAN: Final = "label/mean"
    PREDICTION_MEAN: Final = "prediction/mean"
    AT_THRESHOLD: Final = "{}/positive_threshold_{:g}"
    PROBABILITY_MEAN: Final = "probability_mean"
    OF_CLASS: Final = "{}/{}"
