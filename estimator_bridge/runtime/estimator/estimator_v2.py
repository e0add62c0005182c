"""`EstimatorV2`: the Estimator of `tf.estimator` in TensorFlow 2."""

from __future__ import annotations

from typing import NoReturn

from estimator_bridge.runtime.estimator.base_estimator import Estimator


class EstimatorV2(Estimator):
    """An Estimator without `export_savedmodel`, the old name of `export_saved_model`."""

    @property
    def export_savedmodel(self) -> NoReturn:
        """Raises AttributeError, so that `hasattr` returns False."""
        raise AttributeError(
            "`tf.estimator.Estimator` of TensorFlow 2 has no `export_savedmodel`. Please use "
            "`export_saved_model`, or `tf.compat.v1.estimator.Estimator`."
        )
