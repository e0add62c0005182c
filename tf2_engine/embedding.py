"""The mid-level API: enqueue a batch, dequeue its activations, apply gradients."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf2_engine import batch, errors, replicas, shapes, specs, structure
from tf2_engine.checkpoint import Checkpointed
from tf2_engine.config_proto import config_proto
from tf2_engine.drivers import DRIVERS
from tf2_engine.drivers.base import Driver, building_graph
from tf2_engine.plan import Plan, Shape, make_plan
from tf2_engine.tables import PARAMETERS, Table, VariableFactory, create_tables

# AutoGraph would convert the engine's own code in every tf.function that calls it.
_as_written = tf.autograph.experimental.do_not_convert


class TPUEmbedding(Checkpointed):
    """Embedding tables that are looked up and trained with the arithmetic of a TPU.

    Works eagerly, in tf.functions and in a `tf.Graph`. In a graph the methods return ops, and
    whoever runs the graph runs them. Under a strategy of several replicas a step is global: the
    gradients of all replicas are summed and each row is updated once.

        embedding = TPUEmbedding(feature_config, optimizer=Adagrad(0.1))
        embedding.enqueue(features)
        activations = embedding.dequeue()
        ...
        embedding.apply_gradients(gradients)

    Unlike `tf.tpu.experimental.embedding.TPUEmbedding` it runs without a TPU, and the
    configuration objects that are passed in are not changed.

    Args:
        feature_config: an `EngineSpec`, or any nest of
            `tf.tpu.experimental.embedding.FeatureConfig`.
        optimizer: for tables without one; if a table has none at all, the engine only looks up.
            In the form of TF 2.3 an int comes before it: `batch_size`.
        pipeline_execution_with_tensor_core: activations do not see the update of the step before.
        initialize_tpu_embedding: False expects that another engine has initialised the TPU.
        batch_size: the global batch size, fixed; None takes it from `build` or the first batch.
        verify_output_shapes: whether each batch is checked against the shapes that were built.
        driver: what runs the plan, by name or as an object.
        num_cores: cores to emulate on one machine; None is one per replica of the strategy.
            Outside of a strategy, batches, activations and gradients of several cores are lists
            with one entry per core.
        num_hosts: hosts whose row placement to emulate.
        training: False makes no slots and looks up alone.
        variable_factory: makes the variables of the tables; see `tables.create_tables`.

    Raises:
        InvalidSpec: a setting cannot be honoured; the message names it.
    """

    def __init__(
        self,
        feature_config: Any,
        optimizer: Any = None,
        pipeline_execution_with_tensor_core: Any = False,
        *more: bool,
        initialize_tpu_embedding: bool = True,
        batch_size: int | None = None,
        verify_output_shapes: bool = True,
        driver: str | Driver = "host",
        num_cores: int | None = None,
        num_hosts: int = 1,
        training: bool = True,
        variable_factory: VariableFactory | None = None,
    ) -> None:
        if isinstance(optimizer, int) and not isinstance(optimizer, bool):
            # TF 2.3: (feature_config, batch_size, optimizer, pipeline…, initialize…).
            batch_size, optimizer = optimizer, pipeline_execution_with_tensor_core or None
            pipeline_execution_with_tensor_core, *rest = more or (False,)
            initialize_tpu_embedding = rest[0] if rest else initialize_tpu_embedding
        elif more:
            raise errors.WrongType(
                f"TPUEmbedding takes 3 positional arguments, got {3 + len(more)}. (In the form of "
                "TF 2.3 the second is the batch size, an int.)"
            )
        self._strategy = tf.distribute.get_strategy()
        if isinstance(self._strategy, tf.distribute.TPUStrategy):
            raise errors.InvalidSpec(
                "TPUEmbedding cannot be created under a TPUStrategy yet. Create it under another "
                "strategy, where it computes the same."
            )
        self._read_config(feature_config, optimizer, pipeline_execution_with_tensor_core)
        self._driver = driver if isinstance(driver, Driver) else _make_driver(driver)
        if not initialize_tpu_embedding and not self._driver.initialized():
            raise errors.OutOfOrder(
                "initialize_tpu_embedding=False, but no other engine has initialised the embedding "
                "hardware. Create that one first, or leave initialize_tpu_embedding True."
            )
        self._num_cores = replicas.count() if num_cores is None else num_cores
        if replicas.count() not in (1, self._num_cores):
            raise errors.InvalidSpec(
                f"`num_cores`={num_cores}, but the strategy has {replicas.count()} replicas. Leave "
                "`num_cores` out."
            )
        self._num_hosts = num_hosts
        self._training = training and self._has_optimizers
        self._variable_factory = variable_factory
        self.verify_output_shapes = verify_output_shapes
        self._batch_size = shapes.per_core(batch_size, self._num_cores)
        self._plan: Plan | None = None
        self._tables: dict[str, Table] = {}

    def _read_config(self, feature_config: Any, optimizer: Any, pipeline: bool) -> None:
        if isinstance(feature_config, specs.EngineSpec):
            for name, value in (
                ("optimizer", optimizer),
                ("pipeline_execution_with_tensor_core", pipeline),
            ):
                if value:
                    raise errors.InvalidSpec(
                        f"`{name}`={value!r} is given beside an EngineSpec; set it in the spec."
                    )
            self._spec = feature_config
            self._has_optimizers = True
            self._table_keys: list[Any] = [table.name for table in self._spec.tables]
            return
        self._has_optimizers = specs.has_optimizers(feature_config, optimizer)
        self._spec = specs.from_feature_config(
            feature_config,
            optimizer if self._has_optimizers else specs.NO_UPDATES,
            pipeline_execution_with_tensor_core=pipeline,
        )
        self._table_keys = specs.table_configs(feature_config)

    def __repr__(self) -> str:
        state = "built" if self._plan else "not built"
        return f"<TPUEmbedding {len(self._spec.tables)} tables, {self._driver!r}, {state}>"

    @property
    def plan(self) -> Plan:
        """The plan that the driver runs."""
        if self._plan is None:
            raise errors.OutOfOrder(
                "The engine is not built yet; `build` or `enqueue` comes first."
            )
        return self._plan

    @property
    def config_proto(self) -> Any:
        """The `TPUEmbeddingConfiguration` of the plan."""
        return config_proto(self.plan)

    @property
    def tables(self) -> Mapping[str, Table]:
        """The variables of every table, slots included, by table name."""
        return self._tables

    @property
    def embedding_tables(self) -> dict[Any, Any]:
        """The parameters of every table: a variable, or its shards if there are several hosts.

        Keyed by the `TableConfig` that was passed in; by name for an `EngineSpec`.

        Raises:
            OutOfOrder: the engine is not built.
        """
        plan = self.plan
        values = [self._tables[table.name].variables[PARAMETERS] for table in plan.tables]
        return {
            key: shards[0] if len(shards) == 1 else shards
            for key, shards in zip(self._table_keys, values, strict=True)
        }

    @_as_written
    def build(
        self, per_replica_input_shapes: Any = None, per_replica_batch_size: Any = None
    ) -> None:
        """Makes the plan and the variables, and configures the driver; nothing if it is done.

        The shape of an activation comes from the feature's `output_shape`, else from here, else
        from the first batch.

        Args:
            per_replica_input_shapes: the structure of the feature config with the shape of each
                input as a tuple, list or TensorShape: [*output_shape, anything].
            per_replica_batch_size: deprecated: samples per replica, for inputs of rank 2. An int as
                `per_replica_input_shapes` is the same.

        Raises:
            InvalidSpec: a shape contradicts the feature's `output_shape`, or is not known.
        """
        if isinstance(per_replica_input_shapes, int):
            per_replica_batch_size, per_replica_input_shapes = per_replica_input_shapes, None
        if per_replica_batch_size is not None:
            warnings.warn(
                "Building with a batch size is deprecated; pass the shape of every input as "
                "`per_replica_input_shapes`.",
                DeprecationWarning,
                stacklevel=2,
            )
        size = self._batch_size if per_replica_batch_size is None else per_replica_batch_size
        self.build_for(shapes.from_arguments(self._spec, per_replica_input_shapes, size))

    def build_for(self, output_shapes: Sequence[Shape]) -> None:
        """Builds for the shapes of activations, without their last dimension, in feature order."""
        if self._plan is None:
            self._build(self._make_plan(output_shapes))

    def _make_plan(self, output_shapes: Sequence[Shape]) -> Plan:
        return make_plan(
            self._spec,
            output_shapes,
            num_hosts=self._num_hosts,
            num_cores=self._num_cores,
            training=self._training,
        )

    def _build(self, plan: Plan) -> None:
        # Inside a tf.function variables and queues belong outside of it; in a plain graph they
        # belong to the graph.
        with tf.init_scope():
            tables = create_tables(plan, self._variable_factory)
            self._track_tables(self._spec, tables)
            self._driver.configure(plan)
            self._driver.load(tables)
        self._plan, self._tables = plan, tables

    @_as_written
    def enqueue(
        self,
        features: Any,
        weights: Any = None,
        training: Any = True,
        name: str | None = None,
        device: str | None = None,
    ) -> Any:
        """Hands over one batch; the first one fixes shapes and builds the engine.

        Args:
            features: the structure of the feature config, with int32 or int64 Tensors,
                SparseTensors and RaggedTensors as leaves, mixed as one likes. Under a strategy of
                several replicas, per-replica values outside of `strategy.run` and a replica's own
                inside. For several emulated cores a list of such structures.
            weights: None, or the same with a weight tensor or None per feature.
            training: whether gradients will come back; a bool, or a scalar bool tensor.
            name: tags the batch: `dequeue` and `apply_gradients` of the same name take it.
            device: the worker device whose part of the batch this is; then `features` is that
                part alone.

        Returns:
            In a `tf.Graph` an op, or None where there is nothing to run.

        Raises:
            InvalidInput, WrongType: the batch does not fit; the message names the feature.
            ControlFlow: a replica calls inside control flow.
        """
        if replicas.inside_one():
            if device is not None:
                raise errors.InvalidInput(
                    f"`device`={device!r}: inside `strategy.run` each replica enqueues for itself; "
                    "leave it out."
                )

            def all_of_them(values: list[Any]) -> None:
                parts = {core: value[0] for core, value in enumerate(values)}
                weight = None if weights is None else {c: v[1] for c, v in enumerate(values)}
                self._enqueue(parts, weight, values[0][2], name)

            return replicas.together("enqueue", all_of_them, (features, weights, training))
        if device is not None:
            core = self._core_of(device)
            return self._enqueue(
                {core: features}, None if weights is None else {core: weights}, training, name
            )
        parts = dict(enumerate(self._per_core(features, "features")))
        per_core = None if weights is None else dict(enumerate(self._per_core(weights, "weights")))
        return self._enqueue(parts, per_core, training, name)

    @_as_written
    def dequeue(self, name: str | None = None) -> Any:
        """Returns the activations of the oldest batch that was not looked up yet.

        Returns:
            The structure of the feature config; for each feature [*output_shape, dim] float32:
            inside `strategy.run` the replica's own. A list of such per core for several emulated
            cores.

        Raises:
            OutOfOrder: the engine is not built, or nothing is enqueued. (While a tf.function runs,
                the latter is an InvalidArgumentError with the same message.)
        """
        plan = self._built("dequeue")

        def all_of_them(_: Any = None) -> list[Any]:
            return [structure.pack(plan.structure, core) for core in self._driver.dequeue(name)]

        if replicas.inside_one():
            return replicas.together("dequeue", all_of_them, ())
        return _one_or_list(all_of_them())

    @_as_written
    def apply_gradients(self, gradients: Any, name: str | None = None) -> Any:
        """Updates the tables with the gradients of the oldest training batch looked up.

        Args:
            gradients: the structure that `dequeue` returned, each of the shape of the activation;
                None counts as zeros, and the rows are updated with them.
            name: tags the batch.

        Returns:
            In a `tf.Graph` the op that updates.

        Raises:
            InvalidInput, WrongType: a gradient does not fit; the message names the feature.
            OutOfOrder: the engine is not built or has no optimizer, or no batch waits for
                gradients.
        """
        plan = self._built("apply_gradients")
        if not plan.training:
            raise errors.OutOfOrder(
                "`apply_gradients` is not possible: the engine has no optimizer, or was made with "
                "training=False."
            )
        if replicas.inside_one():
            flat = self._read_gradients(plan, gradients)
            return replicas.together(
                "apply_gradients", lambda values: self._send(plan, values, name), flat
            )
        parts = [
            self._read_gradients(plan, core) for core in self._per_core(gradients, "gradients")
        ]
        return self._send(plan, parts, name)

    @_as_written
    def load(self) -> Any:
        """Makes the driver take over the values of the variables, as after a restore."""
        return _op(self._driver.load(self._tables))

    @_as_written
    def retrieve(self) -> Any:
        """Brings the variables up to date, as before a checkpoint."""
        return _op(self._driver.retrieve(self._tables))

    def _enqueue(
        self,
        features: Mapping[int, Any],
        weights: Mapping[int, Any] | None,
        training: Any,
        name: str | None,
    ) -> Any:
        """Enqueues the parts of some cores."""
        flat = {
            core: [
                _as_tensor(value)
                for value in structure.flatten(self._spec.structure, part, "features")
            ]
            for core, part in features.items()
        }
        found = [shapes.from_values(self._spec, values) for values in flat.values()]
        plan = self._plan or self._plan_of(found[0])
        if self.verify_output_shapes:
            built = [feature.output_shape for feature in plan.features]
            for shape in found:
                shapes.check(self._spec, built, shape)
        inputs: list[list[batch.RawIds] | None] = [None] * self._num_cores
        for core, values in flat.items():
            per_feature: list[Any] = [None] * len(values)
            if weights is not None:
                per_feature = structure.flatten(self._spec.structure, weights[core], "weights")
            inputs[core] = [
                batch.read_ids(feature, value, weight)
                for feature, value, weight in zip(plan.features, values, per_feature, strict=True)
            ]
        # Only a batch that can be enqueued decides the shapes.
        if self._plan is None:
            self._build(plan)
        return _op(self._driver.enqueue(inputs, training, name))

    def _plan_of(self, found: Sequence[Shape]) -> Plan:
        """Returns the plan that a first batch leads to."""
        if not self.verify_output_shapes:
            raise errors.InvalidSpec(
                "With verify_output_shapes=False the shapes are not taken from batches; call "
                "`build` with them before the first batch."
            )
        return self._make_plan(shapes.with_batch_size(self._spec, found, self._batch_size))

    def _read_gradients(self, plan: Plan, gradients: Any) -> list[Any]:
        flat = structure.flatten(plan.structure, gradients, "gradients")
        return [
            _read_gradient(feature, value)
            for feature, value in zip(plan.features, flat, strict=True)
        ]

    def _send(self, plan: Plan, gradients: Sequence[Sequence[Any]], name: str | None) -> Any:
        rates = [tf.cast(rate(), tf.float32) for rate in plan.dynamic_rates]
        return _op(self._driver.send_gradients(gradients, rates, name))

    def _built(self, call: str) -> Plan:
        if self._plan is None:
            raise errors.OutOfOrder(
                f"`{call}` is called on an engine that is not built; call `enqueue` first, or "
                "`build`."
            )
        return self._plan

    def _per_core(self, value: Any, what: str) -> list[Any]:
        """Returns each core's part of a value that is passed for all of them."""
        if self._num_cores == 1:
            return [value]
        if self._strategy.num_replicas_in_sync > 1:
            return replicas.split(self._strategy, value)
        if not isinstance(value, (list, tuple)) or len(value) != self._num_cores:
            raise errors.InvalidInput(
                f"`{what}` must be a list with one entry for each of the {self._num_cores} cores."
            )
        return list(value)

    def _core_of(self, device: str) -> int:
        if self._num_cores == 1:
            return 0
        devices = self._strategy.extended.worker_devices
        if device not in devices:
            raise errors.InvalidInput(
                f"`device`={device!r} is not one of the strategy's worker devices {list(devices)}."
            )
        return int(devices.index(device))


def _read_gradient(feature: Any, value: Any) -> Any:
    expected = [*feature.output_shape, feature.table.dim]
    if value is None:
        if feature.cells is None:
            raise errors.InvalidInput(
                f"{feature.where}: the gradient is None, and the batch size is not fixed, so "
                "zeros cannot stand in for it. Pass zeros of the shape of the activation."
            )
        warnings.warn(
            f"{feature.where}: the gradient is None; zeros are used. Optimizers other than SGD "
            "may move rows at a zero gradient.",
            stacklevel=_frames_to_the_caller(),
        )
        return tf.zeros(expected, tf.float32)
    if isinstance(value, tf.IndexedSlices):
        value = tf.convert_to_tensor(value)
    if not isinstance(value, tf.Tensor):
        raise errors.WrongType(
            f"{feature.where}: a gradient must be a tensor, got {type(value).__name__}."
        )
    if value.dtype != tf.float32:
        raise errors.WrongType(
            f"{feature.where}: a gradient must be float32, got {value.dtype.name}."
        )
    if not value.shape.is_compatible_with(expected):
        raise errors.InvalidInput(
            f"{feature.where}: found a gradient of shape {value.shape}, expected {expected}."
        )
    # What only the run can tell is checked in the run.
    return value if value.shape.is_fully_defined() else tf.ensure_shape(value, expected)


def _frames_to_the_caller() -> int:
    """Returns the `stacklevel` at which a warning points at the code that uses the engine."""
    inside = (os.path.dirname(__file__), os.path.dirname(tf.__file__))
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inside):
        frame, level = frame.f_back, level + 1
    return level


def _op(done: Any) -> Any:
    # Outside of a plain graph the call has taken effect, and a tf.function may not return an op.
    return done if building_graph() else None


def _make_driver(name: str) -> Driver:
    if name not in DRIVERS:
        raise errors.InvalidSpec(f"`driver` must be one of {', '.join(DRIVERS)}, got {name!r}.")
    return DRIVERS[name]()


def _one_or_list(per_core: list[Any]) -> Any:
    return per_core if len(per_core) > 1 else per_core[0]


def _as_tensor(value: Any) -> Any:
    # numpy arrays are welcome; everything else is judged where its feature is known.
    return (
        tf.convert_to_tensor(value)
        if hasattr(value, "__array__") and not isinstance(value, (tf.Tensor, tf.Variable))
        else value
    )
