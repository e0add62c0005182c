"""Stock's names that the bridge does not support, and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping

_BOOSTED = (
    "TensorFlow 2.15 has no boosted trees any more. Train them with TensorFlow Decision Forests"
)
_SDCA = (
    "the bridge does not have the parts of this optimizer. Give a linear estimator "
    "`optimizer=tf.estimator.experimental.LinearSDCA(...)`"
)
_TIMESERIES = (
    "the bridge has no time series. Write the model as a model_fn for `Estimator`, or in Keras"
)

ESTIMATOR: Mapping[str, str] = {
    f"BoostedTrees{task}": _BOOSTED for task in ("Classifier", "Estimator", "Regressor")
}

REASONS: Mapping[str, Mapping[str, str]] = {
    "": ESTIMATOR,
}
"""For each namespace below `tf.estimator`, maps names to the reason, without a full stop."""

REASONS_OF_MODULES: Mapping[str, str] = {
    "canned.boosted_trees": _BOOSTED,
    "canned.linear_optimizer": _SDCA,
    "canned.timeseries": _TIMESERIES,
}
"""Maps a module's path below `tensorflow_estimator.python.estimator` to why it is missing."""

REASON_OF_OTHER_MODULES = (
    "the bridge takes the place of the whole package, with the modules that programs use. Import "
    "public names from tf.compat.v1.estimator"
)

REASONS_IN_MODULES: Mapping[str, str] = {
    "TPUEmbedding": "use tf2_engine.TPUEmbedding, or an `embedding_config_spec`",
}
"""What to use instead of a name in stock's private modules."""
