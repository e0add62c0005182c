"""The embedding layer. The forward pass looks up tables, and the backward pass updates them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow as tf

from tf2_engine import errors, log, soft_tpu, specs, structure, tf_compat
from tf2_engine.backends.ps import is_server_strategy
from tf2_engine.backends.sparsecore.driver import (
    SPARSECORE,
    SparseCoreDriver,
    accumulating,
    check_limits,
    driver_for_sparsecore,
)
from tf2_engine.backends.tpu import topology
from tf2_engine.checkpoint import exported_variables
from tf2_engine.embedding import TPUEmbedding
from tf2_engine.graph_mode import do_not_convert
from tf2_engine.keras.keras_optimizers import Configuration, configure
from tf2_engine.keras.layer_settings import PassiveLayer, keras_of
from tf2_engine.keras.weights import KerasTables, LayerVariables, MakeVariable
from tf2_engine.optimizers.optimizer import optimization_barrier
from tf2_engine.packed import PackedBatch, pack, unpacked
from tf2_engine.plan import Plan
from tf2_engine.serving import cpu_embedding_lookup, small_table, small_variable
from tf2_engine.sparsecore_limits import SparseCoreLimits
from tf2_engine.tables import PARAMETERS, whole
from tf2_engine.types import Nest, Object, Op, SparseTensor, Tensor, Variable

ApplyGradients = Callable[[Nest], Op]
"""Updates the tables with the gradients of one lookup's activations."""


class EmbeddingLayer(PassiveLayer):
    """A Keras layer with embedding tables, for TPUs and other devices.

        layer = TPUEmbedding(feature_config, tf.keras.optimizers.Adagrad(0.1))
        activations = layer(features)

    With "tpu" and "sparsecore" arithmetic, an engine holds the tables, and the layer has a virtual
    variable. Computing the gradient of this variable, which is always zero, updates the tables once
    per call of the layer. With "keras" arithmetic, the tables are trainable variables.

    Args:
        feature_config: any nest of `tf.tpu.experimental.embedding.FeatureConfig`.
        optimizer: trains the tables that have no optimizer of their own. It is a name, as in
            `keras.optimizers.get`, a Keras optimizer, or an optimizer of the engine or of
            `tf.tpu.experimental.embedding`. Unless every table has an optimizer, no table is
            trained or has slots. A TPU requires optimizers.
        pipeline_execution_with_tensor_core: whether to look a batch up before the previous step's
            update. If Keras optimizers train the tables, the setting is ignored with a warning.
        batch_size: the global batch size; by default the size of the input.
        arithmetic: without a TPU, train like TPUs before v5p ("tpu"), like TPU v5p, v6e and TPU7x
            ("sparsecore"), or like Keras ("keras"). The default is "keras" if all tables have
            Keras optimizers, and otherwise "tpu".
        sparse_core_limits: see `tf2_engine.SparseCoreLimits`. They have no effect on a host.
        bias_correction: see `translate_keras_optimizer`.
    """

    _make_variable: MakeVariable
    _distinct_rows: bool

    def __init__(
        self,
        feature_config: Nest,
        optimizer: Object = None,
        pipeline_execution_with_tensor_core: bool = False,
        batch_size: int | None = None,
        *,
        arithmetic: str | None = None,
        sparse_core_limits: Object = None,
        bias_correction: bool = True,
        trainable: bool = True,
        name: str | None = None,
        **options: Object,
    ) -> None:
        check_limits(arithmetic, sparse_core_limits)
        if sparse_core_limits is not None:
            sparse_core_limits = SparseCoreLimits.of(sparse_core_limits)
        arguments = {
            "feature_config": feature_config,
            "optimizer": optimizer,
            "pipeline_execution_with_tensor_core": pipeline_execution_with_tensor_core,
            "batch_size": batch_size,
            "arithmetic": arithmetic,
            "sparse_core_limits": sparse_core_limits,
            "bias_correction": bias_correction,
        }
        super().__init__(arguments, name, trainable=trainable, **options)
        is_name = isinstance(optimizer, str)
        if is_name:
            optimizer = keras_of(self).optimizers.get(optimizer)
        on_tpu = topology.is_tpu(tf.distribute.get_strategy())
        if self._distinct_rows:
            _warn_of_servers(self.name)
        configuration = configure(
            feature_config,
            optimizer,
            arithmetic=arithmetic,
            on_tpu=on_tpu,
            made_here=is_name,
            bias_correction=bias_correction,
            pipelined=pipeline_execution_with_tensor_core,
        )
        self._state = _State(configuration, optimizer, on_tpu=on_tpu, counts=is_name)
        if configuration.arithmetic == "keras" and configuration.trains:
            self._tpu_embedding: KerasTables | TPUEmbedding = KerasTables(
                configuration.spec, self._make_variable, distinct=self._distinct_rows
            )
            variables = self._tpu_embedding.keras_variables
        else:
            self._tpu_embedding = _engine(configuration, batch_size, sparse_core_limits)
            self._state.on_sparse_cores = SparseCoreDriver.claims(tf.distribute.get_strategy())
            # This variable exists even if no table is trained, because checkpoints of functional
            # Keras 2 models number the layers that have weights.
            keras_variable, virtual = self._make_variable(
                tf.compat.v1.zeros_initializer(), [], "virtual_variable", configuration.trains
            )
            variables = [keras_variable]
            self._state.virtual = virtual if configuration.trains else None
        self._layer_variables = LayerVariables(variables, trainable=configuration.trains)
        self.built = True  # Keras does not have to build the layer.

    @property
    def arithmetic(self) -> str:
        """The arithmetic of training: "tpu", "sparsecore" or "keras"."""
        return self._state.configuration.arithmetic

    @property
    def on_sparse_cores(self) -> bool:
        """Whether the tables are on SparseCores, which need sparse ids in sample order."""
        return self._state.on_sparse_cores

    @property
    def optimizer(self) -> Object:
        """The optimizer that was passed, or created from its name."""
        return self._state.optimizer

    @property
    def embedding(self) -> KerasTables | TPUEmbedding:
        """The object that holds the tables. Both types save checkpoints with the same keys."""
        return self._tpu_embedding

    @property
    def embedding_tables(self) -> dict[Object, Variable]:
        """Maps each TableConfig to the table's parameters, [vocabulary, dim] float32.

        Under a TPUStrategy, the parameters are sharded copies of the tables on the TPU. They are
        brought up to date only when a checkpoint is saved or restored.
        """
        embedding = self._tpu_embedding
        if isinstance(embedding, KerasTables):
            return self._state.configuration.by_table(embedding.parameters)
        if not embedding.tables:
            raise errors.OutOfOrder(
                "`embedding_tables` do not exist yet. The first call of the layer creates them."
            )
        # Even on a single host this is a ShardedTable, because programs read its attribute
        # `variables`.
        join = tf_compat.ShardedTable if self._state.on_tpu else whole
        parameters = {
            name: join(table.variables[PARAMETERS][: table.plan.vocabulary_size], name)
            for name, table in embedding.tables.items()
        }
        return self._state.configuration.by_table(parameters)

    @property
    def table_names(self) -> list[str]:
        return [str(table.name) for table in self._state.configuration.spec.tables]

    @contextlib.contextmanager
    def serving_in(self, table_dtypes: Mapping[str, str]) -> Iterator[None]:
        """In this context, lookups and exports use small copies of the layer's tables.

        `table_dtypes` maps table names to types; see `serving_table`.
        """
        assert self.embedding_tables  # Raises an error if there are no tables.
        embedding, layer_variables = self._tpu_embedding, self._layer_variables
        self._state.served, embedding.exported_instead = _served_tables(embedding, table_dtypes)
        self._layer_variables = LayerVariables([], trainable=False)
        try:
            yield
        finally:
            self._state.served, embedding.exported_instead = None, None
            self._layer_variables = layer_variables

    def __dir__(self) -> list[str]:
        """Hides `optimizer` from Keras, which would treat it as the model's optimizer."""
        return [name for name in super().__dir__() if name != "optimizer"]

    def save_own_variables(self, store: Object) -> None:
        for number, variable in enumerate(self._own_tables()):
            store[str(number)] = variable.numpy()

    def load_own_variables(self, store: Object) -> None:
        for number, variable in enumerate(self._own_tables()):
            variable.assign(store[str(number)])

    def _own_tables(self) -> list[Variable]:
        embedding = self._tpu_embedding
        if not isinstance(embedding, KerasTables):
            raise errors.InvalidSpec(
                f"Layer {self.name!r}: Keras's own files (`save_weights`, `.keras`) contain only "
                'Keras variables, but not the tables and slots of "tpu" arithmetic. Use '
                "`tf.train.Checkpoint(model=model)`, which contains them."
            )
        return list(embedding.parameters.values())

    def call(self, features: Nest, weights: Nest = None, serving_config: Nest = None) -> Nest:
        """Computes the activations of a batch.

        Args:
            features, weights: as in the engine's `TPUEmbedding.enqueue`; or a batch from `pack`.
            serving_config: None, or a nest of FeatureConfigs with the same tables. Its features are
                looked up on the host and not trained.

        Returns:
            The structure of `features` (for a packed batch, the structure of the feature config),
                with [*output_shape, dim] float32 for each feature.

        Raises:
            OutOfOrder: the layer is called under a TPUStrategy, but was not created under one.
        """
        return self._look_up(features, weights, serving_config)

    @do_not_convert
    def pack(self, features: Nest, weights: Nest = None) -> PackedBatch:
        """Packs the features and weights of one replica into four tensors, in the input pipeline.

        The layer accepts the packed batch instead of features; see the engine's
        `TPUEmbedding.pack`.
        """
        if isinstance(features, Mapping) and isinstance(weights, Mapping):
            weights = dict.fromkeys(features) | dict(weights)
        return pack(self._state.configuration.spec, features, weights)

    @do_not_convert
    def _look_up(
        self, features: Nest, weights: Nest, serving_config: Nest, shapes_only: bool = False
    ) -> Nest:
        features, weights = unpacked(self._state.configuration.spec, features, weights)
        if tf_compat.in_keras_construction():
            shapes_only = True
            features = tf.nest.map_structure(_with_sparse_restored, features)
        if isinstance(features, Mapping) and isinstance(weights, Mapping):
            weights = dict.fromkeys(features) | dict(weights)
        if not self._state.on_tpu and topology.is_tpu(tf.distribute.get_strategy()):
            raise errors.OutOfOrder(
                "The layer was not made under a TPUStrategy, but is called under one. Make the "
                "layer and the model inside `strategy.scope()`."
            )
        if serving_config is not None or self._state.served is not None:
            return self._look_up_to_serve(features, weights, serving_config)
        embedding, spec = self._tpu_embedding, self._state.configuration.spec
        if isinstance(embedding, KerasTables):
            structure.flatten(spec.structure, features, "features")
            return cpu_embedding_lookup(features, weights, embedding.to_look_up(), spec)
        if shapes_only or tf_compat.in_saved_model_export() or not self._state.in_replica_context():
            embedding.build_for_batch(features)
            if shapes_only and self._state.on_tpu:
                return _placeholders(embedding.plan)
            return embedding.embedding_lookup(features, weights)
        return self._look_up_in_training(embedding, features, weights)

    def _look_up_to_serve(self, features: Nest, weights: Nest, serving_config: Nest) -> Nest:
        configuration, served = self._state.configuration, self._state.served
        if serving_config is None:
            return cpu_embedding_lookup(features, weights, served or {}, configuration.spec)
        tables = self.embedding_tables if served is None else configuration.by_table(served)
        return cpu_embedding_lookup(features, weights, tables, serving_config)

    def _look_up_in_training(self, embedding: TPUEmbedding, features: Nest, weights: Nest) -> Nest:
        state = self._state
        training = None if state.virtual is not None and tf_compat.could_record() else False
        activations, apply_gradients = embedding.differentiable_lookup(
            features, weights, training, name=state.next_name() if state.on_tpu else None
        )
        if state.virtual is None or not self.trainable:
            return activations
        spec = state.configuration.spec
        return _activation_proxy(activations, spec, state.virtual, state.counting(apply_gradients))


@dataclasses.dataclass(eq=False)
class _State:
    configuration: Configuration
    optimizer: Object
    on_tpu: bool
    counts: bool
    virtual: Variable | None = None
    on_sparse_cores: bool = False
    served: Mapping[str, Object] | None = None

    def __post_init__(self) -> None:
        self._replicas = tf.distribute.get_strategy().num_replicas_in_sync
        self._names = itertools.count(1)

    def next_name(self) -> str:
        number = soft_tpu.next_call() or next(self._names)
        return f"{self.configuration.spec.tables[0].name}_{number}"

    def in_replica_context(self) -> bool:
        if self.on_tpu or self._replicas == 1:
            return True
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        return replicas > 1 and not tf.distribute.in_cross_replica_context()

    def counting(self, apply_gradients: ApplyGradients) -> ApplyGradients:
        if not self.counts:
            return apply_gradients

        def apply_and_count(gradients: Nest) -> Op:
            update = apply_gradients(gradients)
            with tf.control_dependencies(_ops(update)):
                count = self.optimizer.iterations.assign_add(1)
            return update if count is None or tf.executing_eagerly() else tf.group(update, count)

        return apply_and_count


def _warn_of_servers(layer: str) -> None:
    if is_server_strategy(tf.distribute.get_strategy()):
        log.warning(
            "Layer %r is made under ParameterServerStrategy, where `fit`, `evaluate` and `predict` "
            "of Keras 3 do not work. Call the model in a tf.function that you pass to "
            "`ClusterCoordinator.schedule`, or set TF_USE_LEGACY_KERAS=1 for Keras 2, whose "
            "`fit` works.",
            layer,
        )


def _engine(
    configuration: Configuration, batch_size: int | None, limits: SparseCoreLimits | None
) -> TPUEmbedding:
    spec, driver = configuration.spec, None
    if configuration.arithmetic == SPARSECORE:
        driver = driver_for_sparsecore(limits)
        spec = accumulating(spec)
    engine = TPUEmbedding(spec, batch_size=batch_size, training=configuration.trains, driver=driver)
    are_known = all(each.output_shape and each.output_shape[0] for each in spec.features)
    if SparseCoreDriver.claims(tf.distribute.get_strategy()) and (batch_size or are_known):
        engine.build()  # Stacks cannot be created while a step is traced.
    return engine


def _served_tables(
    embedding: KerasTables | TPUEmbedding, table_dtypes: Mapping[str, str]
) -> tuple[Mapping[str, Object], Mapping[str, Variable]]:
    if isinstance(embedding, KerasTables):
        variables = {
            name: small_variable(embedding.parameters[name], dtype, name)
            for name, dtype in table_dtypes.items()
        }
        return variables, variables
    embedding.retrieve()  # Applies pending updates, and copies tables from a TPU.
    tables = {
        name: small_table(embedding.tables[name], dtype) for name, dtype in table_dtypes.items()
    }
    return tables, exported_variables(tables)


def _activation_proxy(
    activations: Nest, spec: specs.EngineSpec, virtual: Variable, apply_gradients: ApplyGradients
) -> Nest:
    flat = structure.flatten(spec.structure, activations, "activations")
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    is_applied = False

    def update(*gradients: Object) -> Tensor:
        nonlocal is_applied
        # The zero is hidden from the graph optimizer. On 2.15 the optimizer would fold values that
        # are computed from a constant zero and, inside a loop, drop the update on which the zero
        # depends.
        zero = optimization_barrier(tf.zeros([], tf.float32))
        if tf_compat.in_saved_model_export():  # An export also traces this function.
            return zero
        # The gradient of a nested tf.function is traced in other graphs, possibly several times.
        if graph is None or graph is tf.compat.v1.get_default_graph():
            if is_applied:
                raise errors.OutOfOrder(
                    "The gradients of this call to the layer were applied already, because "
                    "computing them updates the tables. Compute them once, without a persistent "
                    "tape."
                )
            is_applied = True
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        updates = _ops(apply_gradients(structure.pack(spec.structure, dense)))
        with tf.control_dependencies(updates):
            return tf.identity(zero)

    @tf.custom_gradient
    def proxy(_: Tensor) -> tuple[list[Tensor], Callable[..., Tensor]]:
        return [tf.identity(activation) for activation in flat], update

    return structure.pack(spec.structure, proxy(tf.convert_to_tensor(virtual)))


def _placeholders(plan: Plan) -> Nest:
    flat: Sequence[Tensor] = [
        tf.compat.v1.placeholder(tf.float32, [*feature.output_shape, feature.table.dim])
        for feature in plan.features
    ]
    return structure.pack(plan.structure, flat)


def _with_sparse_restored(value: Object) -> Object:
    """Converts a dense tensor that takes the place of sparse or ragged ids to a SparseTensor.

    Keras 3 passes dense tensors when it builds a model under a strategy. Also, some programs
    declare sparse inputs as `tf.keras.Input(shape=(), sparse=True)`, but feed [batch, ids].
    """
    if isinstance(value, tf.SparseTensor) and value.shape.rank == 1:
        return _placeholder_of_ids(value)
    if not isinstance(value, tf.Tensor) or (value.shape.rank or 0) < 2 or value.shape[-1] == 1:
        return value
    indices = tf.zeros([0, value.shape.rank], tf.int64)
    sparse = tf.SparseTensor(indices, tf.zeros([0], value.dtype), tf.shape(value, tf.int64))
    sparse.set_shape(value.shape)
    return sparse


def _placeholder_of_ids(samples: SparseTensor) -> SparseTensor:
    ids = tf.compat.v1.sparse_placeholder(samples.dtype)
    dense_shape = tf.ensure_shape(ids.dense_shape, [2])
    sparse = tf.SparseTensor(tf.ensure_shape(ids.indices, [None, 2]), ids.values, dense_shape)
    sparse.set_shape([samples.shape.as_list()[0], None])
    return sparse


def _ops(op: Op) -> list[Op]:
    return [] if op is None or tf.executing_eagerly() else [op]
