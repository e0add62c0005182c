"""Builds a step of a TPU program with stock's TPUEmbedding and with the engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

import tf2_engine
from compat_tests.support import fake_tpu
from tf2_engine.backends.tpu.driver import TpuDriver
from tf2_engine.backends.tpu.topology import Topology, read_topology
from tf2_engine.batch import Batch, FeatureBatch
from tf2_engine.plan import Plan, make_plan

CONFIG = tf.tpu.experimental.embedding
BATCH = 8
LAYER = "layer"

TOPOLOGIES = ((1, 1), (1, 2), (2, 4))
OPTIMIZERS = sorted(
    name for name in tf2_engine.OPTIMIZERS if hasattr(tf.tpu.experimental.embedding, name)
)
"""The optimizers that both the engine and stock's TPUEmbedding have."""

NO_DYNAMIC_BATCH = tf.distribute.RunOptions(experimental_enable_dynamic_batch_size=False)


# The model: tables with three combiners, one with a single row, and features of every kind.


def rate() -> Any:
    return tf.constant(0.5, tf.float64)


def feature_config(kinds: Sequence[str] | None = None) -> dict[str, Any]:
    """Creates stock's configuration with the features `kinds`, by default all."""
    optimizer = fake_tpu.stock_optimizer("SGD", learning_rate=0.25, clip_weight_max=3.0)
    videos = CONFIG.TableConfig(10, 4, name="videos", combiner="mean")
    only = CONFIG.TableConfig(1, 8, name="only", combiner="sum")
    unnamed = CONFIG.TableConfig(7, 2, combiner="sqrtn", optimizer=optimizer)
    feature = CONFIG.FeatureConfig
    every = {
        "dense": feature(videos, name="dense"),
        "column": feature(only),
        "sparse": feature(unnamed, name="sparse"),
        "cube": feature(videos, name="cube"),
        "weighted": feature(videos, name="weighted"),
        "sequence": feature(only, name="sequence", max_sequence_length=3),
        "ragged": feature(videos, name="ragged"),
        "weighted_ragged": feature(unnamed, name="weighted_ragged"),
        "ragged_sequence": feature(unnamed, name="ragged_sequence", max_sequence_length=2),
    }
    return {key: every[key] for key in kinds or every}


def ids_of(kind: str, replica: int) -> Any:
    name = f"{kind}_{replica}"
    if kind == "dense":
        return placeholder(tf.int32, [BATCH], name)
    if kind == "column":
        return placeholder(tf.int64, [BATCH, 1], name)
    if kind == "cube":
        return sparse(tf.int32, name, [BATCH, 2, 4])
    if "ragged" in kind:
        return ragged(tf.int32, name)
    return sparse(tf.int64, name)


def weights_of(kind: str, replica: int) -> Any:
    """Creates placeholders for a feature's weights, or returns None."""
    name = f"weight_of_{kind}_{replica}"
    if kind == "weighted":
        return sparse(tf.float64, name)
    return ragged(tf.float32, name) if kind == "weighted_ragged" else None


def placeholder(dtype: Any, shape: Any, name: str) -> Any:
    return tf.compat.v1.placeholder(dtype, shape, name)


def sparse(dtype: Any, name: str, shape: Sequence[int] = (BATCH, 5)) -> Any:
    indices = placeholder(tf.int64, [None, len(shape)], f"{name}_indices")
    values = placeholder(dtype, [None], f"{name}_values")
    return tf.SparseTensor(indices, values, tf.constant(list(shape), tf.int64))


def ragged(dtype: Any, name: str) -> Any:
    values = placeholder(dtype, [None], f"{name}_values")
    splits = placeholder(tf.int64, [BATCH + 1], f"{name}_splits")
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


# A step with stock's class or ours.


@dataclasses.dataclass(frozen=True)
class Case:
    """The settings of a graph to build.

    Attributes:
        inside: whether to enqueue within `strategy.run`, and not before it.
        device: the only core for which to enqueue a batch; None means all.
        kinds: the features; None means all.
        name: the name of the layer.
        reverse: whether the TPU lists its last core first.
    """

    num_hosts: int = 1
    cores_per_host: int = 2
    optimizer: str = "Adagrad"
    inside: bool = False
    training: bool = True
    cores_per_replica: int | None = None
    device: str | None = None
    kinds: tuple[str, ...] | None = None
    name: str | None = LAYER
    reverse: bool = False

    def __str__(self) -> str:
        set_fields = [
            f"{field.name}={getattr(self, field.name)}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        ]
        return "-".join(set_fields) or "default"

    def strategy(self) -> Any:
        return fake_tpu.strategy(
            self.num_hosts,
            self.cores_per_host,
            cores_per_replica=self.cores_per_replica,
            order=(lambda devices: devices[::-1]) if self.reverse else list,
        )


class Inputs(NamedTuple):
    """The inputs of a step: each feature's ids and weights, as one tensor per replica."""

    ids: dict[str, list[Any]]
    weights: dict[str, list[Any]]

    def distributed(self, strategy: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        def one(values: list[Any]) -> Any:
            return None if values[0] is None else fake_tpu.distribute(strategy, values)

        ids = {kind: one(values) for kind, values in self.ids.items()}
        return ids, {kind: one(values) for kind, values in self.weights.items()}


def inputs(kinds: Sequence[str], num_replicas: int) -> Inputs:
    return Inputs(
        {kind: [ids_of(kind, replica) for replica in range(num_replicas)] for kind in kinds},
        {kind: [weights_of(kind, replica) for replica in range(num_replicas)] for kind in kinds},
    )


class _Engine:
    """The calls that stock's TPUEmbedding and the engine have in common."""

    _embedding: Any

    def enqueue(self, ids: Any, weights: Any, **options: Any) -> Any:
        return self._embedding.enqueue(ids, weights, **options)

    def finish(self, training: bool, name: str | None) -> None:
        activations = self._embedding.dequeue(name=name)
        if training:
            gradients = {kind: 2.0 * value for kind, value in activations.items()}
            self._embedding.apply_gradients(gradients, name=name)


class Stock(_Engine):
    """Stock's TPUEmbedding."""

    def __init__(self, case: Case, strategy: Any, shapes: Mapping[str, Any]) -> None:
        optimizer = fake_tpu.stock_optimizer(case.optimizer, learning_rate=rate)
        with strategy.scope():
            self._embedding = CONFIG.TPUEmbedding(feature_config(case.kinds), optimizer)
            self._embedding.build(dict(shapes))

    def retrieve(self) -> None:
        self._embedding._retrieve_variables()


class Ours(_Engine):
    """The engine under a TPUStrategy.

    Attributes:
        driver: the engine's driver.
        cores: the engine's cores.
        plan: the plan that the driver runs.
        tables: the engine's tables.
    """

    def __init__(self, case: Case, strategy: Any, shapes: Mapping[str, Any]) -> None:
        optimizer = fake_tpu.stock_optimizer(case.optimizer, learning_rate=rate)
        with strategy.scope():
            self._embedding = tf2_engine.TPUEmbedding(feature_config(case.kinds), optimizer)
            self._embedding.build({kind: padded(shape) for kind, shape in shapes.items()})
        driver = self._embedding._driver
        assert isinstance(driver, TpuDriver)
        self.driver = driver
        self.cores = self._embedding._cores
        self.plan = self._embedding.plan
        self.tables = self._embedding.tables

    def retrieve(self) -> None:
        self._embedding.retrieve()


def step_inputs(*parts: Sequence[Any]) -> Batch:
    """Creates a batch without weights from each replica's ids of all features."""
    return Batch(
        {replica: [FeatureBatch(ids, None) for ids in part] for replica, part in enumerate(parts)}
    )


def padded(shape: Any) -> Any:
    """Converts the shape of a core's ids to one for `build`, which needs rank 2 or more."""
    return shape if shape.rank > 1 else [*shape, 1]


def build(kind: type[Stock] | type[Ours], case: Case) -> tf.Graph:
    """Builds a graph that loads the tables, runs a step, and retrieves the tables."""
    with tf.Graph().as_default() as graph, fake_tpu.stock_builds():
        strategy = case.strategy()
        kinds = case.kinds or tuple(feature_config())
        replicas = strategy.num_replicas_in_sync
        step_inputs = inputs(kinds, replicas)
        engine = kind(case, strategy, core_shapes(step_inputs, case.cores_per_replica))
        options = {"training": case.training, "name": case.name}
        if case.inside:

            def step(ids: Any, weights: Any) -> None:
                engine.enqueue(ids, weights, **options)
                engine.finish(case.training, case.name)

            strategy.run(step, args=step_inputs.distributed(strategy), options=NO_DYNAMIC_BATCH)
        else:
            if case.device is None:
                engine.enqueue(*step_inputs.distributed(strategy), **options)
            else:
                first = [{key: of[key][0] for key in of} for of in step_inputs]
                engine.enqueue(*first, **options, device=case.device)
            strategy.run(lambda: engine.finish(case.training, case.name))
        engine.retrieve()
    return graph


def core_shapes(step_inputs: Inputs, cores_per_replica: int | None) -> dict[str, Any]:
    shapes = {}
    for kind, values in step_inputs.ids.items():
        first, *rest = values[0].shape.as_list()
        shapes[kind] = tf.TensorShape([first // (cores_per_replica or 1), *rest])
    return shapes


# Variables, and behaviour without a graph.


def built(case: Case, strategy: Any) -> Ours:
    """Builds our engine without creating ops that only a TPU can run."""
    with tf.Graph().as_default():
        step_inputs = inputs(case.kinds or (), strategy.num_replicas_in_sync)
        shapes = core_shapes(step_inputs, None)
    with fake_tpu.recorded():
        return Ours(case, strategy, shapes)


def plan_of(*tables: Any, num_hosts: int = 1, num_cores: int = 1, **options: Any) -> Plan:
    features = tuple(
        tf2_engine.FeatureSpec(f"of_{table.name}", table.name, output_shape=(BATCH,))
        for table in tables
    )
    spec = tf2_engine.EngineSpec(tables, features, **options)
    return make_plan(spec, [(BATCH,)] * len(tables), num_hosts=num_hosts, num_cores=num_cores)


def host(task: int) -> str:
    return f"/job:worker/replica:0/task:{task}/device:CPU:0"


def topology(num_hosts: int = 1, cores_per_host: int = 1, job: str = "worker") -> Topology:
    """Reads the topology of a TPU without a device assignment."""
    return read_topology(fake_tpu.strategy(num_hosts, cores_per_host, job=job))
