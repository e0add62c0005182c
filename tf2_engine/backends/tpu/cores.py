"""The cores of a TPU, and checks for plans, inputs and calls that a TPU does not support."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import tensorflow as tf

from tf2_engine import errors, tf_compat
from tf2_engine.backends.interface import EngineCores, OnCores, ReadCore, Value, device_inside_run
from tf2_engine.backends.tpu import topology
from tf2_engine.batch import Batch
from tf2_engine.plan import Plan
from tf2_engine.tables import variable_factory
from tf2_engine.types import Graph, Ids, Nest, Op, Tensor


class TpuCores(EngineCores):
    """The cores of a TPUStrategy.

    A call inside `strategy.run` is traced once and runs on every core. The calls of
    different cores are not merged, because the device synchronizes the cores.
    """

    tables_on_device = True
    _queues_batches = True
    _inside = (
        "On a TPU each core looks up its own batch. Make this call inside the function that "
        "`strategy.run` runs."
    )

    def __init__(self, of_tpu: topology.Topology, count: int | None, hosts: int | None) -> None:
        self._strategy = tf.distribute.get_strategy()
        self._topology = of_tpu
        self.count, self.hosts = len(of_tpu.cores), len(of_tpu.hosts)
        self.per_replica = of_tpu.cores_per_replica or 1
        self.variable_factory = variable_factory(of_tpu.hosts)
        for name, expected, actual in (
            ("num_cores", count, self.count),
            ("num_hosts", hosts, self.hosts),
        ):
            if expected not in (None, actual):
                raise errors.InvalidSpec(
                    f"`{name}`={expected}, but the TPU has {actual}. Leave `{name}` out."
                )

    def call(
        self,
        name: str,
        values: Mapping[str, Nest],
        read: ReadCore[Value],
        function: OnCores[Value],
        *,
        from_host: bool = False,
    ) -> Nest:
        if tf_compat.tpu_computation_graph() is not None:
            results = function({0: read(values)})
            return results[0] if isinstance(results, list) else results
        if not (from_host and self._queues_batches):
            raise errors.OutOfOrder(f"`{name}` is called outside of `strategy.run`. {self._inside}")
        parts = topology.per_replica(self._strategy, dict(values))
        return function({core: read(part) for core, part in enumerate(parts)})

    def core_of(self, device: str) -> int:
        if tf_compat.tpu_computation_graph() is not None:
            raise device_inside_run(device)
        return self._topology.core_of(device)

    def initialized(self) -> bool | None:
        with tf.init_scope():
            if not tf.executing_eagerly():
                return None
            return bool(tf.raw_ops.IsTPUEmbeddingInitialized())

    def check(self, plan: Plan, batch: Batch) -> None:
        computation = tf_compat.tpu_computation_graph()
        check_control_flow(computation)
        for part in batch.parts.values():
            for feature, values in zip(plan.features, part, strict=True):
                for value in values:
                    check_on_host(feature.where, value)
                    if computation is not None:
                        check_direct(feature.where, value)


ALREADY_INITIALIZED = (
    "The TPU is already initialized for embeddings. This may be caused by several engines under "
    "one TPUStrategy, which a TPU does not support. Use one engine for all tables, or call "
    "`tf.tpu.experimental.initialize_tpu_system` before you make another engine. That call clears "
    "the tables, so save a checkpoint first."
)


def check_control_flow(computation: Graph | None) -> None:
    """Refuses `enqueue` in control flow in `strategy.run`: the call cannot be moved to the host.

    `computation` is the graph in which the TPU computation began, if any.
    """
    current = tf.compat.v1.get_default_graph()
    if computation is not None and computation is not current:
        raise errors.ControlFlow(
            "`enqueue` is called inside control flow (tf.cond, tf.while_loop) or a tf.function "
            f"within `strategy.run`: the current graph {_name(current)} is not the graph "
            f"{_name(computation)} in which the TPU computation began. Such a call cannot be "
            "moved to the host. Enqueue at the top of the function that `strategy.run` calls, or "
            "before `strategy.run`."
        )


def check_direct(where: str, value: Ids | None) -> None:
    for tensor in _components(value):
        op = tensor.op
        if op.type != "Placeholder" and not _is_argument(op):
            raise errors.InvalidInput(
                f"{where}: inside `strategy.run` an input of `enqueue` must be an argument of the "
                "function that `strategy.run` calls, unchanged. This input is the output of op "
                f"{op.name!r} ({op.type}). Compute the input before `strategy.run`, for instance "
                "in the dataset, or enqueue before `strategy.run`. If the program does not contain "
                "this op, TensorFlow or Keras added it. TensorFlow adds ops to support dynamic "
                "batch sizes, unless you pass `options=tf.distribute.RunOptions(experimental_"
                "enable_dynamic_batch_size=False)` to `strategy.run`. Keras adds a cast, unless "
                "the Keras `Input` has the dtype of the tensor."
            )


def check_on_host(where: str, value: Ids | None) -> None:
    for tensor in _components(value):
        for source in _sources(tensor):
            if source.device and tf.DeviceSpec.from_string(source.device).device_type == "TPU":
                raise errors.InvalidInput(
                    f"{where}: the input is on a TPU ({source.device}), but `enqueue` takes inputs "
                    "from the host. Keep the dataset's elements on the host: distribute the "
                    "dataset with tf.distribute.InputOptions(experimental_fetch_to_device=False)."
                )


def check_plan(plan: Plan, num_hosts: int, num_cores: int) -> None:
    if (plan.num_hosts, plan.num_cores) != (num_hosts, num_cores):
        raise errors.InvalidSpec(
            f"The plan is for {plan.num_cores} cores on {plan.num_hosts} hosts, but the TPU has "
            f"{num_cores} cores on {num_hosts} hosts. Take `num_cores` and `num_hosts` from the "
            "topology."
        )
    if plan.out_of_range_ids == "drop":
        raise errors.InvalidSpec(
            "out_of_range_ids='drop' is not possible on a TPU, because the device does not check "
            "ids. Remove ids that are out of range in the dataset, or use driver='host'."
        )
    for table in plan.tables:
        if not table.optimizer.looks_up_rows:
            raise errors.InvalidSpec(
                f"Table {table.name!r}: with {table.optimizer!r} an activation is computed from "
                "the stored row, but a TPU can only return stored rows. Compute the activation "
                "in the model, from the row that the TPU returns, or use driver='host'."
            )
        if not hasattr(tf.raw_ops, f"LoadTPUEmbedding{table.optimizer.op_name}Parameters"):
            raise errors.InvalidSpec(
                f"Table {table.name!r}: TensorFlow {tf.__version__} has no op that loads the "
                f"slots of `{type(table.optimizer).__name__}` onto a TPU. Use another optimizer, "
                "or driver='host'."
            )


def _components(value: Ids | None) -> Iterator[Tensor]:
    # `strategy.run` splits composite tensors into their components.
    leaves = tf.nest.flatten(value, expand_composites=True)
    return (leaf for leaf in leaves if isinstance(leaf, tf.Tensor))


def _sources(tensor: Tensor) -> tuple[Tensor, ...]:
    if not hasattr(tensor, "graph"):
        return (tensor,)
    op = tensor.op
    if op.type == "Identity" and op.inputs[0].op.type == "TPUReplicatedInput":
        return tuple(op.inputs[0].op.inputs)
    return (tensor,)


def _is_argument(op: Op) -> bool:
    # `strategy.run` marks its arguments for the device's compiler.
    try:
        return bool(op.get_attr(tf_compat.ARGUMENT_ATTRIBUTE))
    except ValueError:
        return False


def _name(graph: Graph) -> str:
    return repr(getattr(graph, "name", None) or type(graph).__name__)
