"""A model that ignores its features: a bias."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from tf2_engine.graph_mode import do_not_convert
from tf2_engine.keras.layer_bases.column_layers import FixedLayer
from tf2_engine.keras.layer_settings import Arguments
from tf2_engine.types import Object, Tensor


class BaselineLayer(FixedLayer):
    """Returns the same logits for each example: a bias that starts at zero.

    A classifier thus learns how frequent the classes are, and a regressor the mean of the labels.

        Baseline(name="baseline")(features)  # [batch, 1] float32
    """

    def __init__(self, units: int = 1, name: str | None = None, **options: Object) -> None:
        super().__init__(name=name, **options)
        self._arguments = Arguments({"units": units})
        self._units = units
        self._bias: Object = None

    def _make_variables(self) -> None:
        self._bias = self.add_weight(  # type: ignore[attr-defined]
            name="bias", shape=(self._units,), initializer="zeros"
        )

    def call(self, features: Mapping[str, Object]) -> Tensor:
        """Returns [batch, units] float32. The first feature tells the number of examples."""
        return self._repeated(features)

    @do_not_convert
    def _repeated(self, features: Mapping[str, Object]) -> Tensor:
        size = tf.shape(next(iter(features.values())), tf.int32)[0]
        return tf.convert_to_tensor(self._bias) * tf.ones([size, self._units])
