"""The names of stock's namespaces that the bridge does not support, and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping

_CANNED = (
    "canned estimators have no TPU embeddings, which is what the bridge is for. Write the model as "
    "a model_fn for `TPUEstimator` or `Estimator`, or use tf.keras"
)
_LOGITS = "it is a part of canned estimators. Write the layers in the model_fn"

_ESTIMATORS = (
    *(
        f"{family}{task}"
        for family in ("Baseline", "DNN", "DNNLinearCombined", "Linear")
        for task in ("Classifier", "Estimator", "Regressor")
    ),
    *(f"BoostedTrees{task}" for task in ("Classifier", "Estimator", "Regressor")),
)

ESTIMATOR: Mapping[str, str] = dict.fromkeys(_ESTIMATORS, _CANNED)
_EXPERIMENTAL = {
    **dict.fromkeys(("KMeans", "LinearSDCA", "RNNClassifier", "RNNEstimator"), _CANNED),
    **dict.fromkeys(("dnn_logit_fn_builder", "linear_logit_fn_builder"), _LOGITS),
}

REASONS: Mapping[str, Mapping[str, str]] = {
    "": ESTIMATOR,
    "experimental": _EXPERIMENTAL,
}
"""By namespace below `tf.estimator` and name, the reason and the way out, without a full stop."""
