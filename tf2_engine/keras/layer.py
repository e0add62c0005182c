"""The layer: activations in a model's forward pass, updates as its tape is unwound."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf2_engine import errors, slots, soft_tpu, specs, structure, tf_compat
from tf2_engine.autograph import as_written
from tf2_engine.backends.tpu import topology
from tf2_engine.embedding import TPUEmbedding
from tf2_engine.keras.configuration import Configuration, by_table, configure
from tf2_engine.keras.tables import KerasTables
from tf2_engine.keras.translation import is_keras_optimizer
from tf2_engine.keras.weights import Shown
from tf2_engine.optimizers.optimizer import opaque
from tf2_engine.serving import cpu_embedding_lookup
from tf2_engine.tables import PARAMETERS


class EmbeddingLayer:
    """Embedding tables as a Keras layer: on a TPU, and with or without its arithmetic elsewhere.

    With "tpu" arithmetic an engine holds the tables, and they are not among the layer's variables.
    A single virtual variable is: to compute its gradient is to update the tables, once per call of
    the layer, whatever is done with that gradient, which is zero. With "keras" arithmetic the
    tables are the layer's trainable variables, and Keras optimizers train them as any others.

        layer = TPUEmbedding(feature_config, tf.keras.optimizers.Adagrad(0.1))
        activations = layer(features)

    Args:
        feature_config: any nest of `tf.tpu.experimental.embedding.FeatureConfig`.
        optimizer: for tables without one: a name, which means the defaults of
            `keras.optimizers.get`; a Keras optimizer; an optimizer of the engine or of
            `tf.tpu.experimental.embedding`; or None off a TPU: the tables are not trained, and
            there are no slots.
        pipeline_execution_with_tensor_core: activations do not see the update of the step before;
            "tpu" arithmetic.
        batch_size: the global batch size, which is then not taken from the input. On a TPU it is
            needed if no input says it: if all are SparseTensors, say. Elsewhere batches of any
            size are welcome without it.
        arithmetic: off a TPU "tpu", the numbers of a TPU, or "keras", those of Keras. None is
            "keras" if Keras optimizers were passed for all tables, else "tpu".
        bias_correction: see `translate_keras_optimizer`.
        trainable: False looks up alone.
        name: the layer's.

    Raises:
        InvalidSpec, WrongType: a setting cannot be honoured; the message names it.
    """

    _make_variable: Callable[..., tuple[Any, tf.Variable]]
    _distinct_rows: bool
    name: str
    trainable: bool

    def __init__(
        self,
        feature_config: Any,
        optimizer: Any = None,
        pipeline_execution_with_tensor_core: bool = False,
        batch_size: int | None = None,
        *,
        arithmetic: str | None = None,
        bias_correction: bool = True,
        trainable: bool = True,
        name: str | None = None,
        **options: Any,
    ) -> None:
        # Ids are integers and weights are the engine's to cast.
        super().__init__(  # type: ignore[call-arg]
            name=name, trainable=trainable, dtype="float32", autocast=False, **options
        )
        given, named = optimizer, isinstance(optimizer, str)
        if named:
            optimizer = _keras_of(self).optimizers.get(optimizer)
        on_tpu = topology.is_tpu(tf.distribute.get_strategy())
        configuration = configure(
            feature_config,
            optimizer,
            arithmetic=arithmetic,
            on_tpu=on_tpu,
            made_here=named,
            bias_correction=bias_correction,
            pipelined=pipeline_execution_with_tensor_core,
        )
        self._kept = _Kept(configuration, optimizer, on_tpu=on_tpu, counts=named)
        self._kept.arguments = {
            "feature_config": feature_config,
            "optimizer": given,
            "pipeline_execution_with_tensor_core": pipeline_execution_with_tensor_core,
            "batch_size": batch_size,
            "arithmetic": arithmetic,
            "bias_correction": bias_correction,
        }
        if configuration.arithmetic == "keras" and configuration.trains:
            self._tpu_embedding: Any = KerasTables(
                configuration.spec, self._make_variable, distinct=self._distinct_rows
            )
            self._shown = Shown(self._tpu_embedding.shown, trainable=True)
        else:
            self._tpu_embedding = TPUEmbedding(
                configuration.spec, batch_size=batch_size, training=configuration.trains
            )
            # Where nothing trains, too: checkpoints of functional models of Keras 2 count the
            # layers that have weights.
            shown, virtual = self._make_variable(
                tf.compat.v1.zeros_initializer(), [], "virtual_variable", configuration.trains
            )
            self._shown = Shown([shown], trainable=configuration.trains)
            self._kept.virtual = virtual if configuration.trains else None
        # Keras 3: the layer makes its variables itself, takes any nest of tensors as it is, and has
        # ops that XLA cannot compile.
        self.built = True
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.supports_jit = False

    @property
    def arithmetic(self) -> str:
        """Whose numbers training gives: "tpu" or "keras"."""
        return self._kept.configuration.arithmetic

    @property
    def optimizer(self) -> Any:
        """The optimizer that was passed, or made of the name that was; None if there is none."""
        return self._kept.optimizer

    @property
    def embedding(self) -> Any:
        """What holds the tables; `tf.train.Checkpoint(embedding=...)` of it is an engine's."""
        return self._tpu_embedding

    @property
    def embedding_tables(self) -> dict[Any, Any]:
        """The parameters of every table, [vocabulary, dim] float32, by the TableConfig passed in.

        Under a TPUStrategy sharded stand-ins that are brought up to date when a checkpoint is
        written: for export, not for computation.

        Raises:
            OutOfOrder: the layer has not been called, so that the tables do not exist yet.
        """
        held = self._tpu_embedding
        if isinstance(held, KerasTables):
            return by_table(self._kept.configuration, held.parameters)
        if not held.tables:
            raise errors.OutOfOrder(
                "`embedding_tables` do not exist yet; they are made when the layer is first called."
            )
        # One host's is sharded, too: programs look for `variables`, as stock's has.
        joined = tf_compat.ShardedTable if self._kept.on_tpu else slots.whole
        return by_table(
            self._kept.configuration,
            {
                name: joined(table.variables[PARAMETERS][: table.plan.vocabulary_size], name)
                for name, table in held.tables.items()
            },
        )

    def get_config(self) -> dict[str, Any]:
        """Returns what `from_config` makes such a layer of, with new tables.

        Configs and optimizers are in it as they are, for copies in one program: they are no JSON.
        """
        return {**self._kept.arguments, "name": self.name, "trainable": self.trainable}

    def save_own_variables(self, store: Any) -> None:
        """Writes the tables into one of Keras's own files.

        Raises:
            InvalidSpec: the arithmetic is "tpu": such files hold variables of Keras alone.
        """
        for number, variable in enumerate(self._own_tables()):
            store[str(number)] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Reads what `save_own_variables` wrote.

        Raises:
            InvalidSpec: as `save_own_variables`.
        """
        for number, variable in enumerate(self._own_tables()):
            variable.assign(store[str(number)])

    def _own_tables(self) -> list[tf.Variable]:
        held = self._tpu_embedding
        if not isinstance(held, KerasTables):
            raise errors.InvalidSpec(
                f"Layer {self.name!r}: Keras's own files (`save_weights`, `.keras`) hold variables "
                'of Keras alone, and not the tables and slots of "tpu" arithmetic. Use '
                "`tf.train.Checkpoint(model=model)`, which holds them."
            )
        return list(held.parameters.values())

    def call(self, features: Any, weights: Any = None, serving_config: Any = None) -> Any:
        """Looks features up.

        Args:
            features: the structure of the feature config, with int32 or int64 Tensors,
                SparseTensors and RaggedTensors as leaves.
            weights: None, or the same with a weight tensor or None per feature; in a dict,
                features without weights may be left out.
            serving_config: None, or a nest of FeatureConfigs over the same tables, which then
                takes the place of the feature config: features are looked up on the host, and not
                trained.

        Returns:
            The structure of `features`; for each feature [*output_shape, dim] float32.

        Raises:
            OutOfOrder: the layer was not made under a TPUStrategy, but is called under one.
            InvalidInput, WrongType: an input does not fit; the message names the feature.
        """
        return self._look_up(features, weights, serving_config)

    @as_written  # not around `call`, whose signature Keras reads
    def _look_up(
        self, features: Any, weights: Any, serving_config: Any, shapes_only: bool = False
    ) -> Any:
        if tf_compat.in_keras_construction():
            shapes_only = True
            features = tf.nest.map_structure(_as_keras_forgot, features)
        if isinstance(features, Mapping) and isinstance(weights, Mapping):
            weights = dict.fromkeys(features) | dict(weights)
        kept, held = self._kept, self._tpu_embedding
        if not kept.on_tpu and topology.is_tpu(tf.distribute.get_strategy()):
            raise errors.OutOfOrder(
                "The layer was not made under a TPUStrategy, but is called under one. Make it, and "
                "the model, inside `strategy.scope()`."
            )
        if serving_config is not None:
            return cpu_embedding_lookup(features, weights, self.embedding_tables, serving_config)
        spec = kept.configuration.spec
        if isinstance(held, KerasTables):
            structure.flatten(spec.structure, features, "features")
            return cpu_embedding_lookup(features, weights, held.to_look_up(), spec)
        if kept.on_tpu and shapes_only:
            held.build_for_batch(features)
            return _placeholders(held.plan)
        exporting = tf_compat.in_saved_model_export()
        if exporting or shapes_only or not kept.speaks_for_a_replica():
            held.build_for_batch(features)
            return held.embedding_lookup(features, weights)
        training = None if kept.virtual is not None and tf_compat.could_record() else False
        activations, apply_gradients = held.differentiable_lookup(
            features, weights, training, name=kept.next_name() if kept.on_tpu else None
        )
        if kept.virtual is None or not self.trainable:
            return activations
        return _trap(activations, spec, kept.virtual, kept.counting(apply_gradients))


class _Kept:
    """What a layer remembers, in an object that Keras does not look into.

    Attributes:
        virtual: the variable whose gradient stands for the update of the tables, if they train.
        arguments: what the user passed.
        counts: whether nobody else counts the steps of the optimizer.
    """

    def __init__(
        self, configuration: Configuration, optimizer: Any, *, on_tpu: bool, counts: bool
    ) -> None:
        self.configuration = configuration
        self.optimizer = optimizer
        self.on_tpu = on_tpu
        self.virtual: tf.Variable | None = None
        self.arguments: dict[str, Any] = {}
        self._counts = counts and optimizer is not None and is_keras_optimizer(optimizer)
        self._replicas = tf.distribute.get_strategy().num_replicas_in_sync
        self._names = itertools.count(1)

    def next_name(self) -> str:
        """Returns what pairs the ops of one call in a graph, on every core."""
        number = soft_tpu.next_call() or next(self._names)
        return f"{self.configuration.spec.tables[0].name}_{number}"

    def speaks_for_a_replica(self) -> bool:
        """Whether a call is that of one replica, as the strategy of the layer has them."""
        if self.on_tpu or self._replicas == 1:
            return True
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        return replicas > 1 and not tf.distribute.in_cross_replica_context()

    def counting(self, apply_gradients: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns the same, which also counts the step if nobody else does."""
        if not self._counts:
            return apply_gradients

        def apply_and_count(gradients: Any) -> Any:
            done = apply_gradients(gradients)
            with tf.control_dependencies(_ops(done)):
                count = self.optimizer.iterations.assign_add(1)
            return done if count is None or tf.executing_eagerly() else tf.group(done, count)

        return apply_and_count


def _trap(
    activations: Any,
    spec: specs.EngineSpec,
    virtual: tf.Variable,
    apply_gradients: Callable[[Any], Any],
) -> Any:
    """Returns the activations, whose gradient updates the tables on its way to a variable."""
    flat = structure.flatten(spec.structure, activations, "activations")
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    seen: list[bool] = []

    def update(*gradients: Any) -> Any:
        # Hidden from graph optimisation: on 2.15 it folds what is computed of a constant zero, and
        # drops the update on which the zero depends, if that is in the body of a loop.
        zero = opaque(tf.zeros([], tf.float32))
        if tf_compat.in_saved_model_export():  # which writes down gradients, too
            return zero
        # The gradient of a nested tf.function is traced in other graphs, and maybe several times.
        if graph is None or graph is tf.compat.v1.get_default_graph():
            if seen:
                raise errors.OutOfOrder(
                    "The gradients of this call of the layer were applied already: they are when "
                    "they are computed, so compute them once. (A persistent tape does so twice.)"
                )
            seen.append(True)
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        done = apply_gradients(structure.pack(spec.structure, dense))
        with tf.control_dependencies(_ops(done)):
            return tf.identity(zero)

    @tf.custom_gradient
    def trap(_: Any) -> Any:
        return [tf.identity(each) for each in flat], update

    return structure.pack(spec.structure, trap(tf.convert_to_tensor(virtual)))


def _placeholders(plan: Any) -> Any:
    """Returns what stands for activations while Keras wants to know their shapes alone."""
    flat: Sequence[Any] = [
        tf.compat.v1.placeholder(tf.float32, [*feature.output_shape, feature.table.dim])
        for feature in plan.features
    ]
    return structure.pack(plan.structure, flat)


def _as_keras_forgot(value: Any) -> Any:
    """Returns a SparseTensor in place of what must have been one, or a RaggedTensor.

    Keras 3 takes dense tensors for both when it builds a model from the first batch of `fit` under
    a strategy. It wants shapes alone, and those of activations are the same.
    """
    if not isinstance(value, tf.Tensor) or (value.shape.rank or 0) < 2 or value.shape[-1] == 1:
        return value
    indices = tf.zeros([0, value.shape.rank], tf.int64)
    sparse = tf.SparseTensor(indices, tf.zeros([0], value.dtype), tf.shape(value, tf.int64))
    sparse.set_shape(value.shape)
    return sparse


def _ops(done: Any) -> list[Any]:
    return [] if done is None or tf.executing_eagerly() else [done]


def _keras_of(layer: Any) -> Any:
    """Returns the Keras whose layer it is: one that was imported, or else `tf.keras`."""
    for name in ("tf_keras", "keras"):
        module = sys.modules.get(name)
        if module is not None and isinstance(layer, module.layers.Layer):
            return module
    return tf.keras
