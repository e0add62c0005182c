"""What an engine has once it is built: a plan, tables, and a driver that is configured for them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf2_engine import errors, shapes, slots, structure, tf_compat
from tf2_engine.autograph import as_written
from tf2_engine.backends.interface import Driver, building_graph
from tf2_engine.batch import as_tensor
from tf2_engine.checkpoint import Checkpointed
from tf2_engine.config_proto import config_proto
from tf2_engine.cores import Cores
from tf2_engine.plan import Plan, Shape, make_plan
from tf2_engine.specs import EngineSpec
from tf2_engine.tables import PARAMETERS, Table, VariableFactory, create_tables


class BuiltOnce(Checkpointed):
    """An engine's plan and tables, which `build` or the first batch makes.

    Args:
        table_keys: what `embedding_tables` calls the tables, in the order of the spec.
        training: whether tables have slots and are updated.
        batch_size: the global batch size, or None.
        verify_output_shapes: whether a batch may decide shapes, and is checked against them.
    """

    def __init__(
        self,
        spec: EngineSpec,
        table_keys: Sequence[Any],
        driver: Driver,
        cores: Cores,
        *,
        training: bool,
        batch_size: int | None,
        verify_output_shapes: bool,
        variable_factory: VariableFactory | None,
    ) -> None:
        self._spec = spec
        self._table_keys = table_keys
        self._driver = driver
        self._cores = cores
        self._training = training
        self._variable_factory = variable_factory or cores.variable_factory(spec)
        self.verify_output_shapes = verify_output_shapes
        self._batch_size = shapes.per_core(batch_size, cores.count)
        self._plan: Plan | None = None
        self._built_by: Any = None
        self._tables: dict[str, Table] = {}

    def __repr__(self) -> str:
        state = "built" if self._plan else "not built"
        return f"<TPUEmbedding {len(self._spec.tables)} tables, {self._driver!r}, {state}>"

    @property
    def plan(self) -> Plan:
        """The plan that the driver runs.

        Raises:
            OutOfOrder: the engine is not built.
        """
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
        """The parameters of every table: [vocabulary, dim] float32.

        Keyed by the `TableConfig` that was passed in; by name for an `EngineSpec`. A variable; of
        several hosts their shards, as one variable where rows are in order ("div"), and in a tuple
        with "mod".

        Raises:
            OutOfOrder: the engine is not built; or a TPU holds the tables, and no SavedModel is
                being written, for which they were brought up to date.
        """
        plan = self._check_tables_are_here("embedding_tables")
        found = {}
        for key, table in zip(self._table_keys, plan.tables, strict=True):
            # Hosts beyond the vocabulary have rows that no id means.
            shards = self._tables[table.name].variables[PARAMETERS][: table.vocabulary_size]
            in_order = plan.partition_strategy == "div" or len(shards) == 1
            found[key] = slots.whole(shards, table.name) if in_order else shards
        return found

    @as_written
    def build(
        self, per_replica_input_shapes: Any = None, per_replica_batch_size: Any = None
    ) -> Any:
        """Makes the plan and the variables, and configures the driver; nothing if it is done.

        The shape of an activation comes from the feature's `output_shape`, else from here, else
        from the first batch.

        Args:
            per_replica_input_shapes: the structure of the feature config with the shape of each
                input as a tuple, list or TensorShape: [*output_shape, anything]. (Where a replica
                has several cores, these are the shapes for one of them, as stock takes them.)
            per_replica_batch_size: deprecated: samples per replica, for inputs of rank 2. An int as
                `per_replica_input_shapes` is the same.

        Returns:
            In a `tf.Graph` two ops: one configures the driver, the other hands it the tables. They
            are to be run once, in this order, after variables are initialised. (A host needs
            neither.) A later call returns them again.

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
        if self._plan is None:
            self.build_for(shapes.from_arguments(self._spec, per_replica_input_shapes, size))
        return self._built_by

    def build_for(self, output_shapes: Sequence[Shape]) -> Any:
        """Builds for the shapes of activations, without their last dimension, in feature order.

        Returns:
            As `build`.
        """
        if self._plan is None:
            self._build(self._make_plan(output_shapes))
        return self._built_by

    @as_written
    def build_for_batch(self, features: Any) -> None:
        """Builds for batches like this one, of any size off a TPU; nothing if it is done.

        Args:
            features: as those of `enqueue`, for one replica. Nothing is looked up.

        Raises:
            As `enqueue`.
        """
        if self._plan is None:
            flat = structure.flatten(self._spec.structure, features, "features")
            values = [as_tensor(value) for value in flat]
            found = shapes.from_values(self._spec, values, self._cores.per_replica)
            self._build(self._plan_of(found, fixed=self._cores.tables_are_elsewhere))

    def _make_plan(self, output_shapes: Sequence[Shape]) -> Plan:
        return make_plan(
            self._spec,
            output_shapes,
            num_hosts=self._cores.hosts,
            num_cores=self._cores.count,
            training=self._training,
        )

    def _build(self, plan: Plan) -> None:
        # Inside a tf.function variables and queues belong outside of it; in a plain graph they
        # belong to the graph.
        with tf.init_scope():
            tables = create_tables(plan, self._variable_factory)
            self._track_tables(self._spec, tables)
            done = (self._driver.configure(plan), self._driver.load(tables))
            self._built_by = done if building_graph() else None
        self._plan, self._tables = plan, tables

    @as_written
    def load(self) -> Any:
        """Makes the driver take over the values of the variables, as after a restore."""
        return op(self._driver.load(self._tables))

    @as_written
    def retrieve(self) -> Any:
        """Brings the variables up to date, as before a checkpoint."""
        return op(self._driver.retrieve(self._tables))

    def _plan_of(self, found: Sequence[Shape], *, fixed: bool) -> Plan:
        """Returns the plan that a first batch leads to.

        Args:
            found: its shapes; if not `fixed`, batches of other sizes may follow.
        """
        if not self.verify_output_shapes:
            raise errors.InvalidSpec(
                "With verify_output_shapes=False the shapes are not taken from batches; call "
                "`build` with them before the first batch."
            )
        if not fixed:
            found = [(None, *shape[1:]) for shape in found]
        return self._make_plan(shapes.with_batch_size(self._spec, found, self._batch_size))

    def _check_trains(self, call: str) -> Plan:
        plan = self._built(call)
        if not plan.training:
            raise errors.OutOfOrder(
                f"`{call}` is not possible: the engine has no optimizer, or was made with "
                "training=False."
            )
        return plan

    def _check_tables_are_here(self, call: str) -> Plan:
        plan = self._built(call)
        if self._cores.tables_are_elsewhere and not tf_compat.in_saved_model_export():
            raise errors.OutOfOrder(
                f"`{call}` cannot read the tables under a TPUStrategy: the TPU holds them, and the "
                "variables are brought up to date only when a checkpoint is written. Save one and "
                "restore it into an engine that is made outside of the TPUStrategy."
            )
        return plan

    def _built(self, call: str) -> Plan:
        if self._plan is None:
            raise errors.OutOfOrder(
                f"`{call}` is called on an engine that is not built; call `enqueue` first, or "
                "`build`."
            )
        return self._plan


def op(done: Any) -> Any:
    """Returns what a call returns: the op to run in a plain graph, else nothing."""
    # Outside of a graph the call has taken effect, and a tf.function may not return an op.
    return done if building_graph() else None
