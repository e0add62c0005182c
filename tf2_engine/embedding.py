"""The mid-level API: enqueue a batch, dequeue its activations, apply gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf2_engine import errors, gradients, shapes, specs, structure, tf_compat
from tf2_engine.autograph import as_written
from tf2_engine.backends import DRIVERS
from tf2_engine.backends.interface import Driver
from tf2_engine.backends.tpu import topology
from tf2_engine.batch import as_tensor
from tf2_engine.building import BuiltOnce, op
from tf2_engine.cores import ByCore
from tf2_engine.plan import Plan
from tf2_engine.serving import cpu_embedding_lookup
from tf2_engine.tables import VariableFactory


class TPUEmbedding(BuiltOnce):
    """Embedding tables that are looked up and trained with the arithmetic of a TPU.

    Works eagerly, in tf.functions and in a `tf.Graph`. In a graph the methods return ops, and
    whoever runs the graph runs them. Under a strategy of several replicas a step is global: the
    gradients of all replicas are summed and each row is updated once. Under a TPUStrategy the TPU
    does the work: `dequeue` and `apply_gradients` belong inside `strategy.run` then, while
    `enqueue` may be called on both sides.

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
        driver: what runs the plan, by name or as an object; None is "tpu" under a TPUStrategy,
            else "host".
        num_cores: cores to emulate on one machine; None is one per replica of the strategy.
            Outside of a strategy, batches, activations and gradients of several cores are lists
            with one entry per core.
        num_hosts: hosts whose row placement to emulate; None is one, or those of the TPU.
        training: False makes no slots and looks up alone.
        variable_factory: makes the variables of the tables; see `tables.create_tables`.

    Raises:
        InvalidSpec: a setting cannot be honoured; the message names it.
        OutOfOrder: driver="tpu" without a TPUStrategy; or the TPU is to be initialised already
            and is not.
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
        driver: str | Driver | None = None,
        num_cores: int | None = None,
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
                f"TPUEmbedding takes 3 positional arguments, got {3 + len(more)}. (In the form of "
                "TF 2.3 the second is the batch size, an int.)"
            )
        spec, table_keys, has_optimizers = _read_config(
            feature_config, optimizer, pipeline_execution_with_tensor_core
        )
        made = (
            driver if isinstance(driver, Driver) else _make_driver(driver, initialize_tpu_embedding)
        )
        if not initialize_tpu_embedding and made.initialized() is False:
            raise errors.OutOfOrder(
                "initialize_tpu_embedding=False, but no other engine has initialised the embedding "
                "hardware. Create that one first, or leave initialize_tpu_embedding True."
            )
        super().__init__(
            spec,
            table_keys,
            made,
            made.cores(num_cores, num_hosts),
            training=training and has_optimizers,
            batch_size=batch_size,
            verify_output_shapes=verify_output_shapes,
            variable_factory=variable_factory,
        )

    @as_written
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
        cores = self._cores
        if cores.speaking_for_itself():
            if device is not None:
                raise errors.InvalidInput(
                    f"`device`={device!r}: inside `strategy.run` each replica enqueues for itself; "
                    "leave it out."
                )

            def all_of_them(values: ByCore) -> None:
                parts = {core: value[0] for core, value in values.items()}
                weight = None if weights is None else {c: v[1] for c, v in values.items()}
                mode = next(iter(values.values()))[2]
                return self._enqueue(parts, weight, mode, name)

            return cores.meet("enqueue", all_of_them, (features, weights, training))
        if device is not None:
            core = cores.core_of(device)
            own = None if weights is None else {core: weights}
            return self._enqueue({core: features}, own, training, name, whole=False)
        parts = cores.split(features, "features")
        all_weights = None if weights is None else cores.split(weights, "weights")
        return self._enqueue(parts, all_weights, training, name)

    @as_written
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

        if self._cores.speaking_for_itself():
            return self._cores.meet("dequeue", all_of_them, ())
        self._cores.check_outside("dequeue")
        return _one_or_list(all_of_them())

    @as_written
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
        plan = self._check_trains("apply_gradients")
        if self._cores.speaking_for_itself():
            flat = self._read_gradients(plan, gradients)
            return self._cores.meet(
                "apply_gradients",
                lambda values: self._send(plan, list(values.values()), name),
                flat,
            )
        self._cores.check_outside("apply_gradients")
        per_core = self._cores.split(gradients, "gradients").values()
        return self._send(plan, [self._read_gradients(plan, core) for core in per_core], name)

    @as_written
    def differentiable_lookup(
        self,
        features: Any,
        weights: Any = None,
        training: bool | None = None,
        name: str | None = None,
    ) -> tuple[Any, Callable[[Any], Any]]:
        """Looks features up at once, and returns what trains on them, if gradients come.

        For those who call before it is known whether a step trains, a Keras layer for instance.
        Unlike an enqueued batch, one whose gradients never come waits nowhere. Off a TPU batches
        may differ in size, unless the engine has a batch size.

        Args:
            features, weights: as those of `enqueue`.
            training: None where it is not known; False if no gradients can come: an update that is
                pending is applied before then.
            name: tells the batches of a graph from each other; on a TPU it must be given.

        Returns:
            What `dequeue` returns, and a function that takes gradients of that structure and
            updates the tables, as `apply_gradients` does. It returns the op, or None eagerly.

        Raises:
            As `enqueue`, and the function as `apply_gradients`.
        """
        cores = self._cores
        update: dict[str, Any] = {}

        def look_up(values: ByCore) -> list[Any]:
            parts = {core: value[0] for core, value in values.items()}
            own = None if weights is None else {core: v[1] for core, v in values.items()}
            inputs = self._inputs(parts, own, fixed=cores.tables_are_elsewhere)
            # Where replicas meet, one of them acts for all, the same one at both meetings.
            activations, update["send"] = self._driver.look_up(inputs, training, name)
            return [structure.pack(self.plan.structure, core) for core in activations]

        inside = cores.speaking_for_itself()
        if inside:
            found = cores.meet("differentiable_lookup", look_up, (features, weights))
        else:
            cores.check_outside("differentiable_lookup")
            parts = cores.split((features, weights), "features")
            found = _one_or_list(look_up(parts))

        def send(flat: Sequence[Sequence[Any]]) -> Any:
            return update["send"](flat, self._rates(self.plan))

        def apply_gradients(gradients: Any) -> Any:
            plan = self._check_trains("apply_gradients")
            if inside:
                own = self._read_gradients(plan, gradients)
                return cores.meet("apply_gradients", lambda all_: send(list(all_.values())), own)
            per_core = cores.split(gradients, "gradients").values()
            return send([self._read_gradients(plan, core) for core in per_core])

        return found, apply_gradients

    @as_written
    def embedding_lookup(self, features: Any, weights: Any = None) -> Any:
        """Looks features up at once: no batch is enqueued, and no gradients are awaited.

        Numbers are those of `dequeue`, and updates that wait are applied first. Inside of a
        SavedModel the ops are TensorFlow's own.

        Args:
            features, weights: as those of `enqueue`, for a single core, of any batch size;
                features may be left out.

        Returns:
            The structure of `features`; for each feature [*output_shape, dim] float32.

        Raises:
            OutOfOrder: as `embedding_tables`.
            InvalidInput, WrongType: an input does not fit; the message names the feature.
        """
        self._check_tables_are_here("embedding_lookup")
        done = None if tf_compat.in_saved_model_export() else self._driver.retrieve(self._tables)
        with tf.control_dependencies([] if done is None or tf.executing_eagerly() else [done]):
            return cpu_embedding_lookup(features, weights, self._tables, self._spec)

    __call__ = embedding_lookup

    def _enqueue(
        self,
        features: ByCore,
        weights: ByCore | None,
        training: Any,
        name: str | None,
        whole: bool = True,
    ) -> Any:
        """Enqueues what replicas pass, or if not `whole`, what is passed for a single core."""
        inputs = self._inputs(features, weights, whole=whole)
        return op(self._driver.enqueue(inputs, training, name))

    def _inputs(
        self,
        features: ByCore,
        weights: ByCore | None,
        *,
        whole: bool = True,
        fixed: bool = True,
    ) -> Sequence[Any]:
        """Returns what the driver takes, checked; the first batch builds the engine.

        Args:
            fixed: whether a first batch also fixes the size of those to come.
        """
        nest = self._spec.structure
        values = {
            core: [as_tensor(value) for value in structure.flatten(nest, part, "features")]
            for core, part in features.items()
        }
        found = [
            shapes.from_values(self._spec, own, self._cores.per_replica if whole else 1)
            for own in values.values()
        ]
        plan = self._plan or self._plan_of(found[0], fixed=fixed)
        if self.verify_output_shapes:
            built = [feature.output_shape for feature in plan.features]
            for shape in found:
                shapes.check(self._spec, built, shape)
        flat_weights = {
            core: [None] * len(own)
            if weights is None
            else structure.flatten(nest, weights[core], "weights")
            for core, own in values.items()
        }

        def build_once() -> None:
            # Only a batch that can be enqueued decides the shapes.
            if self._plan is None:
                self._build(plan)

        return self._cores.inputs(plan, values, flat_weights, build_once, whole=whole)

    def _read_gradients(self, plan: Plan, nest: Any) -> list[Any]:
        flat = structure.flatten(plan.structure, nest, "gradients")
        return [
            gradients.read(feature, value, self._cores.per_replica)
            for feature, value in zip(plan.features, flat, strict=True)
        ]

    def _send(self, plan: Plan, gradients: Sequence[Sequence[Any]], name: str | None) -> Any:
        return op(self._driver.send_gradients(gradients, self._rates(plan), name))

    def _rates(self, plan: Plan) -> list[Any]:
        return [tf.cast(rate(), tf.float32) for rate in plan.dynamic_rates]


def _read_config(
    feature_config: Any, optimizer: Any, pipeline: bool
) -> tuple[specs.EngineSpec, list[Any], bool]:
    """Returns the spec, what its tables are called by, and whether any of them is trained."""
    if isinstance(feature_config, specs.EngineSpec):
        for name, value in (
            ("optimizer", optimizer),
            ("pipeline_execution_with_tensor_core", pipeline),
        ):
            if value:
                raise errors.InvalidSpec(
                    f"`{name}`={value!r} is given beside an EngineSpec; set it in the spec."
                )
        return feature_config, [table.name for table in feature_config.tables], True
    has_optimizers = specs.has_optimizers(feature_config, optimizer)
    spec = specs.from_feature_config(
        feature_config,
        optimizer if has_optimizers else specs.NO_UPDATES,
        pipeline_execution_with_tensor_core=pipeline,
    )
    return spec, specs.table_configs(feature_config), has_optimizers


def _make_driver(name: str | None, initialize: bool) -> Driver:
    if name is None:
        name = "tpu" if topology.is_tpu(tf.distribute.get_strategy()) else "host"
    if name not in DRIVERS:
        raise errors.InvalidSpec(f"`driver` must be one of {', '.join(DRIVERS)}, got {name!r}.")
    return DRIVERS[name].for_engine(initialize=initialize)


def _one_or_list(per_core: list[Any]) -> Any:
    return per_core if len(per_core) > 1 else per_core[0]
