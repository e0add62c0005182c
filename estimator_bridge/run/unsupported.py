"""The names of stock's namespaces that the bridge does not support, and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping

_CANNED = (
    "canned estimators have no TPU embeddings, which is what the bridge is for. Write the model as "
    "a model_fn for `TPUEstimator` or `Estimator`, or use tf.keras"
)
_HEAD = "heads belong to canned estimators. Write loss, metrics and predictions in the model_fn"
_INPUTS = "it feeds batches through queues. Use tf.data.Dataset.from_tensor_slices"
_LOGITS = "it is a part of canned estimators. Write the layers in the model_fn"

_HEADS = (
    *("Head", "BinaryClassHead", "LogisticRegressionHead", "MultiClassHead", "MultiHead"),
    *("MultiLabelHead", "PoissonRegressionHead", "RegressionHead"),
)
_ESTIMATORS = (
    *(
        f"{family}{task}"
        for family in ("Baseline", "DNN", "DNNLinearCombined", "Linear")
        for task in ("Classifier", "Estimator", "Regressor")
    ),
    *(f"BoostedTrees{task}" for task in ("Classifier", "Estimator", "Regressor")),
)

ESTIMATOR: Mapping[str, str] = {
    **dict.fromkeys(_ESTIMATORS, _CANNED),
    **dict.fromkeys(_HEADS, _HEAD),
    "add_metrics": "it wraps a model_fn. Return the metrics from the model_fn",
}
_EXPERIMENTAL = {
    **dict.fromkeys(("KMeans", "LinearSDCA", "RNNClassifier", "RNNEstimator"), _CANNED),
    **dict.fromkeys(("call_logit_fn", "dnn_logit_fn_builder", "linear_logit_fn_builder"), _LOGITS),
}

REASONS: Mapping[str, Mapping[str, str]] = {
    "": ESTIMATOR,
    "experimental": _EXPERIMENTAL,
    "inputs": dict.fromkeys(("numpy_input_fn", "pandas_input_fn"), _INPUTS),
}
"""By namespace below `tf.estimator` and name, the reason and the way out, without a full stop."""

REASONS_OF_MODULES: Mapping[str, str] = {
    "canned": _CANNED,
    "head": _HEAD,
    "inputs": _INPUTS,
}
"""By path below `tensorflow_estimator.python.estimator`, why the module is not there."""

REASON_OF_OTHER_MODULES = (
    "the bridge takes the place of the whole package, with the modules that programs use. Import "
    "public names from tf.compat.v1.estimator"
)

REASONS_IN_MODULES: Mapping[str, str] = {
    "TPUEmbedding": "use tf2_engine.TPUEmbedding, or an `embedding_config_spec`",
}
"""By name in stock's private modules, what to use instead."""
