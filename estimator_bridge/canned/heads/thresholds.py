"""Metrics of probabilities at thresholds."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from estimator_bridge import errors
from estimator_bridge.canned.heads.head import Metrics
from estimator_bridge.canned.result_names import AT_THRESHOLD, MetricKeys
from tf2_engine import tf_compat
from tf2_engine.types import Object

keras = tf_compat.keras2()


def checked_thresholds(thresholds: Iterable[float] | None) -> tuple[float, ...]:
    """Checks that thresholds are between 0 and 1."""
    checked = tuple(thresholds or ())
    for threshold in checked:
        if threshold <= 0.0 or threshold >= 1.0:
            raise errors.InvalidInput(
                f"thresholds not in (0, 1): {checked}. thresholds must be in (0, 1) range. Given: "
                f"{threshold}."
            )
    return checked


def threshold_keys(*thresholds: float) -> list[str]:
    """Names accuracy, precision and recall at each threshold."""
    keys = (MetricKeys.ACCURACY, MetricKeys.PRECISION, MetricKeys.RECALL)
    return [AT_THRESHOLD.format(key, each) for each in thresholds for key in keys]


def metrics_at(thresholds: Iterable[float], name_of: Callable[[str], str]) -> Metrics:
    """Makes accuracy, precision and recall at each threshold; `name_of` names each metric."""
    metrics: dict[str, Object] = {}
    for threshold in thresholds:
        accuracy, precision, recall = keys = threshold_keys(threshold)
        names = [name_of(key) for key in keys]
        metrics[accuracy] = keras.metrics.BinaryAccuracy(name=names[0], threshold=threshold)
        metrics[precision] = keras.metrics.Precision(name=names[1], thresholds=threshold)
        metrics[recall] = keras.metrics.Recall(name=names[2], thresholds=threshold)
    return metrics
