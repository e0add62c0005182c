"""The tables of a trainer for programs without a legacy spec."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Mapping

import tensorflow as tf

from tf2_engine import preprocessing, specs
from tf2_engine.types import Nest, Object, TensorLike


@dataclasses.dataclass(frozen=True)
class Embedding:
    """Tables and features, for the `embedding_config_spec` of a `Trainer`.

        training.Embedding({"word": tf.tpu.experimental.embedding.FeatureConfig(table)})

    Attributes:
        feature_config: a FeatureConfig per feature. Every table must have an optimizer.
        preprocessing_of_ids: converts features to ids, weights and lengths. By default the features
            are ids without weights.
        gradient_multiplier: a function without arguments that returns a factor for the gradients of
            all activations.

    Raises:
        InvalidSpec, WrongType: as in `tf2_engine.TPUEmbedding`, when a trainer uses this object.
    """

    feature_config: Mapping[str, Object]
    preprocessing_of_ids: preprocessing.Preprocessing = None  # type: ignore[assignment]
    gradient_multiplier: Callable[[], TensorLike] | None = None

    def __post_init__(self) -> None:
        if self.preprocessing_of_ids is None:
            of_columns = preprocessing.Preprocessing(dict(self._columns()))
            object.__setattr__(self, "preprocessing_of_ids", of_columns)

    @functools.cached_property
    def engine_spec(self) -> specs.EngineSpec:
        return specs.from_feature_config(dict(self.feature_config))

    def to_tf2(self, step: Object = None) -> Embedding:
        """Returns this object, for code that would translate a legacy spec."""
        return self

    def _columns(self) -> list[tuple[str, preprocessing.Column]]:
        columns: list[tuple[str, preprocessing.Column]] = []
        for key, feature in self.feature_config.items():
            ids: preprocessing.Column = preprocessing.Identity(key, feature.table.vocabulary_size)
            columns.append(
                (key, preprocessing.Sequence(ids) if feature.max_sequence_length else ids)
            )
        return columns


class WithoutTables(tf.Module):
    """Stands in for the `Embedding` and the engine in a model without tables.

    Its methods do nothing, because there are no tables.
    """

    engine_spec: Object = types.SimpleNamespace(tables=(), features=(), structure={})
    gradient_multiplier = None
    tables: Mapping[str, Object] = types.MappingProxyType({})
    embedding_tables = tables

    def __init__(self) -> None:
        super().__init__()
        self.preprocessing_of_ids = preprocessing.Preprocessing({})

    def to_tf2(self, step: Object = None) -> WithoutTables:
        return self

    def differentiable_lookup(
        self, *batch: Nest, **options: Object
    ) -> tuple[dict[str, Object], Callable[[Nest], None]]:
        """There are no tables: returns an empty dict, and an update function that does nothing."""
        return {}, lambda gradients: None

    def load(self) -> None:
        """There is nothing to load."""

    def retrieve(self) -> None:
        """There is nothing to retrieve."""

    def observe(self, observer: Object) -> None:
        """There are no lookups to observe."""
