"""The names of stock's namespaces that the bridge does not support, and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping

_BOOSTED = (
    "TensorFlow 2.15 has no boosted trees any more. Train them with TensorFlow Decision Forests"
)
_CANNED = (
    "this estimator of stock was not written anew yet. Write the model as a model_fn for "
    "`Estimator`, or use tf.keras"
)

ESTIMATOR: Mapping[str, str] = {
    f"BoostedTrees{task}": _BOOSTED for task in ("Classifier", "Estimator", "Regressor")
}
_EXPERIMENTAL = dict.fromkeys(("KMeans", "LinearSDCA", "RNNClassifier", "RNNEstimator"), _CANNED)

REASONS: Mapping[str, Mapping[str, str]] = {
    "": ESTIMATOR,
    "experimental": _EXPERIMENTAL,
}
"""By namespace below `tf.estimator` and name, the reason and the way out, without a full stop."""
