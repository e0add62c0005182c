"""`tf2_engine.preprocessing` as a Keras layer, so that a model can take raw features."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tf2_engine.graph_mode import do_not_convert
from tf2_engine.keras.layer_settings import Arguments, PassiveLayer, plain
from tf2_engine.keras.weights import output_spec
from tf2_engine.preprocessing import Column
from tf2_engine.preprocessing import Preprocessing as PreprocessingModule
from tf2_engine.types import Ids, Nest, Object


class PreprocessingLayer(PassiveLayer):
    """Converts raw features to the ids that feature columns would compute.

        prepared = Preprocessing({"city": VocabularyList("city", ("Bern", "Rome"))})(inputs)
        activations = TPUEmbedding(feature_config)(prepared["ids"], prepared["weights"])

    The layer is for CPUs. For a TPU, compute ids in the input pipeline with
    `tf2_engine.preprocessing`.

    Args:
        columns: maps each feature of the engine to the column that computes the feature's ids.

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
        """Computes the ids of a batch.

        Args:
            features: a dict of Tensors, SparseTensors or RaggedTensors of strings and numbers.

        Returns:
            A dict of three dicts keyed by feature: "ids", SparseTensors of int64; "weights", of the
                features with weights; and "lengths", [batch] int64, of sequence features.

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
    """Tells Keras 3 the shapes and types of the layer's outputs, which are sparse."""

    _prepared: Callable[[Nest], Nest]

    def compute_output_spec(self, features: Nest) -> Nest:
        return output_spec(self._prepared, features)
