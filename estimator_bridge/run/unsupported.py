"""Names of stock's namespaces that are not here on purpose, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from estimator_bridge import errors

_CANNED = (
    "canned estimators have no TPU embeddings, which is what the bridge is for. Write the model as "
    "a model_fn for `TPUEstimator` or `Estimator`, or use tf.keras"
)
_HEAD = "heads belong to canned estimators. Write loss, metrics and predictions in the model_fn"
_INPUTS = "it feeds batches through queues. Use tf.data.Dataset.from_tensor_slices"
_LOGITS = "it is a part of canned estimators. Write the layers in the model_fn"

_HEADS = (
    "Head",
    *(
        f"{kind}Head"
        for kind in (
            "BinaryClass",
            "LogisticRegression",
            "Multi",
            "MultiClass",
            "MultiLabel",
            "PoissonRegression",
            "Regression",
        )
    ),
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
EXPERIMENTAL: Mapping[str, str] = {
    **dict.fromkeys(("KMeans", "LinearSDCA", "RNNClassifier", "RNNEstimator"), _CANNED),
    **dict.fromkeys(("call_logit_fn", "dnn_logit_fn_builder", "linear_logit_fn_builder"), _LOGITS),
}
INPUTS: Mapping[str, str] = dict.fromkeys(("numpy_input_fn", "pandas_input_fn"), _INPUTS)
"""For each name of a namespace why it is left out, and the way out; no full stop."""


def refuse(namespace: str, left_out: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a module that leaves names out.

    Args:
        namespace: what programs call the module.
        left_out: one of the mappings of this module.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807 - it becomes the module's
        if name in left_out:
            raise errors.LeftOut(f"`{namespace}.{name}` is left out: {left_out[name]}.")
        raise AttributeError(f"`{namespace}` has no attribute {name!r}.")

    return __getattr__
