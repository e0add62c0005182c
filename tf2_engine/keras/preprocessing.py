"""`tf2_engine.preprocessing` as a Keras layer, so that raw features go into a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf2_engine.autograph import as_written
from tf2_engine.keras.weights import as_spec
from tf2_engine.preprocessing import Column
from tf2_engine.preprocessing import Preprocessing as Module


class PreprocessingLayer:
    """Makes ids of raw features, the same as feature columns make.

        prepared = Preprocessing({"city": VocabularyList("city", ("Bern", "Rome"))})(inputs)
        activations = TPUEmbedding(feature_config)(prepared["ids"], prepared["weights"])

    It is for CPUs: on a TPU ids are made in the input pipeline, by `tf2_engine.preprocessing`.

    Args:
        columns: by feature of the engine, how its ids are made.
        name: the layer's.

    Raises:
        WrongType: something is no column.
    """

    def __init__(self, columns: Mapping[str, Column], name: str | None = None, **options: Any):
        # Strings and integers are no floats.
        super().__init__(name=name, dtype="float32", autocast=False, **options)  # type: ignore[call-arg]
        self._module = Module(columns)
        self.built = True
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.supports_jit = False

    def call(self, features: Any) -> dict[str, dict[str, Any]]:
        """Makes the ids of a batch.

        Args:
            features: by key, Tensors, SparseTensors or RaggedTensors of strings and numbers.

        Returns:
            "ids" by feature, SparseTensors of int64; "weights", of the features that have any; and
            "lengths" of the sequence features, [batch] int64.

        Raises:
            InvalidInput, WrongType: a feature is missing or does not fit its column.
        """
        return self._prepared(features)

    @as_written  # not around `call`, whose signature Keras reads
    def _prepared(self, features: Any) -> dict[str, dict[str, Any]]:
        ids, weights, lengths = self._module(features)
        given = {key: each for key, each in (weights or {}).items() if each is not None}
        return {"ids": ids, "weights": given, "lengths": lengths}

    def get_config(self) -> dict[str, Any]:
        """Returns what `from_config` makes the same layer of: columns as they are, not as JSON."""
        base = super().get_config()  # type: ignore[misc]
        return {"columns": self._module.columns, "name": base["name"]}


class Keras3Outputs:
    """Tells Keras 3 what the layer returns, which is sparse."""

    _prepared: Any

    def compute_output_spec(self, features: Any) -> Any:
        """Returns what Keras's placeholders of the features lead to."""
        specs = tf.nest.map_structure(as_spec, features)
        traced = tf.function(self._prepared, autograph=False).get_concrete_function(specs)
        kind = type(tf.nest.flatten(features)[0])
        return tf.nest.map_structure(
            lambda found: kind(
                found.shape.as_list(),
                dtype=found.dtype.name,
                sparse=isinstance(found, tf.SparseTensor),
            ),
            traced.structured_outputs,
        )
