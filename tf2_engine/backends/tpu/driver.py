"""The six verbs on a TPU, as six families of `tf.raw_ops`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf2_engine import errors, tf_compat
from tf2_engine.backends.interface import Driver, building_graph
from tf2_engine.backends.tpu import checks
from tf2_engine.backends.tpu import topology as topologies
from tf2_engine.backends.tpu.cores import Reader, TpuCores
from tf2_engine.backends.tpu.topology import Topology
from tf2_engine.batch import RawIds
from tf2_engine.config_proto import config_proto
from tf2_engine.cores import Cores
from tf2_engine.plan import FeaturePlan, Plan, TablePlan, shard_shapes
from tf2_engine.tables import PARAMETERS, Table

_SYSTEM = "/device:TPU_SYSTEM:0"


class TpuDriver(Driver):
    """The device does everything: looking up, updating, and keeping batches in order.

    `dequeue` and `send_gradients` speak for the core whose computation is being traced: they are
    called inside `strategy.run`, once for all cores, and take and return a single entry. `enqueue`
    works on both sides: outside of `strategy.run` it takes an entry for every core, inside a
    single one.

    Unlike `HostDriver`, a call out of order is noticed by the device only, which waits; and ids
    outside of their table are not looked for.

    Args:
        topology: the hosts and cores; None reads them from the current strategy.
        initialize: False leaves a TPU as it is that another engine has configured for the same
            tables.

    Raises:
        OutOfOrder: the current strategy is no TPUStrategy.
    """

    def __init__(self, topology: Topology | None = None, *, initialize: bool = True) -> None:
        self._topology = topology or topologies.read_topology(tf.distribute.get_strategy())
        self._initialize = initialize
        self._plan: Plan | None = None
        self._config = b""
        self._transfers: dict[str, tuple[Mapping[str, Table], Any]] = {}

    def __repr__(self) -> str:
        tables = len(self._plan.tables) if self._plan else 0
        cores, hosts = len(self._topology.cores), len(self._topology.hosts)
        return f"<TpuDriver {tables} tables, {cores} cores on {hosts} hosts>"

    @classmethod
    def for_engine(cls, *, initialize: bool) -> TpuDriver:
        """Returns the driver of an engine that is made under the current TPUStrategy.

        Raises:
            OutOfOrder: the current strategy is no TPUStrategy.
            InvalidSpec: the TPU has no embedding hardware of the kind that is driven here.
        """
        strategy = tf.distribute.get_strategy()
        driver = cls(initialize=initialize)
        topologies.check_hardware(strategy)
        return driver

    def cores(self, count: int | None, hosts: int | None) -> Cores:
        return TpuCores(self, count, hosts)

    @property
    def topology(self) -> Topology:
        """The hosts and cores that the driver feeds."""
        return self._topology

    @property
    def inside_computation(self) -> bool:
        """Whether the computation of a core is being traced, as within `strategy.run`."""
        return tf_compat.tpu_computation_graph() is not None

    def initialized(self) -> bool | None:
        """Whether the TPU is configured for embeddings; None in a `tf.Graph`, which cannot ask."""
        with tf.init_scope():
            if not tf.executing_eagerly():
                return None
            return bool(tf.raw_ops.IsTPUEmbeddingInitialized())

    def configure(self, plan: Plan) -> Any:
        """Gets ready to run `plan`; state of an earlier plan is dropped.

        Raises:
            InvalidSpec: a setting of the plan cannot be honoured by a TPU; the message names it.
            OutOfOrder: the TPU is configured for embeddings already. (In a `tf.Graph`, and while
                a tf.function is traced, it is an InvalidArgumentError when the op runs.)
        """
        _check_plan(plan, self._topology)
        config = config_proto(plan)
        if self._topology.cores_per_replica is not None:
            config.spmd_sharding.enabled = True
            config.spmd_sharding.num_cores_per_replica = self._topology.cores_per_replica
        serialized = config.SerializeToString()
        done = _configure(serialized) if self._initialize else _nothing()
        self._plan, self._config, self._transfers = plan, serialized, {}
        return done

    def load(self, tables: Mapping[str, Table]) -> Any:
        return self._transfer("load", self._load, tables)

    def retrieve(self, tables: Mapping[str, Table]) -> Any:
        if not self._ready().training:
            return _nothing()  # lookups change no row
        return self._transfer("retrieve", self._retrieve, tables)

    def enqueue(
        self,
        inputs: Sequence[Sequence[RawIds] | Reader | None],
        training: Any,
        name: str | None = None,
    ) -> Any:
        """Hands over one batch.

        Args:
            inputs: for each core its features; or better a function that reads them (see
                `tpu_cores.readers`), which is called where the ops belong: on the host of the
                core. None for a core whose part comes with another call. Inside `strategy.run` a
                single entry.
            training: whether gradients will come back; a bool or a scalar bool tensor.
            name: an attribute of the op, by which it is paired with `dequeue` and
                `send_gradients` of the same name.

        Raises:
            ControlFlow: the call is in control flow inside `strategy.run`.
            InvalidInput: there is not one entry per core; an input does not fit its feature.
        """
        self._ready()
        computation = tf_compat.tpu_computation_graph()
        checks.check_control_flow(computation, tf.compat.v1.get_default_graph())
        if computation is not None:
            (own,) = self._one_per_core(inputs, 1)
            # A rewrite of the graph finds out the core, and may turn training into inference:
            # it looks for both constants, also when it is known which of them is chosen.
            done = tf.compat.v1.tpu.outside_compilation(
                lambda: self._enqueue_one(own, -1, _either_mode(training), name)
            )
            return done if building_graph() else None
        ops = []
        cores = self._topology.cores
        for core, own in zip(cores, self._one_per_core(inputs, len(cores)), strict=True):
            if own is not None:
                with tf.device(core.host):
                    ops.append(self._enqueue_one(own, core.ordinal, _mode(training), name))
        return tf.group(*ops) if building_graph() else None

    def dequeue(self, name: str | None = None) -> Sequence[Sequence[Any]]:
        """Returns the activations of the oldest batch that was not looked up yet.

        Returns:
            A single entry, for the core whose computation is traced; per feature
            [*output_shape, dim] float32. With model parallelism the first dimension is that of
            the replica: it is multiplied by the cores per replica.
        """
        plan = self._ready()
        activations = tf.raw_ops.RecvTPUEmbeddingActivations(
            num_outputs=len(plan.features), config=self._config
        )
        if name is not None and not tf.executing_eagerly():
            tf_compat.name_embedding_op(activations[0].op, name)
        return [list(activations)]

    def send_gradients(
        self, gradients: Sequence[Sequence[Any]], rates: Sequence[Any], name: str | None = None
    ) -> Any:
        """Updates the tables with the gradients of the oldest training batch looked up.

        Args:
            gradients: a single entry, as `dequeue` returns; per feature the shape of the
                activation, float32.
            rates: the dynamic learning rates by tag, scalar float32.
            name: as that of `enqueue`.
        """
        plan = self._ready()
        (own,) = self._one_per_core(gradients, 1)
        op = tf.raw_ops.SendTPUEmbeddingGradients(
            # The device needs static shapes, which some ops forget.
            inputs=[
                tf.reshape(gradient, self._activation_shape(feature))
                for feature, gradient in zip(plan.features, own, strict=True)
            ],
            learning_rates=list(rates),
            config=self._config,
        )
        if name is not None and not tf.executing_eagerly():
            tf_compat.name_embedding_op(op, name)
        return op if building_graph() else None

    def check_inputs(self, values: Sequence[tuple[str, Any]]) -> None:
        """Refuses ids and weights that the device cannot take from where they are.

        Args:
            values: how messages name an input, and the input, as the user passed it: a Tensor,
                SparseTensor or RaggedTensor of one replica.

        Raises:
            InvalidInput: an input is on a TPU, or was computed inside `strategy.run`.
            ControlFlow: the call is in control flow inside `strategy.run`.
        """
        computation = tf_compat.tpu_computation_graph()
        checks.check_control_flow(computation, tf.compat.v1.get_default_graph())
        for where, value in values:
            checks.check_on_host(where, value)
            if computation is not None:
                checks.check_direct(where, value)

    def _ready(self) -> Plan:
        if self._plan is None:
            raise errors.OutOfOrder("The driver is not configured; `configure` comes first.")
        return self._plan

    def _one_per_core(self, entries: Sequence[Any], count: int) -> Sequence[Any]:
        if len(entries) != count:
            raise errors.InvalidInput(
                f"There must be one entry per core, {count} here, got {len(entries)}. Inside "
                "`strategy.run` a call speaks for one core; outside of it, `enqueue` speaks for "
                f"all {len(self._topology.cores)}."
            )
        return entries

    def _activation_shape(self, feature: FeaturePlan) -> list[int]:
        first, *rest = (size for size in feature.output_shape if size is not None)
        return [first * (self._topology.cores_per_replica or 1), *rest, feature.table.dim]

    def _transfer(
        self,
        verb: str,
        transfer: Callable[[Plan, Mapping[str, Table]], list[Any]],
        tables: Mapping[str, Table],
    ) -> Any:
        plan = self._ready()
        if not tf.executing_eagerly():
            ops = transfer(plan, tables)
            return tf.group(*ops) if building_graph() else None
        known, run = self._transfers.get(verb, (None, None))
        if known is not tables or run is None:
            # One call to the hosts instead of one per op, traced once. Tables are captured and
            # not passed: tf.function cannot take every kind of mapping.
            run = _as_function(lambda: transfer(plan, tables))
            self._transfers[verb] = tables, run
        run()
        return None

    def _load(self, plan: Plan, tables: Mapping[str, Table]) -> list[Any]:
        ops = []
        for shard, table in itertools.product(range(plan.num_hosts), plan.tables):
            with tf.device(self._topology.hosts[shard]):
                load = getattr(tf.raw_ops, f"LoadTPUEmbedding{table.optimizer.op_name}Parameters")
                values = {
                    name: _shard(plan, table, tables[table.name], name, shard)
                    for name in (PARAMETERS, *table.optimizer.slot_names)
                }
                ops.append(load(**values, **self._shard_attributes(plan, table, shard)))
        return ops

    def _retrieve(self, plan: Plan, tables: Mapping[str, Table]) -> list[Any]:
        ops = []
        for shard, table in itertools.product(range(plan.num_hosts), plan.tables):
            with tf.device(self._topology.hosts[shard]):
                name = f"RetrieveTPUEmbedding{table.optimizer.op_name}Parameters"
                retrieve = getattr(tf.raw_ops, name)
                values = retrieve(**self._shard_attributes(plan, table, shard))
                # Without slots it is a tensor, with them a namedtuple.
                by_name = values._asdict() if table.optimizer.slot_names else {PARAMETERS: values}
                for name, value in by_name.items():
                    variables = tables[table.name].variables[name]
                    if shard < len(variables):
                        ops.append(variables[shard].assign(value, read_value=False))
        return ops

    def _shard_attributes(self, plan: Plan, table: TablePlan, shard: int) -> dict[str, Any]:
        # The proto is large and the runtime reads it from the first op only; repeating it would
        # cost tables × hosts copies in the graph.
        is_first = shard == 0 and table is plan.tables[0]
        return {
            "table_name": table.name,
            "num_shards": plan.num_hosts,
            "shard_id": shard,
            "config": self._config if is_first else b"",
        }

    def _enqueue_one(
        self, given: Sequence[RawIds] | Reader, ordinal: int, mode: Any, name: str | None
    ) -> Any:
        plan = self._ready()
        features = given() if callable(given) else given
        # Stands for what is not there: the index of dense ids, and weights of one.
        no_index, no_weight = tf.zeros([0], tf.int32), tf.zeros([0], tf.float32)
        op = tf.raw_ops.EnqueueTPUEmbeddingArbitraryTensorBatch(
            sample_indices_or_row_splits=[
                no_index if raw.index is None else _index(feature, raw)
                for feature, raw in zip(plan.features, features, strict=True)
            ],
            embedding_indices=[raw.ids for raw in features],
            aggregation_weights=[
                no_weight if raw.weight is None else raw.weight for raw in features
            ],
            mode_override=mode,
            device_ordinal=ordinal,
            combiners=[table.combiner for table in plan.tables],
        )
        if name is not None and not tf.executing_eagerly():
            tf_compat.name_embedding_op(op, name)
        return op


def _check_plan(plan: Plan, topology: Topology) -> None:
    found = len(topology.hosts), len(topology.cores)
    if (plan.num_hosts, plan.num_cores) != found:
        raise errors.InvalidSpec(
            f"The plan is for {plan.num_cores} cores on {plan.num_hosts} hosts, but the TPU has "
            f"{found[1]} on {found[0]}. Take `num_cores` and `num_hosts` from the topology."
        )
    if plan.out_of_range_ids == "drop":
        raise errors.InvalidSpec(
            "out_of_range_ids='drop' is not possible on a TPU: the device takes ids as they are. "
            "Remove such ids in the dataset, or use driver='host'."
        )
    for table in plan.tables:
        if not table.optimizer.looks_up_rows:
            raise errors.InvalidSpec(
                f"Table {table.name!r}: with {table.optimizer!r} what is looked up is computed "
                "from the rows, but a TPU looks rows up as they are. Compute it from the "
                "activations in the model, or use driver='host'."
            )
        if not hasattr(tf.raw_ops, f"LoadTPUEmbedding{table.optimizer.op_name}Parameters"):
            raise errors.InvalidSpec(
                f"Table {table.name!r}: TensorFlow {tf.__version__} has no op that loads the "
                f"slots of `{type(table.optimizer).__name__}` onto a TPU. Use another optimizer, "
                "or driver='host'."
            )


def _nothing() -> Any:
    return tf.no_op() if building_graph() else None


def _configure(config: bytes) -> Any:
    initialized = tf.raw_ops.IsTPUEmbeddingInitialized()
    if not tf.executing_eagerly():
        free = tf.debugging.Assert(tf.logical_not(initialized), [checks.ALREADY_INITIALIZED])
        with tf.control_dependencies([free]):
            op = _configure_op(config)
        return op if building_graph() else None
    if initialized:
        raise errors.OutOfOrder(checks.ALREADY_INITIALIZED)
    # A rewrite of graphs makes of this op what runs on the hosts; eagerly there is none.
    _as_function(lambda: _configure_op(config))()
    return None


def _as_function(build: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        build()

    return tf.function(run, autograph=False)


def _configure_op(config: bytes) -> Any:
    with tf.device(_SYSTEM):
        return tf.raw_ops.ConfigureTPUEmbedding(config=config)


def _index(feature: FeaturePlan, raw: RawIds) -> Any:
    """Returns row splits, or coordinates with one column more than the activation has axes."""
    index = tf.cast(raw.index, tf.int32)
    if raw.kind == "ragged":
        return index
    axes, rank = len(feature.output_shape), raw.index.shape.as_list()[-1]
    if rank == axes and feature.max_sequence_length:
        # A position of a sequence holds one id: a third column counts it.
        return tf.pad(index, [[0, 0], [0, 1]])
    if rank != axes + 1:
        raise errors.InvalidInput(
            f"{feature.where}: a sparse tensor of rank {rank} does not fit an activation of "
            f"{feature.output_shape}."
        )
    return index


def _shard(plan: Plan, table: TablePlan, held: Table, name: str, shard: int) -> Any:
    shape = shard_shapes(table, plan.num_hosts)[shard]
    if name not in held.variables:
        # A plan for lookups alone makes no slots, but the op takes them all the same.
        return tf.fill(shape, table.optimizer.slot_initial_values()[name])
    shards = held.variables[name]
    return shards[shard] if shard < len(shards) else tf.zeros_like(shards[0])


def _mode(training: Any) -> Any:
    if isinstance(training, tf.Tensor):
        return _either_mode(training)
    return "train" if training else "inference"


def _either_mode(training: Any) -> Any:
    return tf.where(training, tf.constant("train"), tf.constant("inference"))
