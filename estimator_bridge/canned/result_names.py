"""Defines the names of predictions and metrics."""

from __future__ import annotations

from typing import Final


class PredictionKeys:
    """The keys of a head's predictions."""

    LOGITS: Final = "logits"
    LOGISTIC: Final = "logistic"
    PROBABILITIES: Final = "probabilities"
    CLASS_IDS: Final = "class_ids"
    CLASSES: Final = "classes"
    ALL_CLASS_IDS: Final = "all_class_ids"
    ALL_CLASSES: Final = "all_classes"
    PREDICTIONS: Final = "predictions"
    TOP_K: Final = "top_k"


PROBABILITY_MEAN: Final = "probability_mean"
"""The name of a metric that exists for single classes, but not for all classes together."""

AT_THRESHOLD: Final = "{}/positive_threshold_{:g}"
OF_CLASS: Final = "{}/{}"
"""The format of metric names for a threshold or a class."""


class MetricKeys:
    """The names of a head's metrics; %g stands for a threshold, %d and %s for a class."""

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
    ACCURACY_AT_THRESHOLD: Final = "accuracy/positive_threshold_%g"
    PRECISION_AT_THRESHOLD: Final = "precision/positive_threshold_%g"
    RECALL_AT_THRESHOLD: Final = "recall/positive_threshold_%g"
    PRECISION_AT_RECALL: Final = "precision_at_recall_%g"
    RECALL_AT_PRECISION: Final = "recall_at_precision_%g"
    SENSITIVITY_AT_SPECIFICITY: Final = "sensitivity_at_specificity_%g"
    SPECIFICITY_AT_SENSITIVITY: Final = "specificity_at_sensitivity_%g"
    PROBABILITY_MEAN_AT_CLASS: Final = "probability_mean/class%d"
    AUC_AT_CLASS: Final = "auc/class%d"
    AUC_PR_AT_CLASS: Final = "auc_precision_recall/class%d"
    PROBABILITY_MEAN_AT_NAME: Final = "probability_mean/%s"
    AUC_AT_NAME: Final = "auc/%s"
    AUC_PR_AT_NAME: Final = "auc_precision_recall/%s"
