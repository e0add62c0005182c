"""`TPUEmbedding`, the engine: enqueues batches, looks up activations, and applies gradients."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow as tf

from tf2_engine import config_proto, errors, forks, shapes, specs, structure, tf_compat
from tf2_engine.arguments import typed
from tf2_engine.backends import make_driver
from tf2_engine.backends.interface import Driver, Gradients, Rates, Update
from tf2_engine.batch import Batch, FeatureBatch, check_ids
from tf2_engine.checkpoint import RetrieveOnce, exported_variables, table_tensors
from tf2_engine.graph_mode import building_graph, do_not_convert, run_after
from tf2_engine.packed import PackedBatch, flattened, pack, unpacked
from tf2_engine.plan import Plan, Shape, make_plan
from tf2_engine.serving import cpu_embedding_lookup
from tf2_engine.tables import PARAMETERS, Table, VariableFactory, create_tables, whole
from tf2_engine.types import Message, Nest, Object, Op, Tensor, Variable

StepObserver = Callable[[Plan, Sequence[Sequence[FeatureBatch]], Gradients], None]
"""Called while a step is traced, with the plan, and with the inputs and gradients of each core."""


@dataclasses.dataclass(frozen=True)
class BuiltEngine:
    """The parts of an engine that `build` creates.

    In a `tf.Graph`, `ops` configure the driver and load the tables into it.
    """

    plan: Plan
    tables: dict[str, Table]
    ops: tuple[Op, Op] | None


@typed
class TPUEmbedding(tf_compat.CheckpointedEmbedding):
    """Embedding tables that are looked up and trained with the arithmetic of a TPU.

    The class works eagerly, in tf.functions and in a `tf.Graph`. In a graph, methods return ops for
    the caller to run. Under a strategy with several replicas, the gradients of all replicas are
    summed and each row is updated once. Under a TPUStrategy, the TPU does lookups and updates; call
    `dequeue` and `apply_gradients` inside `strategy.run`, and `enqueue` inside or outside.

        embedding = TPUEmbedding(feature_config, optimizer=Adagrad(0.1))
        with embedding.step():
            embedding.enqueue(features)
            activations = embedding.dequeue()
            ...
            embedding.apply_gradients(gradients)

    Unlike `tf.tpu.experimental.embedding.TPUEmbedding`, this class also runs without a TPU, and it
    does not change the configuration objects. Methods raise InvalidInput or WrongType if an
    argument does not fit the spec.

    Args:
        feature_config: an `EngineSpec`, or any nest of
            `tf.tpu.experimental.embedding.FeatureConfig`.
        optimizer: the optimizer of tables that do not set one. If no table has an
            optimizer, the engine can only look up. As in TF 2.3, the batch size may be passed
            before the optimizer.
        pipeline_execution_with_tensor_core: whether a batch is looked up before the previous step's
            update.
        initialize_tpu_embedding: False if another engine has initialized the TPU.
        batch_size: the fixed global batch size; by default, `build` or the first batch fixes it.
        verify_output_shapes: whether each batch is checked against the shapes of `build`.
        driver: a driver or its name. The default is "tpu" under a TPUStrategy, "ps" under a
            ParameterServerStrategy, and otherwise "host".
        num_cores: the number of cores to emulate on one machine; by default one per replica. With
            several cores outside a strategy, batches, activations and gradients are lists with an
            entry per core.
        synchronous: the number of function calls per step under ParameterServerStrategy. Each call
            sends gradients with `apply_gradients(gradients, core=...)`, and `apply_step` applies
            them all. With None, each call updates the tables itself.
        num_hosts: the number of hosts to emulate for the placement of rows; by default one, or the
            TPU's hosts.
        training: False creates no slots, and allows only lookups.
        variable_factory: creates the variables of the tables; see `tables.VariableFactory`.

    Raises:
        OutOfOrder: the driver needs a TPUStrategy or an initialized TPU, but there is none.
    """

    def __init__(
        self,
        feature_config: Nest,
        optimizer: Object = None,
        pipeline_execution_with_tensor_core: Object = False,
        *more: bool,
        initialize_tpu_embedding: bool = True,
        batch_size: int | None = None,
        verify_output_shapes: bool = True,
        driver: str | Driver | None = None,
        num_cores: int | None = None,
        synchronous: int | None = None,
        num_hosts: int | None = None,
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
                f"TPUEmbedding takes 3 positional arguments, got {3 + len(more)}. (In the order "
                "of TF 2.3, the second argument is the batch size, an int.)"
            )
        self._spec, self._table_keys, has_optimizers = _read_config(
            feature_config, optimizer, pipeline_execution_with_tensor_core
        )
        if not isinstance(driver, Driver):
            driver = make_driver(driver, initialize=initialize_tpu_embedding)
        _check_positive(num_cores=num_cores, num_hosts=num_hosts, synchronous=synchronous)
        self._synchronous = None if synchronous is None else driver.synchronous(synchronous)
        self._driver = self._synchronous or driver
        self._cores = self._driver.cores(num_cores, num_hosts)
        if not initialize_tpu_embedding and self._cores.initialized() is False:
            raise errors.OutOfOrder(
                "initialize_tpu_embedding=False, but no other engine has initialised the embedding "
                "hardware. Create the engine that initialises it first, or leave "
                "initialize_tpu_embedding True."
            )
        self._cores.check_spec(self._spec)
        self.verify_output_shapes = verify_output_shapes
        self._training = training and has_optimizers
        self._samples_per_core = shapes.per_core(batch_size, self._cores.count)
        self._variable_factory = variable_factory or self._cores.variable_factory
        self._built: BuiltEngine | None = None
        self._observer: StepObserver | None = None
        self._retrieve_once = RetrieveOnce(self._retrieve_if_built)

    def __repr__(self) -> str:
        state = "built" if self._built else "not built"
        return f"<TPUEmbedding {len(self._spec.tables)} tables, {self._driver!r}, {state}>"

    @property
    def plan(self) -> Plan:
        """The plan that the driver runs; raises OutOfOrder before the engine is built."""
        return self._check_built("plan").plan

    @property
    def config_proto(self) -> Message:
        """The `TPUEmbeddingConfiguration` of the plan."""
        return config_proto.config_proto(self.plan)

    @property
    def tables(self) -> Mapping[str, Table]:
        """Maps each table's name to its variables, slots included."""
        return self._built.tables if self._built else {}

    @property
    def embedding_tables(self) -> dict[Object, Object]:
        """Maps every table to its parameters, [vocabulary, dim] float32.

        Keys are the `TableConfig` objects that were passed in, or table names for an `EngineSpec`.
        Each value is one variable or, with the strategy "mod" on several hosts, a tuple of shards.

        Raises:
            OutOfOrder: the engine is not built, or the tables are on a TPU and no SavedModel is
                being exported.
        """
        built = self._check_readable("embedding_tables")
        parameters = {}
        for key, table in zip(self._table_keys, built.plan.tables, strict=True):
            # If there are more hosts than rows, the rows of the last hosts have no id.
            shards = built.tables[table.name].variables[PARAMETERS][: table.vocabulary_size]
            in_order = built.tables[table.name].strategy == "div" or len(shards) == 1
            parameters[key] = whole(shards, table.name) if in_order else shards
        return parameters

    @do_not_convert
    def build(
        self, per_replica_input_shapes: Nest = None, per_replica_batch_size: int | None = None
    ) -> Op:
        """Creates the plan and variables and configures the driver, if not done yet.

        An activation's shape is the feature's `output_shape`. If that is not set, the shape is
        computed from the arguments or, without them, from the first batch.

        Args:
            per_replica_input_shapes: the structure of the feature config, with each input's shape,
                [*output_shape, any size].
            per_replica_batch_size: deprecated; samples per replica, for inputs of rank 2. If
                `per_replica_input_shapes` is an int, it is used as this argument.

        Returns:
            In a `tf.Graph`, two ops that configure the driver and load the tables into it. Run them
                once, in this order, after variables are initialized.

        Raises:
            InvalidSpec: a shape is unknown, or contradicts the feature's `output_shape`.
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
        samples = per_replica_batch_size
        samples = self._samples_per_core if samples is None else samples
        return self._build_once(
            lambda: self._plan_for(
                shapes.from_arguments(self._spec, per_replica_input_shapes, samples)
            )
        ).ops

    def build_for(self, output_shapes: Sequence[Shape]) -> Op:
        """Builds the engine from the shapes (without `dim`) of all activations in feature order."""
        return self._build_once(lambda: self._plan_for(output_shapes)).ops

    @do_not_convert
    def build_for_batch(self, features: Nest) -> None:
        """Builds the engine for batches like `features`, unless already built.

        Later batches may differ in size, except on a TPU.
        """
        if self._built is None:
            inputs = self._read(*unpacked(self._spec, features, None))
            output_shapes = self._output_shapes(inputs, self._cores.per_replica)
            self._build_once(
                lambda: self._plan_for_batch(output_shapes, self._cores.tables_on_device)
            )

    @do_not_convert
    def load(self) -> Op:
        """Copies the variables to the driver. Call this after a restore."""
        return self._driver.load(self.tables)

    @do_not_convert
    def retrieve(self) -> Op:
        """Copies the driver's tables to the variables. Call this before saving a checkpoint."""
        return self._driver.retrieve(self.tables)

    @do_not_convert
    def pack(self, features: Nest, weights: Nest = None) -> PackedBatch:
        """Packs a batch into four tensors, for a `tf.data` pipeline: `dataset.map(engine.pack)`.

        Methods accept a packed batch as `features`, without `weights`. The results are bitwise
        equal to those of the unpacked batch. A tf.function takes a packed batch faster than a nest
        of many features.

        Args:
            features, weights: as for `enqueue`, for one replica or core.
        """
        return pack(self._spec, features, weights)

    @do_not_convert
    def enqueue(
        self,
        features: Nest,
        weights: Nest = None,
        training: Tensor | bool = True,
        name: str | None = None,
        device: str | None = None,
    ) -> Op:
        """Enqueues a batch. The first batch fixes the shapes and builds the engine.

        Args:
            features: the structure of the feature config, with int32 or int64 Tensors,
                SparseTensors and RaggedTensors in any mixture as leaves. If a strategy has several
                replicas, the leaves of a call outside `strategy.run` are per-replica values. For
                several emulated cores, a list of such structures, or of batches from `pack`.
            weights: None, or the same structure with a weight tensor or None per feature.
            training: whether gradients will follow; a bool or a scalar bool tensor.
            name: the tag by which `dequeue` and `apply_gradients` find the batch.
            device: the device of a core, if the batch is only for this core.

        Raises:
            ControlFlow: a replica calls `enqueue` inside control flow.
        """
        values = {"features": features, "weights": weights}

        def enqueue(by_core: Mapping[int, Mapping[str, Nest]], of_replicas: bool = True) -> Op:
            batch = self._batch(by_core, of_replicas=of_replicas, fixed=True)
            return self._driver.enqueue(batch, training, name)

        if device is not None:
            part = self._as_nests(values)
            return enqueue({self._cores.core_of(device): part}, of_replicas=False)
        return self._cores.call("enqueue", values, self._as_nests, enqueue, from_host=True)

    @do_not_convert
    def dequeue(self, name: str | None = None) -> Nest:
        """Returns the activations of the oldest batch that has not been looked up yet.

        Returns:
            The structure of the feature config with [*output_shape, dim] float32 for each feature.
                For several emulated cores, a list of such structures.

        Raises:
            OutOfOrder: the engine is not built, nothing is enqueued, or the previous training batch
                of this name still waits for gradients (see `step`). A running tf.function raises an
                InvalidArgumentError instead.
        """
        plan = self._check_built("dequeue").plan

        def dequeue(_: Mapping[int, object]) -> list[Nest]:
            return [structure.pack(plan.structure, core) for core in self._driver.dequeue(name)]

        return self._cores.call("dequeue", {}, dict, dequeue)

    @do_not_convert
    def apply_gradients(
        self, gradients: Nest, name: str | None = None, core: Tensor | int | None = None
    ) -> Op:
        """Updates the tables with the gradients of the oldest training batch that was looked up.

        Args:
            gradients: a nest with the structure and shapes of the activations. None as a gradient
                means zeros. Rows with a gradient of zero are updated too.
            core: the index of the core in a synchronous step, an int or a scalar integer tensor.
                The call only sends gradients; `apply_step` updates the tables. If a coordinator
                repeats a function, the function's gradients count once.

        Raises:
            OutOfOrder: the engine is not built or has no optimizer, or no batch waits for
                gradients.
        """
        synchronous = self._synchronous
        _check_core(core, None if synchronous is None else self._cores.count)

        def send(per_core: Gradients, rates: Rates) -> Op:
            if synchronous is None or core is None:
                return self._driver.send_gradients(per_core, rates, name)
            return synchronous.collect_gradients(core, per_core, name)

        return self._send(gradients, send)

    @do_not_convert
    def apply_step(self) -> None:
        """Updates each row once, with the gradients of all cores of a synchronous step.

        The coordinator calls this eagerly between two steps. Gradients are summed in the order of
        cores.

        Raises:
            OutOfOrder: the engine is not built, is not `synchronous` or has no optimizer; a core
                sent no gradients; or the call is inside a tf.function.
        """
        plan = self._check_trains("apply_step")
        if self._synchronous is None:
            raise errors.OutOfOrder(
                "`apply_step` is for synchronous steps, but the engine has synchronous=None. "
                "Leave the call out: `apply_gradients` has already updated the tables."
            )
        if not tf.executing_eagerly():
            raise errors.OutOfOrder(
                "`apply_step` is called inside a tf.function. Call it outside, after the "
                "coordinator's `join`."
            )
        self._synchronous.apply_collected(_rates(plan))

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Returns a context for the calls of one step. If the step fails, its batches are dropped.

        Without this context, the next step would take a batch of the failed step.

        Raises:
            OutOfOrder: a TPU of the first generation holds the batches and cannot drop them.
        """
        self._check_drops_batches("step")
        try:
            yield
        except BaseException:
            # While a function is traced, no batch is enqueued yet.
            if self._built is not None and not tf.inside_function():
                self._driver.reset_batches()
            raise

    @do_not_convert
    def reset_batches(self) -> Op:
        """Drops every batch, of any name, that waits for its lookup or its gradients.

        Use this after a step has failed between `enqueue` and `apply_gradients`. With pipelining, a
        pending update is kept, because its step was complete.

        Raises:
            OutOfOrder: as for `step`.
            ControlFlow: a replica calls this inside `strategy.run`.
        """
        self._check_drops_batches("reset_batches")
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if replicas > 1 and not tf.distribute.in_cross_replica_context():
            raise errors.ControlFlow(
                "`reset_batches` is called inside `strategy.run`, by one replica, but it drops the "
                "batches of all replicas. Call it outside `strategy.run`."
            )
        return None if self._built is None else self._driver.reset_batches()

    @do_not_convert
    def differentiable_lookup(
        self,
        features: Nest,
        weights: Nest = None,
        training: bool | None = None,
        name: str | None = None,
    ) -> tuple[Nest, Callable[[Nest], Op]]:
        """Looks up features, and returns the activations and a function that applies gradients.

        This is for callers, such as a Keras layer, that do not know yet whether a step trains.
        Batches may differ in size, except on a TPU or if the engine has a batch size.

        Args:
            features, weights: as for `enqueue`.
            training: None if unknown. False if there will be no gradients; then a pending update is
                applied before the lookup.
            name: a tag that differs from those of the graph's other batches; required on a TPU.

        Returns:
            The activations as from `dequeue`, and a function that takes gradients, as
                `apply_gradients` does. The function need not be called.
        """
        # The calls of all replicas are merged, and one replica's function is called for all of
        # them. The calls for the lookup and for the gradients use the same replica's function.
        updates: list[Update] = []
        batches: list[Batch] = []

        def look_up(by_core: Mapping[int, Mapping[str, Nest]]) -> list[Nest]:
            batch = self._batch(by_core, fixed=self._cores.tables_on_device)
            activations, update = self._driver.look_up(batch, training, name)
            updates.append(update)
            batches.append(batch)
            return [structure.pack(self.plan.structure, core) for core in activations]

        values = {"features": features, "weights": weights}
        activations = self._cores.call("differentiable_lookup", values, self._as_nests, look_up)

        def send(per_core: Gradients, rates: Rates) -> Op:
            if self._observer is not None:
                self._observer(self.plan, list(batches[0].parts.values()), per_core)
            return updates[0](per_core, rates)

        return activations, lambda gradients: self._send(gradients, send)

    def observe(self, observer: StepObserver | None) -> None:
        """Sets the function that each training step of `differentiable_lookup` calls.

        The function is called while a step is traced, and can add ops to the step. None removes
        the function.

        Raises:
            OutOfOrder: under a TPUStrategy, where batches and tables are on the device.
        """
        if observer is not None and self._cores.tables_on_device:
            raise errors.OutOfOrder(
                "`observe` is not possible under a TPUStrategy: batches and tables are on the TPU. "
                "Do not use table summaries with this strategy."
            )
        self._observer = observer

    @do_not_convert
    def embedding_lookup(self, features: Nest, weights: Nest = None) -> Nest:
        """Looks up features directly, without a queue and without gradients.

        Pending updates are applied first. The activations equal those of `dequeue`.

        Args:
            features, weights: as for `enqueue`, for a single core and any batch size. Features may
                be missing.

        Returns:
            The structure of `features` with [*output_shape, dim] float32 for each feature.

        Raises:
            OutOfOrder: as for `embedding_tables`.
        """
        tables = self._check_readable("embedding_lookup").tables
        features, weights = unpacked(self._spec, features, weights)
        op = None if tf_compat.in_saved_model_export() else self._driver.retrieve(tables)
        with run_after([op]):
            return cpu_embedding_lookup(features, weights, tables, self._spec)

    __call__ = embedding_lookup

    def _batch(
        self, by_core: Mapping[int, Mapping[str, Nest]], *, fixed: bool, of_replicas: bool = True
    ) -> Batch:
        if tf.inside_function():
            forks.check()
        parts = {core: self._read(**values) for core, values in by_core.items()}
        batch = Batch(parts, of_replicas)
        per_replica = self._cores.per_replica if of_replicas else 1
        output_shapes = [self._output_shapes(part, per_replica) for part in parts.values()]
        # Only a batch that can be enqueued may determine the shapes.
        plan = self._built.plan if self._built else self._plan_for_batch(output_shapes[0], fixed)
        if self.verify_output_shapes:
            built_for = [feature.output_shape for feature in plan.features]
            for shape in output_shapes:
                shapes.check(self._spec, built_for, shape)
        self._cores.check(plan, batch)
        for part in parts.values():
            for feature, values in zip(plan.features, part, strict=True):
                check_ids(feature, values.ids, values.weights)
        self._build_once(lambda: plan)
        return batch

    def _as_nests(self, values: Mapping[str, Nest]) -> dict[str, Nest]:
        features, weights = unpacked(self._spec, values["features"], values["weights"])
        return {"features": features, "weights": weights}

    def _read(self, features: Nest, weights: Nest) -> list[FeatureBatch]:
        ids, of_ids = flattened(self._spec, features, weights)
        return [FeatureBatch(*pair) for pair in zip(ids, of_ids, strict=True)]

    def _output_shapes(self, part: Sequence[FeatureBatch], cores: int) -> list[Shape]:
        return shapes.from_values(self._spec, [values.ids for values in part], cores)

    def _plan_for(self, output_shapes: Sequence[Shape]) -> Plan:
        return make_plan(
            self._spec,
            output_shapes,
            num_hosts=self._cores.hosts,
            num_cores=self._cores.count,
            training=self._training,
            servers=self._cores.servers,
        )

    def _plan_for_batch(self, output_shapes: Sequence[Shape], fixed: bool) -> Plan:
        if not self.verify_output_shapes:
            raise errors.InvalidSpec(
                "With verify_output_shapes=False, the shapes are not taken from batches. Call "
                "`build` with the shapes before the first batch."
            )
        if not fixed:
            output_shapes = [(None, *shape[1:]) for shape in output_shapes]
        samples = self._samples_per_core
        return self._plan_for(shapes.with_batch_size(self._spec, output_shapes, samples))

    def _build_once(self, plan_of: Callable[[], Plan]) -> BuiltEngine:
        if self._built is None:
            plan = plan_of()
            # Variables and queues are created outside a tf.function, but inside a plain graph.
            with tf.init_scope():
                tables = create_tables(plan, self._variable_factory)
                # An earlier, deferred restore fills the tables here, before the driver loads them.
                saved = table_tensors(self._spec, tables, self._retrieve_once)
                for name, tensor in saved.items():
                    self._track(name, tensor)
                ops = (self._driver.configure(plan), self._driver.load(tables))
                self._built = BuiltEngine(plan, tables, ops if building_graph() else None)
        return self._built

    def _send(self, nest: Nest, send: Update) -> Op:
        plan = self._check_trains("apply_gradients")

        def read_part(values: Mapping[str, Nest]) -> list[Tensor]:
            structure.check_sequence(plan.structure, values["gradients"], "gradients")
            flat = structure.flatten(plan.structure, values["gradients"], "gradients")
            return [
                shapes.read_gradient(feature, value, self._cores.per_replica)
                for feature, value in zip(plan.features, flat, strict=True)
            ]

        def send_all(by_core: Mapping[int, list[Tensor]]) -> Op:
            return send(list(by_core.values()), _rates(plan))

        return self._cores.call("apply_gradients", {"gradients": nest}, read_part, send_all)

    def _check_drops_batches(self, call: str) -> None:
        if not self._driver.drops_batches:
            raise errors.OutOfOrder(
                f"`{call}` cannot drop batches of {self._driver!r}: the TPU keeps the batches "
                "itself, and no call can remove one. Put the whole step into one tf.function, "
                "which runs completely or not at all. After a failure between `enqueue` and "
                "`dequeue`, write a checkpoint, which contains nothing of the failed step; call "
                "`tf.tpu.experimental.initialize_tpu_system`, make a new engine and a new model, "
                "and restore the checkpoint."
            )

    def _check_built(self, call: str) -> BuiltEngine:
        if self._built is None:
            raise errors.OutOfOrder(
                f"`{call}` is called on an engine that is not built; call `enqueue` first, or "
                "`build`."
            )
        return self._built

    def _check_trains(self, call: str) -> Plan:
        plan = self._check_built(call).plan
        if not plan.training:
            raise errors.OutOfOrder(
                f"`{call}` is not possible: the engine has no optimizer, or was made with "
                "training=False."
            )
        return plan

    def _check_readable(self, call: str) -> BuiltEngine:
        built = self._check_built(call)
        if self._cores.tables_on_device and not tf_compat.in_saved_model_export():
            raise errors.OutOfOrder(
                f"`{call}` cannot read the tables under a TPUStrategy: the TPU holds them, and the "
                "variables are brought up to date only when a checkpoint is written. Save a "
                "checkpoint, and restore it into an engine that is made outside of the TPUStrategy."
            )
        return built

    # Hooks of checkpoints and SavedModels; see `checkpoint`.

    def _retrieve_if_built(self) -> Op:
        return self.retrieve() if self._built else None

    def _before_save(self) -> None:
        if not building_graph():
            self._retrieve_if_built()

    def _after_restore(self) -> Op:
        return self.load() if self._built else None

    def _exported(self) -> dict[str, Variable]:
        return exported_variables(self.tables)


def _rates(plan: Plan) -> list[Tensor]:
    return [tf.cast(rate(), tf.float32) for rate in plan.dynamic_rates]


def _check_positive(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and count < 1:
            raise errors.InvalidSpec(f"`{name}` must be positive, got {count}.")


def _check_core(core: Tensor | int | None, synchronous: int | None) -> None:
    if core is None and synchronous is None:
        return
    if synchronous is None:
        raise errors.InvalidInput(
            f"`core`={core!r} is for synchronous steps, but the engine has synchronous=None. Leave "
            "`core` out, or make the engine with `synchronous`, the number of functions per step."
        )
    if core is None:
        raise errors.InvalidInput(
            f"`core` is missing: the engine has synchronous={synchronous}. Call "
            "`apply_gradients(gradients, core=...)` with the index of the core in the step, "
            f"from 0 to {synchronous - 1}."
        )
    number = tf.convert_to_tensor(core)
    if not number.dtype.is_integer or number.shape.rank not in (0, None):
        raise errors.WrongType(f"`core` must be an int or a scalar integer tensor, got {core!r}.")
    number = tf.get_static_value(number)
    if number is not None and not 0 <= int(number) < synchronous:
        raise errors.InvalidInput(
            f"`core`={int(number)} is out of range: a step has {synchronous} cores, 0 to "
            f"{synchronous - 1}."
        )


def _read_config(
    feature_config: Nest, optimizer: Object, pipeline: bool
) -> tuple[specs.EngineSpec, Sequence[Object], bool]:
    if isinstance(feature_config, specs.EngineSpec):
        of_spec = {"optimizer": optimizer, "pipeline_execution_with_tensor_core": pipeline}
        for name, value in of_spec.items():
            if value:
                raise errors.InvalidSpec(
                    f"`{name}`={value!r} is passed together with an EngineSpec; set it in the spec."
                )
        return feature_config, [table.name for table in feature_config.tables], True
    has_optimizers = specs.has_optimizers(feature_config, optimizer)
    spec = specs.from_feature_config(
        feature_config,
        optimizer if has_optimizers else specs.NO_UPDATES,
        pipeline_execution_with_tensor_core=pipeline,
    )
    return spec, specs.table_configs(feature_config), has_optimizers
