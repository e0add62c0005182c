"""`tf2_engine.preprocessing` as a Keras layer, so that raw features go into a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tf2_engine.graph_mode import do_not_convert
from tf2_engine.keras.layer_settings import Arguments, PassiveLayer, plain
from tf2_engine.keras.weights import output_spec
from tf2_engine.preprocessing import Column
from tf2_engine.preprocessing import Preprocessing as PreprocessingModule
from tf2_engine.types import Ids, Nest, Object


class PreprocessingLayer(PassiveLayer):
    """Turns raw features into the ids that feature columns make of them.

        prepared = Preprocessing({"city": VocabularyList("city", ("Bern", "Rome"))})(inputs)
        activations = TPUEmbedding(feature_config)(prepared["ids"], prepared["weights"])

    It is for CPUs: on a TPU ids are made in the input pipeline, by `tf2_engine.preprocessing`.

    Args:
        columns: by feature of the engine, the column of its ids.
        name: the name of the layer.

    Raises:
        WrongType: a value of `columns` is not a Column.
    """

    def __init__(self, columns: Mapping[str, Column], name: str | None = None, **options: Object):
        super().__init__(name=name, **options)
        columns = plain(columns)
        self._arguments = Arguments({"columns": columns})
        self._module = PreprocessingModule(columns)
        self.built = True

    def call(self, features: Mapping[str, Ids]) -> dict[str, Nest]:
        """Returns the ids of a batch.

        Args:
            features: by key, Tensors, SparseTensors or RaggedTensors of strings and numbers.

        Returns:
            "ids" by feature, SparseTensors of int64; "weights" of the features that have any; and
            "lengths" of the sequence features, [batch] int64.

        Raises:
            InvalidInput, WrongType: a feature is missing or does not fit its column.
        """
        return self._prepared(features)

    @do_not_convert  # not around `call`, whose signature Keras reads
    def _prepared(self, features: Mapping[str, Ids]) -> dict[str, Nest]:
        ids, weights, lengths = self._module(features)
        weights = {key: value for key, value in (weights or {}).items() if value is not None}
        return {"ids": ids, "weights": weights, "lengths": lengths}


class Keras3Outputs:
    """Tells Keras 3 the outputs of the layer, which are sparse."""

    _prepared: Callable[[Nest], Nest]

    def compute_output_spec(self, features: Nest) -> Nest:
        """Returns placeholders of the outputs for Keras's placeholders of the features."""
        return output_spec(self._prepared, features)
