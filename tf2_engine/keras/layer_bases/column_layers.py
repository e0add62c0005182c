"""Layers that use columns: they compute ids, look up tables, and join a network's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import tensorflow as tf

from tf2_engine import errors, preprocessing
from tf2_engine.backends import SparseCoreDriver
from tf2_engine.graph_mode import do_not_convert
from tf2_engine.keras import columns as column_types
from tf2_engine.keras.columns import ByStep, ModelColumn, TableColumn, specs_of
from tf2_engine.keras.layer_settings import PassiveLayer, keras_of
from tf2_engine.keras.weights import output_spec
from tf2_engine.preprocessing.module import in_order
from tf2_engine.types import Ids, Nest, Object, SparseTensor, Tensor, Variable


class Observer(Protocol):
    """Lets `verify` observe and replace values while a step is traced.

    The values are the activations of the feature `key`, and the gradient that an optimizer applies
    to the variable that checkpoints call `name`.
    """

    def activation(self, key: str, value: Tensor) -> Tensor: ...

    def gradient(self, name: str, value: Object) -> Object: ...


_PREPARED = {"ids", "weights", "lengths", "features"}


class ColumnEmbeddingLayer(PassiveLayer):
    """Looks up the features of its columns, and replaces these features by activations.

        embedding = ColumnEmbedding([user, item], tf.tpu.experimental.embedding.Adagrad(0.1))
        features = embedding(features)  # features["user"] is [batch, dim] now

    A call computes ids with `prepare`, unless the features are prepared already. For a TPU, which
    does not accept strings, call `prepare` in `Dataset.map`.

    Args:
        batch_size: the global batch size, which only SparseCores need.
        optimizer, arithmetic, sparse_core_limits: passed to the `TPUEmbedding` that holds the
            tables.
        padding: the value that means "no id" in dense ids. Estimators with TPU embedding use 0.
            None keeps the columns' own settings.

    Attributes:
        columns: the columns, sorted by table name and then by feature key.
        step: the global step, which `ByStep` rates read.
    """

    _embedding_class: Object
    observer: Observer | None = None

    def __init__(
        self,
        columns: Mapping[str, TableColumn] | Sequence[TableColumn],
        optimizer: Object = None,
        name: str | None = None,
        *,
        batch_size: int | None = None,
        arithmetic: str | None = None,
        sparse_core_limits: Object = None,
        padding: int | None = None,
        **options: Object,
    ) -> None:
        of_tables = {"arithmetic": arithmetic, "sparse_core_limits": sparse_core_limits}
        own = {"batch_size": batch_size, "padding": padding}
        arguments = {"columns": columns, "optimizer": optimizer, **own, **of_tables}
        super().__init__(arguments, name, **options)
        self.columns = tuple(
            column_types.with_padding(each, padding) for each in column_types.features_of(columns)
        )
        self._preprocessing = preprocessing.Preprocessing(
            {each.key: each.ids for each in self.columns}
        )
        config = {each.key: each.feature_config for each in self.columns}
        self.step: Variable = tf.Variable(0, trainable=False, dtype=tf.int64, name="global_step")
        for each in (optimizer, *(column.table.optimizer for column in self.columns)):
            rate = getattr(each, "learning_rate", None)
            if isinstance(rate, ByStep):
                rate.step = self.step
        if SparseCoreDriver.claims(tf.distribute.get_strategy()):
            of_tables["batch_size"] = batch_size
        self.tables = self._embedding_class(config, optimizer, name="tables", **of_tables)
        self.built = True

    def save_own_variables(self, store: Object) -> None:
        """Writes only the global step to Keras's file. The layer `tables` writes the tables."""
        store["global_step"] = self.step.numpy()

    def load_own_variables(self, store: Object) -> None:
        self.step.assign(store["global_step"][()])

    def prepare(self, features: Mapping[str, Object]) -> dict[str, Nest]:
        """Converts raw features to ids, weights and lengths, and keeps the other features."""
        prepared_ids = self._preprocessing(features)
        if self.tables.on_sparse_cores:
            prepared_ids = in_order(prepared_ids)
        ids, weights, lengths = prepared_ids
        used = {key for each in self.columns for key, _ in specs_of(each)}
        return {
            "ids": ids,
            "weights": {key: each for key, each in (weights or {}).items() if each is not None},
            "lengths": lengths,
            "features": {key: each for key, each in features.items() if key not in used},
        }

    @do_not_convert
    def call(self, features: Mapping[str, Object]) -> dict[str, Object]:
        """Replaces the features of columns by activations, and keeps the other features.

        Args:
            features: raw features, or the result of `prepare`.

        Returns:
            For each column [batch, dim] float32, or for a sequence [batch, max_sequence_length,
                dim]. The lengths of sequences are in the feature `lengths_key(key)`.
        """
        prepared = features if set(features) == _PREPARED else self.prepare(features)
        activations = self.tables(prepared["ids"], prepared["weights"] or None)
        if self.observer is not None:
            see = self.observer.activation
            activations = {key: see(key, each) for key, each in activations.items()}
        lengths = {lengths_key(key): each for key, each in prepared["lengths"].items()}
        return {**prepared["features"], **activations, **lengths}


class FixedLayer(PassiveLayer):
    """Base class of layers whose variables do not depend on input shapes."""

    def get_build_config(self) -> dict[str, Object]:
        return {}

    def build_from_config(self, config: object) -> None:
        if not self.built:
            self.build(None)

    def build(self, shapes: object) -> None:
        self._make_variables()
        self.built = True

    def _make_variables(self) -> None:
        raise NotImplementedError


class ColumnsLayer(FixedLayer):
    """Base class of layers that read features through columns, which are sorted by name.

    `arguments` are the subclass's further arguments.
    """

    def __init__(
        self,
        columns: ModelColumn | Sequence[ModelColumn],
        name: str | None = None,
        arguments: Mapping[str, Object] | None = None,
        **options: Object,
    ) -> None:
        super().__init__({"columns": columns, **(arguments or {})}, name, **options)
        listed = columns if isinstance(columns, Sequence) else [columns]
        self._columns: tuple[Object, ...] = tuple(sorted(listed, key=column_types.column_name))
        ids = {column_types.column_name(each): ids_of(each) for each in self._columns}
        self._preprocessing = preprocessing.Preprocessing(
            {name: each for name, each in ids.items() if each is not None}
        )
        self._variables: dict[str, Object] = {}


class EmbeddingColumnsLayer(ColumnsLayer):
    """Base class of layers whose columns can be `PlainEmbedding`s."""

    def _make_variables(self) -> None:
        for each in self._columns:
            if isinstance(each, column_types.PlainEmbedding):
                initializers = keras_of(self).initializers
                default = initializers.TruncatedNormal(stddev=each.dimension**-0.5)
                self._variables[each.name] = self.add_weight(  # type: ignore[attr-defined]
                    name=f"{column_types.scope_name(each)}_weights",
                    shape=(column_types.num_buckets(each.ids), each.dimension),
                    initializer=each.initializer or default,
                )

    def _looked_up(
        self, column: column_types.PlainEmbedding, ids: Object, weights: Object
    ) -> Tensor:
        table = tf.convert_to_tensor(self._variables[column.name])
        return tf.nn.safe_embedding_lookup_sparse(table, ids, weights, column.combiner)


class DenseFeaturesLayer(EmbeddingColumnsLayer):
    """Concatenates columns in the order of their names, like `tf.keras.layers.DenseFeatures`.

    For features with tables, the inputs are activations from a `ColumnEmbedding`; for all others,
    they are raw features.
    """

    @do_not_convert
    def call(self, features: Mapping[str, Object]) -> Tensor:
        """Returns [batch, sum of widths] float32."""
        ids, weights, _ = self._preprocessing(features)
        parts = [self._part(each, features, ids, weights or {}) for each in self._columns]
        return parts[0] if len(parts) == 1 else tf.concat(parts, -1)

    def _part(
        self,
        column: ModelColumn,
        features: Mapping[str, Object],
        ids: Mapping[str, Object],
        weights: Mapping[str, Object],
    ) -> Tensor:
        if isinstance(column, TableColumn):
            return features[column.key]
        if isinstance(column, column_types.Numeric):
            return numbers_of(column, features)
        name, categorical = column_types.column_name(column), ids_of(column)
        assert categorical is not None
        if isinstance(column, column_types.PlainEmbedding):
            width, part = column.dimension, self._looked_up(column, ids[name], weights.get(name))
        else:
            width = column_types.num_buckets(categorical)
            part = counts_of(ids[name], weights.get(name), width)
        # This also accepts [batch, 1, ids], but not several sets of ids per example.
        return tf.reshape(part, [tf.shape(part)[0], width])


def lengths_key(key: str) -> str:
    return f"{key}/lengths"


def ids_of(column: ModelColumn) -> preprocessing.Column | None:
    if isinstance(column, preprocessing.Column):
        return column
    if isinstance(column, (column_types.Indicator, column_types.PlainEmbedding)):
        return column.ids
    return None


def counts_of(ids: SparseTensor, weights: SparseTensor | None, depth: int) -> Tensor:
    """Counts each id, or sums its weights, over the last dimension: [..., depth] float32.

    Ids of `depth` or more are dropped. `weights` are in the order of the ids.
    """
    values = tf.ones_like(ids.values, tf.float32) if weights is None else weights.values
    present = ids.values < depth
    at = tf.concat([ids.indices[:, :-1], ids.values[:, tf.newaxis]], 1)[present]
    shape = tf.concat([ids.dense_shape[:-1], [depth]], 0)
    counts = tf.scatter_nd(at, values[present], shape)
    return tf.ensure_shape(counts, [*ids.shape[:-1], depth])


def numbers_of(column: column_types.Numeric, features: Mapping[str, Object]) -> Tensor:
    values = tf.convert_to_tensor(features[column.key])
    if column.normalizer_fn is not None:
        values = column.normalizer_fn(values)
    width = values.shape[1:].num_elements()
    if width is None:
        raise errors.InvalidInput(
            f"Numeric feature {column.key!r}: only its first dimension may be unknown, but its "
            f"shape is {values.shape}. Set the shape in the dataset, for instance with "
            "tf.ensure_shape."
        )
    return tf.reshape(tf.cast(values, tf.float32), [tf.shape(values)[0], width])


class PreprocessingLayer(PassiveLayer):
    """Converts raw features to the ids that feature columns would compute.

        prepared = Preprocessing({"city": VocabularyList("city", ("Bern", "Rome"))})(inputs)
        activations = TPUEmbedding(feature_config)(prepared["ids"], prepared["weights"])

    For a TPU, compute ids in the input pipeline with `tf2_engine.preprocessing`.

    Args:
        columns: maps each feature of the engine to the column that computes the feature's ids.
    """

    def __init__(
        self,
        columns: Mapping[str, preprocessing.Column],
        name: str | None = None,
        **options: Object,
    ):
        super().__init__({"columns": columns}, name, **options)
        self._module = preprocessing.Preprocessing(columns)
        self.built = True

    @do_not_convert
    def call(self, features: Mapping[str, Ids]) -> dict[str, Nest]:
        """Computes the ids of a batch.

        Args:
            features: a dict of Tensors, SparseTensors or RaggedTensors, of strings or numbers.

        Returns:
            Three dicts, each keyed by feature: "ids", int64 SparseTensors; "weights", if any
                feature has weights; and "lengths", [batch] int64, for sequence features.
        """
        ids, weights, lengths = self._module(features)
        weights = {key: value for key, value in (weights or {}).items() if value is not None}
        return {"ids": ids, "weights": weights, "lengths": lengths}

    def compute_output_spec(self, features: Nest) -> Nest:
        """Tells Keras 3 the shapes and types of the layer's outputs, which are sparse."""
        return output_spec(self.call, features)


class NoEngine(tf.Module):
    """An engine without tables. Its methods do nothing."""

    @property
    def tables(self) -> Mapping[str, Object]:
        return {}

    def load(self) -> None: ...

    def retrieve(self) -> None: ...


class _NoLayer(NamedTuple):
    embedding: NoEngine
    trainable_variables: tuple[()] = ()


class NoTables(tf.Module):
    """Replaces the `ColumnEmbedding` in a model without tables, and counts the steps."""

    columns: tuple[()] = ()
    weights: tuple[()] = ()
    observer: Observer | None = None

    def __init__(self) -> None:
        super().__init__()
        self.step: Variable = tf.Variable(0, trainable=False, dtype=tf.int64, name="global_step")
        self.tables = _NoLayer(NoEngine())
