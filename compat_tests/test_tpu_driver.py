"""The TPU driver builds the graphs that stock's TPUEmbedding builds, op for op.

Oracle: stock's own code, run beside ours on a topology that is not there. What it takes to run
these graphs is not here; every op, attribute, device, input and control input of them is.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import tf2_engine
from compat_tests import fake_tpu
from tf2_engine import errors, tf_compat
from tf2_engine.drivers import DRIVERS, tpu_cores, tpu_topology
from tf2_engine.drivers.tpu import TpuDriver
from tf2_engine.drivers.tpu_topology import Core, Topology
from tf2_engine.plan import Plan, make_plan
from tf2_engine.tables import create_tables

CONFIG = tf.tpu.experimental.embedding
BATCH = 8
LAYER = "layer"

TOPOLOGIES = ((1, 1), (1, 2), (2, 4))
OPTIMIZERS = sorted(
    name for name in tf2_engine.OPTIMIZERS if hasattr(tf.tpu.experimental.embedding, name)
)
"""Those of the engine that stock's TPUEmbedding has too."""

NO_DYNAMIC_BATCH = tf.distribute.RunOptions(experimental_enable_dynamic_batch_size=False)


# The model: tables of three combiners, one smaller than two hosts, and features of every kind.


def rate() -> Any:
    """A learning rate that the graph computes."""
    return tf.constant(0.5, tf.float64)


def feature_config(kinds: Sequence[str] | None = None) -> dict[str, Any]:
    """Returns stock's configuration; `kinds` are the features, or all."""
    own = fake_tpu.stock_optimizer("SGD", learning_rate=0.25, clip_weight_max=3.0)
    videos = CONFIG.TableConfig(10, 4, name="videos", combiner="mean")
    only = CONFIG.TableConfig(1, 8, name="only", combiner="sum")
    unnamed = CONFIG.TableConfig(7, 2, combiner="sqrtn", optimizer=own)
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
    """Returns the placeholders of a feature's ids."""
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
    """Returns the placeholders of a feature's weights, or None."""
    name = f"weight_of_{kind}_{replica}"
    if kind == "weighted":
        return sparse(tf.float64, name)
    return ragged(tf.float32, name) if kind == "weighted_ragged" else None


def placeholder(dtype: Any, shape: Any, name: str) -> Any:
    """Returns a placeholder."""
    return tf.compat.v1.placeholder(dtype, shape, name)


def sparse(dtype: Any, name: str, shape: Sequence[int] = (BATCH, 5)) -> Any:
    """Returns a SparseTensor of placeholders."""
    indices = placeholder(tf.int64, [None, len(shape)], f"{name}_indices")
    values = placeholder(dtype, [None], f"{name}_values")
    return tf.SparseTensor(indices, values, tf.constant(list(shape), tf.int64))


def ragged(dtype: Any, name: str) -> Any:
    """Returns a RaggedTensor of placeholders, with a row per sample."""
    values = placeholder(dtype, [None], f"{name}_values")
    splits = placeholder(tf.int64, [BATCH + 1], f"{name}_splits")
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


# A step of stock and of ours.


@dataclasses.dataclass(frozen=True)
class Case:
    """A graph to build.

    Attributes:
        inside: enqueue within `strategy.run`, not before it.
        device: the one core that is fed; None is all.
        kinds: the features; None is all.
        name: of the layer.
        reverse: the TPU names its last core first.
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
    """What a step is given: by feature, per replica."""

    ids: dict[str, list[Any]]
    weights: dict[str, list[Any]]

    def distributed(self, strategy: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        def one(values: list[Any]) -> Any:
            return None if values[0] is None else fake_tpu.distribute(strategy, values)

        ids = {kind: one(values) for kind, values in self.ids.items()}
        return ids, {kind: one(values) for kind, values in self.weights.items()}


def inputs(kinds: Sequence[str], num_replicas: int) -> Inputs:
    """Returns the placeholders of a step."""
    return Inputs(
        {kind: [ids_of(kind, replica) for replica in range(num_replicas)] for kind in kinds},
        {kind: [weights_of(kind, replica) for replica in range(num_replicas)] for kind in kinds},
    )


class Stock:
    """Stock's TPUEmbedding."""

    def __init__(self, case: Case, strategy: Any, shapes: Mapping[str, Any]) -> None:
        optimizer = fake_tpu.stock_optimizer(case.optimizer, learning_rate=rate)
        with strategy.scope():
            self._embedding = CONFIG.TPUEmbedding(feature_config(case.kinds), optimizer)
            self._embedding.build(dict(shapes))

    def enqueue(self, ids: Any, weights: Any, **options: Any) -> Any:
        return self._embedding.enqueue(ids, weights, **options)

    def finish(self, training: bool, name: str | None) -> None:
        activations = self._embedding.dequeue(name=name)
        if training:
            gradients = {kind: 2.0 * value for kind, value in activations.items()}
            self._embedding.apply_gradients(gradients, name=name)

    def retrieve(self) -> None:
        self._embedding._retrieve_variables()


class Ours:
    """The engine under a TPUStrategy.

    Attributes:
        driver: its driver.
        plan: what it runs.
        tables: the variables.
    """

    def __init__(self, case: Case, strategy: Any, shapes: Mapping[str, Any]) -> None:
        optimizer = fake_tpu.stock_optimizer(case.optimizer, learning_rate=rate)
        with strategy.scope():
            self._embedding = tf2_engine.TPUEmbedding(feature_config(case.kinds), optimizer)
            self._embedding.build({kind: padded(shape) for kind, shape in shapes.items()})
        driver = self._embedding._driver
        assert isinstance(driver, TpuDriver)
        self.driver = driver
        self.plan = self._embedding.plan
        self.tables = self._embedding.tables

    def enqueue(self, ids: Any, weights: Any, **options: Any) -> Any:
        return self._embedding.enqueue(ids, weights, **options)

    def finish(self, training: bool, name: str | None) -> None:
        activations = self._embedding.dequeue(name)
        if training:
            gradients = {kind: 2.0 * value for kind, value in activations.items()}
            self._embedding.apply_gradients(gradients, name)

    def retrieve(self) -> None:
        self._embedding.retrieve()


def padded(shape: Any) -> Any:
    """Returns the shape of a core's ids as `build` takes it, with rank 2 or above."""
    return shape if shape.rank > 1 else [*shape, 1]


def build(kind: type[Stock] | type[Ours], case: Case) -> tf.Graph:
    """Returns the graph of a step, after a load and before a retrieve."""
    with tf.Graph().as_default() as graph, fake_tpu.stock_builds():
        strategy = case.strategy()
        kinds = case.kinds or tuple(feature_config())
        replicas = strategy.num_replicas_in_sync
        given = inputs(kinds, replicas)
        engine = kind(case, strategy, core_shapes(given, case.cores_per_replica))
        options = {"training": case.training, "name": case.name}
        if case.inside:

            def step(ids: Any, weights: Any) -> None:
                engine.enqueue(ids, weights, **options)
                engine.finish(case.training, case.name)

            strategy.run(step, args=given.distributed(strategy), options=NO_DYNAMIC_BATCH)
        else:
            if case.device is None:
                engine.enqueue(*given.distributed(strategy), **options)
            else:
                first = [{key: of[key][0] for key in of} for of in given]
                engine.enqueue(*first, **options, device=case.device)
            strategy.run(lambda: engine.finish(case.training, case.name))
        engine.retrieve()
    return graph


def core_shapes(given: Inputs, cores_per_replica: int | None) -> dict[str, Any]:
    """Returns the shape of each core's ids, by feature."""
    shapes = {}
    for kind, values in given.ids.items():
        first, *rest = values[0].shape.as_list()
        shapes[kind] = tf.TensorShape([first // (cores_per_replica or 1), *rest])
    return shapes


# What may differ, and nothing else may.


class Difference(NamedTuple):
    """Ops that only one of the two graphs has."""

    side: str
    reason: str
    holds: Callable[[Any], bool]


TABLES = ("videos", "only", "table_0", "table_1", "table_2")


def is_whole_table(op: Any) -> bool:
    """Whether an op is the variable of a whole table or slot, or reads it."""
    if op.type == "ReadVariableOp":
        return is_whole_table(op.inputs[0].op)
    if op.type != "VarHandleOp":
        return False
    table, _, slot = op.get_attr("shared_name").decode().partition("/")
    return table in TABLES and not slot[-2:].startswith("_")


def is_read_back(op: Any) -> bool:
    """Whether an op reads what a retrieve op has just put into a variable."""
    assigned = [other for other in op.control_inputs if other.type == "AssignVariableOp"]
    return op.type == "ReadVariableOp" and any(
        assign.inputs[1].op.type.startswith("RetrieveTPUEmbedding") for assign in assigned
    )


def is_initialized_check(op: Any) -> bool:
    """Whether an op belongs to the check that the TPU is not initialized."""
    if op.type in ("Assert", "LogicalNot"):
        return is_initialized_check(op.inputs[0].op)
    return op.type == "IsTPUEmbeddingInitialized"


def is_group(op: Any) -> bool:
    """Whether an op stands for all ops of a verb."""
    grouped = ("AssignVariableOp", "Load", "Enqueue")
    return op.type == "NoOp" and any(
        other.type.startswith(grouped) or is_group(other) for other in op.control_inputs
    )


def is_unused_size(op: Any) -> bool:
    """Whether an op takes a size that nothing uses."""
    return op.type == "StridedSlice" and not op.outputs[0].consumers()


def is_filling(op: Any) -> bool:
    """Whether an op fills the first rows of a slot with a number."""
    if op.type == "PlaceholderWithDefault":
        return all(is_filling(user) for user in op.outputs[0].consumers())
    return op.type == "Fill" and all(
        user.type == "AssignVariableOp" for user in op.outputs[0].consumers()
    )


def filled_with(op: Any) -> tuple[Any, ...] | None:
    """Returns what rows of one number are, a constant or not: their number and shape."""
    if op.type == "Fill":
        (number,) = op.inputs[1].op.inputs
        rows, shape = tf.get_static_value(number), tuple(tf.get_static_value(op.inputs[0]))
    elif op.type == "Const" and op.outputs[0].shape.rank == 2:
        rows, shape = tf.get_static_value(op.outputs[0]), tuple(op.outputs[0].shape)
    else:
        return None
    return (
        ("filled", op.outputs[0].dtype, float(np.max(rows)), shape) if np.ptp(rows) == 0 else None
    )


DIFFERENCES = (
    Difference(
        "ours",
        "slots are filled with a number: a constant as large would take a table's memory for good",
        is_filling,
    ),
    Difference(
        "stock",
        "its sharded variables have a handle for the whole table, for signatures of SavedModels",
        is_whole_table,
    ),
    Difference("stock", "it reads a variable after it assigned what was retrieved", is_read_back),
    Difference(
        "ours",
        "in a graph, too, it is checked that the TPU is not initialized; stock fails there",
        is_initialized_check,
    ),
    Difference("ours", "read_ids measures batches; here nothing uses it", is_unused_size),
    Difference("ours", "a verb returns one op for all its ops", is_group),
)

IGNORED_ATTRIBUTES = {
    "_has_manual_control_dependencies": "ours: marks the ops that a group waits for",
}


def removed(graph: tf.Graph, side: str) -> dict[Any, Difference]:
    """Returns the ops of a graph that may be there, each with its reason."""
    found = {}
    for op in graph.get_operations():
        for difference in DIFFERENCES:
            if difference.side == side and difference.holds(op):
                found[op] = difference
    return found


class Graph:
    """The ops of a graph, but for those that may be there.

    Attributes:
        counts: how many ops there are of each number. Constants count through what uses them.
        descriptions: by number, for messages; inputs are numbers.
    """

    def __init__(self, graph: tf.Graph, side: str, numbers: dict[Any, int]) -> None:
        self._leave_out = removed(graph, side)
        self._numbers = numbers
        self._known: dict[Any, int] = {}
        self.descriptions: dict[int, Any] = {}
        self.counts = collections.Counter(
            self._number(op)
            for op in graph.get_operations()
            if op not in self._leave_out and op.type != "Const"
        )

    def _number(self, op: Any) -> int:
        if op not in self._known:
            description = filled_with(op) or (
                op.type,
                op.device,
                op.name if op.type == "Placeholder" else "",
                *(
                    f"{name}={str(value).strip()}"
                    for name, value in sorted(op.node_def.attr.items())
                    if name not in IGNORED_ATTRIBUTES
                ),
                *((self._number(source.op), source.value_index) for source in self._sources(op)),
                *sorted(self._number(o) for o in op.control_inputs if o not in self._leave_out),
            )
            number = self._numbers.setdefault(description, len(self._numbers))
            self._known[op], self.descriptions[number] = number, description
        return self._known[op]

    def _sources(self, op: Any) -> Iterator[Any]:
        for tensor in op.inputs:
            while tensor.op in self._leave_out and tensor.op.type == "Identity":
                tensor = tensor.op.inputs[0]
            yield tensor


def differences(stock: tf.Graph, ours: tf.Graph) -> list[str]:
    """Returns the ops that only one graph has, without what only follows from them."""
    numbers: dict[Any, int] = {}
    sides = {"stock": Graph(stock, "stock", numbers), "ours": Graph(ours, "ours", numbers)}
    alone = {
        "stock": sides["stock"].counts - sides["ours"].counts,
        "ours": sides["ours"].counts - sides["stock"].counts,
    }
    found = []
    for side, counts in alone.items():
        for number, count in counts.items():
            op = sides[side].descriptions[number]
            used = {part[0] if isinstance(part, tuple) else part for part in op}
            if not used & set(counts):
                found.append(f"{side} alone, {count} times: {op}")
    return found


@functools.cache
def graphs(case: Case) -> tuple[tf.Graph, tf.Graph]:
    """Returns stock's graph of a case, and ours."""
    return build(Stock, case), build(Ours, case)


def counted(graph: tf.Graph) -> dict[str, int]:
    """Returns how many ops of each kind only a TPU has, without how a computation is replicated."""
    kinds = collections.Counter(
        op.type for op in graph.get_operations() if "TPUEmbedding" in op.type
    )
    return dict(kinds)


EVERY_OPTIMIZER = [
    Case(hosts, cores, optimizer) for hosts, cores in TOPOLOGIES for optimizer in OPTIMIZERS
]
OTHER_CASES = [
    *(Case(hosts, cores, inside=True) for hosts, cores in TOPOLOGIES),
    Case(2, 4, reverse=True),
    Case(2, 4, training=False),
    Case(1, 2, training=False, inside=True),
    Case(name=None),
    Case(name=None, inside=True),
    Case(2, 4, device="/job:worker/replica:0/task:1/device:TPU:2"),
    Case(device="/job:worker/replica:0/task:0/device:TPU:0", training=False, name=None),
    # Model parallelism; what is ragged cannot be split.
    Case(2, 4, cores_per_replica=1, kinds=("dense", "column", "sparse", "weighted", "sequence")),
    Case(2, 4, cores_per_replica=2, kinds=("dense", "sparse", "weighted")),
    # Stock expects gradients of a wrong shape for these, [8, 8] for activations of [8, 2].
    Case(1, 4, cores_per_replica=4, kinds=("cube", "sequence"), training=False),
]
CASES = EVERY_OPTIMIZER + OTHER_CASES


@pytest.mark.parametrize("case", CASES, ids=str)
def test_graphs_are_those_of_stock(case: Case) -> None:
    """Every op has stock's type, attributes, device and inputs, and there are no others."""
    assert differences(*graphs(case)) == []


def test_every_difference_is_still_one() -> None:
    """Each entry of the list of differences is met in some case, and so is each attribute."""
    met, attributes = set(), set()
    for case in OTHER_CASES:
        for graph, side in zip(graphs(case), ("stock", "ours"), strict=True):
            met |= {difference.reason for difference in removed(graph, side).values()}
            attributes |= {name for op in graph.get_operations() for name in op.node_def.attr}

    assert met == {difference.reason for difference in DIFFERENCES}
    assert attributes >= set(IGNORED_ATTRIBUTES)


def test_stock_and_engine_share_optimizers() -> None:
    """The optimizers compared here include the three that there always were."""
    assert {"SGD", "Adagrad", "Adam"} <= set(OPTIMIZERS)


@pytest.mark.parametrize("num_hosts, cores_per_host", TOPOLOGIES)
def test_there_is_an_op_per_core_host_and_table(num_hosts: int, cores_per_host: int) -> None:
    """Ids go to each core, rows to each host for each table, and a step is traced once."""
    graph = graphs(Case(num_hosts, cores_per_host, "Adam"))[1]

    assert counted(graph) == {
        "IsTPUEmbeddingInitialized": 1,
        "ConfigureTPUEmbedding": 1,
        "LoadTPUEmbeddingADAMParameters": 2 * num_hosts,
        "LoadTPUEmbeddingStochasticGradientDescentParameters": num_hosts,
        "EnqueueTPUEmbeddingArbitraryTensorBatch": num_hosts * cores_per_host,
        "RecvTPUEmbeddingActivations": 1,
        "SendTPUEmbeddingGradients": 1,
        "RetrieveTPUEmbeddingADAMParameters": 2 * num_hosts,
        "RetrieveTPUEmbeddingStochasticGradientDescentParameters": num_hosts,
    }


# A step as a tf.function, which is how a TPU is used. The one host is this machine.


def traced(kind: type[Stock] | type[Ours], case: Case) -> tf.Graph:
    """Returns the graph of the tf.function of a step; the engine is built eagerly."""
    strategy = fake_tpu.strategy(1, case.cores_per_host, job="localhost")
    with tf.Graph().as_default():
        given = inputs(tuple(feature_config()), strategy.num_replicas_in_sync)
        shapes = core_shapes(given, None)
        signature = tf.nest.map_structure(spec_of, given)
    with fake_tpu.stock_builds(device_ops=False), fake_tpu.recorded():
        engine = kind(case, strategy, shapes)
    options = {"training": case.training, "name": case.name}

    def at_top(ids: Any, weights: Any) -> None:
        engine.enqueue(ids, weights, **options)
        engine.finish(case.training, case.name)

    @tf.function(autograph=False)
    def step(ids: Any, weights: Any) -> None:
        distributed = Inputs(ids, weights).distributed(strategy)
        if case.inside:
            strategy.run(at_top, args=distributed, options=NO_DYNAMIC_BATCH)
        else:
            engine.enqueue(*distributed, **options)
            strategy.run(lambda: engine.finish(case.training, case.name))

    return step.get_concrete_function(signature.ids, signature.weights).graph


def spec_of(value: Any) -> Any:
    """Returns what a tf.function is told about an input."""
    if value is None:
        return None
    if isinstance(value, tf.SparseTensor):
        return tf.SparseTensorSpec(value.shape, value.dtype)
    if isinstance(value, tf.RaggedTensor):
        return tf.RaggedTensorSpec(value.shape, value.dtype, ragged_rank=1)
    return tf.TensorSpec(value.shape, value.dtype)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("inside", [False, True])
def test_a_tf_function_is_traced_to_the_graph_of_stock(inside: bool, training: bool) -> None:
    """In a tf.function enqueue, dequeue and gradients become stock's ops, wherever they are."""
    case = Case(inside=inside, training=training)

    assert differences(traced(Stock, case), traced(Ours, case)) == []


# The comparison sees what it is for.


def with_argument(**changed: Any) -> Callable[..., Any]:
    """Makes an op with other arguments."""
    return lambda op, arguments: op(**{**arguments, **changed})


def with_another_config(op: Any, arguments: dict[str, Any]) -> Any:
    """Makes an op with the configuration of another engine."""
    config = tf_compat.TPUEmbeddingConfiguration.FromString(arguments["config"])
    config.pipeline_execution_with_tensor_core = True
    return op(**{**arguments, "config": config.SerializeToString()})


def without_weights(op: Any, arguments: dict[str, Any]) -> Any:
    """Makes an enqueue op that has lost its weights."""
    none = [tf.zeros([0], tf.float32)] * len(arguments["aggregation_weights"])
    return op(**{**arguments, "aggregation_weights": none})


def in_another_order(name: str) -> Callable[..., Any]:
    """Makes an op with one of its lists reversed."""
    return lambda op, arguments: op(**{**arguments, name: arguments[name][::-1]})


def elsewhere(op: Any, arguments: dict[str, Any]) -> Any:
    """Makes an op on the second host."""
    with tf.device("/job:worker/replica:0/task:1/device:CPU:0"):
        return op(**arguments)


def slots_swapped(op: Any, arguments: dict[str, Any]) -> Any:
    """Makes a load op of Adam that mixes up its slots."""
    swapped = {"momenta": arguments["velocities"], "velocities": arguments["momenta"]}
    return op(**{**arguments, **swapped})


def twice(op: Any, arguments: dict[str, Any]) -> Any:
    """Makes an op two times."""
    op(**arguments)
    return op(**arguments)


ENQUEUE = "EnqueueTPUEmbeddingArbitraryTensorBatch"
LOAD = "LoadTPUEmbeddingADAMParameters"
RETRIEVE = "RetrieveTPUEmbeddingADAMParameters"
MUTATIONS: dict[str, tuple[str, Callable[..., Any]]] = {
    "configured for something else": ("ConfigureTPUEmbedding", with_another_config),
    "configured elsewhere": ("ConfigureTPUEmbedding", elsewhere),
    "another core": (ENQUEUE, with_argument(device_ordinal=3)),
    "no combiners": (ENQUEUE, with_argument(combiners=[])),
    "combiners in another order": (ENQUEUE, in_another_order("combiners")),
    "another mode": (ENQUEUE, with_argument(mode_override="inference")),
    "no weights": (ENQUEUE, without_weights),
    "features in another order": (ENQUEUE, in_another_order("embedding_indices")),
    "fed from another host": (ENQUEUE, elsewhere),
    "fed twice": (ENQUEUE, twice),
    "received for something else": ("RecvTPUEmbeddingActivations", with_another_config),
    "sent for something else": ("SendTPUEmbeddingGradients", with_another_config),
    "no rates": ("SendTPUEmbeddingGradients", with_argument(learning_rates=[])),
    "gradients in another order": ("SendTPUEmbeddingGradients", in_another_order("inputs")),
    "another table": (LOAD, with_argument(table_name="only")),
    "another shard": (LOAD, with_argument(shard_id=0)),
    "another number of shards": (LOAD, with_argument(num_shards=1)),
    "slots swapped": (LOAD, slots_swapped),
    "loaded from another host": (LOAD, elsewhere),
    "loaded without the configuration": (LOAD, with_argument(config=b"")),
    "loaded with the configuration each time": (LOAD, with_argument(config=b"each time")),
    "another shard retrieved": (RETRIEVE, with_argument(shard_id=1)),
    "retrieved from another host": (RETRIEVE, elsewhere),
    "retrieved without the configuration": (RETRIEVE, with_argument(config=b"")),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_comparison_notices(mutation: str) -> None:
    """A driver that builds one kind of op in another way does not build stock's graph."""
    name, change = MUTATIONS[mutation]
    op = getattr(tf.raw_ops, name)
    case = Case(2, 1, "Adam")
    stock = graphs(case)[0]

    with mock.patch.object(tf.raw_ops, name, lambda **arguments: change(op, arguments)):
        ours = build(Ours, case)

    assert differences(stock, ours)


def test_the_comparison_notices_the_name_of_a_layer() -> None:
    """A driver that forgets the attribute with the name does not build stock's graph."""
    case = Case(2, 1, "Adam")
    with mock.patch.object(tf_compat, "name_embedding_op"):
        ours = build(Ours, case)

    assert len(differences(graphs(case)[0], ours)) >= 3


# Variables, and what happens without a graph.


def built(case: Case, strategy: Any) -> Ours:
    """Returns a driver that is ready to run; what only a TPU can run is left out."""
    with tf.Graph().as_default():
        given = inputs(case.kinds or (), strategy.num_replicas_in_sync)
        shapes = core_shapes(given, None)
    with fake_tpu.recorded():
        return Ours(case, strategy, shapes)


def plan_of(*tables: Any, num_hosts: int = 1, num_cores: int = 1, **options: Any) -> Plan:
    """Returns a plan with one feature of eight samples per table."""
    features = tuple(
        tf2_engine.FeatureSpec(f"of_{table.name}", table.name, output_shape=(BATCH,))
        for table in tables
    )
    spec = tf2_engine.EngineSpec(tables, features, **options)
    return make_plan(spec, [(BATCH,)] * len(tables), num_hosts=num_hosts, num_cores=num_cores)


def host(task: int) -> str:
    """Returns the device of a host."""
    return f"/job:worker/replica:0/task:{task}/device:CPU:0"


def topology(num_hosts: int = 1, cores_per_host: int = 1, job: str = "worker") -> Topology:
    """Returns the topology of a TPU without a device assignment."""
    return tpu_topology.read_topology(fake_tpu.strategy(num_hosts, cores_per_host, job=job))


def test_shards_are_variables_on_their_hosts() -> None:
    """Shards and slots have stock's names and places; a host without rows has none."""
    case = Case(2, 1, kinds=("sparse", "column"))
    with tf.Graph().as_default():
        tables = built(case, case.strategy()).tables
        held = {
            variable.name: (variable.shape.as_list(), variable.device, variable.trainable)
            for table in tables.values()
            for shards in table.variables.values()
            for variable in shards
        }

    assert held == {
        "only_0:0": ([1, 8], host(0), False),
        "only/accumulators_0:0": ([1, 8], host(0), False),
        "table_1_0:0": ([4, 2], host(0), False),
        "table_1_1:0": ([3, 2], host(1), False),
    }


def test_without_sizes_every_host_has_a_shard() -> None:
    """A factory that is not told the vocabularies makes the rows that the plan has."""
    plan = plan_of(
        tf2_engine.TableSpec("videos", 1, 4, optimizer=tf2_engine.SGD(1.0)),
        num_hosts=2,
        num_cores=2,
    )
    with tf.Graph().as_default():
        tables = create_tables(plan, tpu_cores.host_factory([host(0), host(1)]))

    shards = tables["videos"].variables["parameters"]
    assert [(shard.shape.as_list(), shard.device) for shard in shards] == [
        ([1, 4], host(0)),
        ([1, 4], host(1)),
    ]


def test_a_variable_is_not_mirrored_over_cores() -> None:
    """Under a TPUStrategy with four cores a shard is one variable."""
    with tf.Graph().as_default() as graph:
        built(Case(cores_per_host=4, kinds=("sparse",)), fake_tpu.strategy(1, 4))
        handles = [op for op in graph.get_operations() if op.type == "VarHandleOp"]

    assert len(handles) == 1


def test_eagerly_the_device_is_asked_configured_and_loaded() -> None:
    """Eagerly verbs take effect at once, in stock's order; the same tables are traced once."""
    strategy = fake_tpu.strategy(1, 2, job="localhost")
    with tf.Graph().as_default():
        shapes = core_shapes(inputs(("dense", "sparse"), 2), None)
    with fake_tpu.recorded() as made:
        ours = Ours(Case(kinds=("dense", "sparse")), strategy, shapes)
        built_by = [name for name, _ in made]
        later = []
        for tables in (ours.tables, ours.tables, dict(ours.tables)):
            made.clear()
            ours.driver.load(tables)
            later.append([name for name, _ in made])

    loads = [
        "LoadTPUEmbeddingAdagradParameters",
        "LoadTPUEmbeddingStochasticGradientDescentParameters",
    ]
    assert built_by == ["IsTPUEmbeddingInitialized", "ConfigureTPUEmbedding", *loads]
    # The first of these is traced since it is no longer in the scope of the strategy.
    assert later == [loads, [], loads]


def test_eagerly_retrieved_values_are_assigned() -> None:
    """What the device holds is in the variables after a retrieve: parameters and slots."""
    strategy = fake_tpu.strategy(1, 2, job="localhost")
    rows = collections.namedtuple("rows", ["parameters", "accumulators"])

    def retrieved(table: str, shard: int) -> Any:
        assert (table, shard) == ("videos", 0)
        return rows(tf.fill([10, 4], 3.0), tf.fill([10, 4], 5.0))

    with tf.Graph().as_default():
        shapes = core_shapes(inputs(("dense",), 2), None)
    with fake_tpu.recorded(retrieved=retrieved):
        ours = Ours(Case(kinds=("dense",)), strategy, shapes)
        ours.retrieve()

    variables = ours.tables["videos"].variables
    assert (variables["parameters"][0].numpy() == 3.0).all()
    assert (variables["accumulators"][0].numpy() == 5.0).all()


def test_verbs_return_ops_in_a_graph_alone() -> None:
    """In a graph every verb but dequeue returns something to run; in a function, nothing."""
    returned: dict[str, list[Any]] = {}

    def all_verbs(where: str) -> None:
        driver = TpuDriver(topology())
        plan = plan_of(tf2_engine.TableSpec("videos", 9, 4, optimizer=tf2_engine.SGD(1.0)))
        tables = create_tables(plan) if where == "graph" else held
        ids = tf.zeros([BATCH], tf.int64)
        returned[where] = [
            driver.configure(plan),
            driver.load(tables),
            driver.enqueue(tpu_cores.readers(plan, [[ids]]), True),
            driver.send_gradients(driver.dequeue(), []),
            driver.retrieve(tables),
        ]

    with tf.Graph().as_default():
        all_verbs("graph")
    held = create_tables(
        plan_of(tf2_engine.TableSpec("videos", 9, 4, optimizer=tf2_engine.SGD(1.0)))
    )
    tf.function(lambda: all_verbs("function"), autograph=False).get_concrete_function()

    assert all(isinstance(op, tf.Operation) for op in returned["graph"])
    assert returned["function"] == [None] * 5


def test_a_tensor_chooses_the_mode_when_the_step_runs() -> None:
    """Whether gradients come back may be known only then; the op takes either of two strings."""
    with tf.Graph().as_default() as graph:
        ours = built(Case(kinds=("dense",)), fake_tpu.strategy(1, 2, job="localhost"))
        training = tf.compat.v1.placeholder(tf.bool, [])
        ids = tf.zeros([BATCH], tf.int64)
        with fake_tpu.recorded() as made:
            ours.driver.enqueue(tpu_cores.readers(ours.plan, [[ids], [ids]]), training)
        modes = [arguments["mode_override"] for _, arguments in made]
        with tf.compat.v1.Session(graph=graph) as session:
            found = [session.run(modes, {training: value}) for value in (True, False)]

    assert found == [[b"train"] * 2, [b"inference"] * 2]


def test_ids_may_be_read_already() -> None:
    """Enqueue takes ids that were read before it, too."""
    with tf.Graph().as_default() as graph:
        ours = built(Case(cores_per_host=1, kinds=("dense",)), fake_tpu.strategy(1, 1))
        [read] = tpu_cores.readers(ours.plan, [[tf.range(BATCH)]])
        ours.driver.enqueue([read()], True)

    assert counted(graph)[ENQUEUE] == 1


@pytest.mark.parametrize("kind", tf2_engine.OPTIMIZERS)
def test_every_optimizer_of_the_engine_has_its_ops(kind: str) -> None:
    """The ops that load and retrieve know exactly the parameters and slots, in their order."""
    optimizer = tf2_engine.OPTIMIZERS[kind]
    names = ["parameters", *optimizer.slot_names]
    load = getattr(tf.raw_ops, f"LoadTPUEmbedding{optimizer.op_name}Parameters")
    retrieve = getattr(tf.raw_ops, f"RetrieveTPUEmbedding{optimizer.op_name}Parameters")
    with tf.Graph().as_default():
        values = retrieve(num_shards=1, shard_id=0, table_name="videos")

    assert list(inspect.signature(load).parameters)[: len(names) + 1] == [*names, "num_shards"]
    assert (list(values._fields) if len(names) > 1 else names) == names


def test_a_plan_for_lookups_loads_initial_slots_and_retrieves_nothing() -> None:
    """Without training there are no slot variables; the device gets what slots start with."""
    optimizer = tf2_engine.Adagrad(1.0, initial_accumulator_value=0.75)
    table = tf2_engine.TableSpec("videos", 9, 4, optimizer=optimizer)
    feature = tf2_engine.FeatureSpec("watched", "videos")
    spec = tf2_engine.EngineSpec((table,), (feature,))
    plan = make_plan(spec, [(BATCH,)], training=False)
    with tf.Graph().as_default() as graph, fake_tpu.recorded() as made:
        driver = TpuDriver(topology(job="localhost"))
        driver.configure(plan)
        tables = create_tables(plan)
        driver.load(tables)
        driver.retrieve(tables)
        with tf.compat.v1.Session(graph=graph) as session:
            slots = session.run(made[-1][1]["accumulators"])

    assert [name for name, _ in made][2:] == ["LoadTPUEmbeddingAdagradParameters"]
    assert slots.shape == (9, 4)
    assert (slots == 0.75).all()


def test_gradients_of_a_replica_have_the_samples_of_its_cores() -> None:
    """With two cores per replica the first dimension is doubled and no other, as dequeue does."""
    strategy = fake_tpu.strategy(1, 2, cores_per_replica=2)
    table = tf2_engine.TableSpec("videos", 9, 4, optimizer=tf2_engine.SGD(1.0))
    feature = tf2_engine.FeatureSpec("watched", "videos", 3)
    spec = tf2_engine.EngineSpec((table,), (feature,))
    plan = make_plan(spec, [(BATCH, 3)], num_cores=2)
    with tf.Graph().as_default() as graph, strategy.scope():
        driver = TpuDriver()
        driver.configure(plan)
        [[activation]] = driver.dequeue()
        driver.send_gradients([[activation]], [])
        [sent] = [op for op in graph.get_operations() if op.type == "SendTPUEmbeddingGradients"]

    assert activation.shape.as_list() == [2 * BATCH, 3, 4]
    assert sent.inputs[0].shape.as_list() == [2 * BATCH, 3, 4]


# The topology.


def test_hosts_and_cores_are_those_of_the_strategy() -> None:
    """Cores come in the order of the replicas, hosts in that of their tasks."""
    found = tpu_topology.read_topology(Case(2, 2, reverse=True).strategy())
    device = "/job:worker/replica:0/task:{}/device:TPU:{}"
    order = [(1, 1), (1, 0), (0, 1), (0, 0)]

    assert found == Topology(
        (host(0), host(1)),
        tuple(Core(device.format(task, core), host(task), core) for task, core in order),
    )


def test_a_device_assignment_has_cores_per_replica() -> None:
    """Model parallelism shows in the topology, also with one core per replica."""
    for cores in (1, 2):
        found = tpu_topology.read_topology(fake_tpu.strategy(2, 2, cores_per_replica=cores))
        assert len(found.cores) == 4
        assert found.cores_per_replica == cores


def test_a_strategy_that_stands_in_for_a_tpu_has_a_core_per_worker() -> None:
    """Devices that a strategy does not group by replica are one core each."""

    class Extended:
        worker_devices = ("/device:CPU:0", "/device:CPU:1")

    class StandIn:
        extended = Extended()

    devices, cores_per_replica = tf_compat.tpu_devices(StandIn())
    assert devices == [["/device:CPU:0"], ["/device:CPU:1"]]
    assert cores_per_replica is None


def test_what_is_not_distributed_is_the_same_for_every_replica() -> None:
    """A nest comes apart into one per replica, whatever its leaves are."""
    strategy = fake_tpu.strategy(1, 2)
    with tf.Graph().as_default():
        values = [sparse(tf.int64, "first"), sparse(tf.int64, "second")]
        nest = {"own": fake_tpu.distribute(strategy, values), "same": values[0], "none": None}
        found = tpu_topology.per_replica(strategy, nest)

    assert [replica["own"] for replica in found] == values
    assert [replica["same"] for replica in found] == [values[0]] * 2
    assert [replica["none"] for replica in found] == [None] * 2
    assert tpu_topology.per_replica(strategy, nest["own"]) == values


def test_a_device_names_its_core() -> None:
    """A core is named in full or in part, as long as it is one."""
    cores = topology(2, 4)
    assert cores.core_of("/job:worker/replica:0/task:1/device:TPU:2") == 6
    assert cores.core_of("/task:1/device:TPU:2") == 6
    assert topology(1, 4).core_of("TPU:3") == 3
    with pytest.raises(errors.InvalidInput, match=r"'TPU:3' is several of the TPU's cores"):
        cores.core_of("TPU:3")
    with pytest.raises(errors.InvalidInput, match=r"task:2.*is none of the TPU's cores"):
        cores.core_of("/task:2/device:TPU:0")


def test_the_driver_has_a_row_and_a_name() -> None:
    """The table of drivers names it, and its repr says what it drives."""
    assert DRIVERS["tpu"] is TpuDriver
    driver = TpuDriver(topology(2, 4))
    assert repr(driver) == "<TpuDriver 0 tables, 8 cores on 2 hosts>"
    with tf.Graph().as_default():
        assert repr(built(Case(kinds=("dense", "sparse")), fake_tpu.strategy(1, 2)).driver) == (
            "<TpuDriver 2 tables, 2 cores on 1 hosts>"
        )


# What is refused. Where stock refuses too, it does so with the same type of exception.

EITHER = pytest.mark.parametrize("kind", [Stock, Ours])


def fails_inside(kind: type[Stock] | type[Ours], call: Callable[..., Any], **run: Any) -> None:
    """Runs `call`, which is given the engine, ids and weights, within `strategy.run`."""
    with tf.Graph().as_default(), fake_tpu.stock_builds():
        case = Case(kinds=("dense", "sparse"))
        strategy = case.strategy()
        given = inputs(case.kinds or (), 2)
        engine = kind(case, strategy, core_shapes(given, None))
        strategy.run(
            tf.autograph.experimental.do_not_convert(functools.partial(call, engine)),
            args=given.distributed(strategy),
            **run,
        )


@EITHER
def test_enqueue_in_control_flow_is_refused(kind: Any) -> None:
    """Inside `strategy.run` a call in tf.cond cannot be moved to the host."""

    def step(engine: Any, ids: Any, weights: Any) -> None:
        def enqueue() -> Any:
            engine.enqueue(ids, weights)
            return tf.constant(0)

        tf.cond(tf.constant(True), enqueue, lambda: tf.constant(0))

    with pytest.raises(RuntimeError, match=r"inside control flow"):
        fails_inside(kind, step, options=NO_DYNAMIC_BATCH)


@EITHER
def test_enqueue_in_a_function_inside_run_is_refused(kind: Any) -> None:
    """A tf.function inside `strategy.run` is too deep as well."""

    def step(engine: Any, ids: Any, weights: Any) -> None:
        tf.config.run_functions_eagerly(False)
        tf.function(lambda: engine.enqueue(ids, weights), autograph=False)()

    with pytest.raises(RuntimeError, match=r"tf.function"):
        fails_inside(kind, step, options=NO_DYNAMIC_BATCH)


@pytest.mark.parametrize("verb", ["enqueue", "check_inputs"])
def test_each_of_two_checks_is_enough(verb: str) -> None:
    """Control flow is refused before anything is built, and again by enqueue itself."""

    def step(engine: Any, ids: Any, weights: Any) -> None:
        readers = tpu_cores.readers(engine.plan, [[ids["dense"], ids["sparse"]]])
        calls = {
            "enqueue": lambda: engine.driver.enqueue(readers, True),
            "check_inputs": lambda: engine.driver.check_inputs([]),
        }

        def call() -> Any:
            calls[verb]()
            return tf.constant(0)

        tf.cond(tf.constant(True), call, lambda: tf.constant(0))

    with pytest.raises(errors.ControlFlow, match=r"Enqueue at the top of the function"):
        fails_inside(Ours, step, options=NO_DYNAMIC_BATCH)


@EITHER
def test_computed_inputs_inside_run_are_refused(kind: Any) -> None:
    """Inside `strategy.run` ids must be its arguments, not what is computed from them."""

    def step(engine: Any, ids: Any, weights: Any) -> None:
        engine.enqueue({**ids, "dense": ids["dense"] + 1}, weights)

    with pytest.raises(ValueError, match=r"(?s)AddV2.*dynamic batch size") as raised:
        fails_inside(kind, step, options=NO_DYNAMIC_BATCH)
    if kind is Ours:
        assert "Feature 'dense' (table 'videos')" in str(raised.value)


@EITHER
def test_dynamic_batches_inside_run_are_refused_with_the_cause(kind: Any) -> None:
    """Support for dynamic batch sizes, on by default, hides that an input is an argument."""
    with tf.Graph().as_default(), fake_tpu.stock_builds():
        case = Case(kinds=("dense",))
        strategy = case.strategy()
        engine = kind(case, strategy, {"dense": tf.TensorShape([BATCH])})
        values = [placeholder(tf.int32, [None], f"dense_{core}") for core in range(2)]
        ids = {"dense": fake_tpu.distribute(strategy, values)}

        with pytest.raises(ValueError, match=r"experimental_enable_dynamic_batch_size=False"):
            strategy.run(engine.enqueue, args=(ids, {"dense": None}))


@EITHER
@pytest.mark.parametrize("inside", [False, True])
def test_inputs_on_a_tpu_are_refused(kind: Any, inside: bool) -> None:
    """Ids that a dataset has brought to a core already must stay on the host."""
    with tf.Graph().as_default(), fake_tpu.stock_builds():
        case = Case(kinds=("dense",))
        strategy = case.strategy()
        engine = kind(case, strategy, {"dense": tf.TensorShape([BATCH])})
        values = []
        for core, kind_of_device in enumerate(("CPU", "TPU")):
            with tf.device(f"/job:worker/replica:0/task:0/device:{kind_of_device}:{core}"):
                values.append(ids_of("dense", core))
        ids = {"dense": fake_tpu.distribute(strategy, values)}
        weights = {"dense": None}

        def enqueue() -> None:
            if inside:
                strategy.run(engine.enqueue, args=(ids, weights), options=NO_DYNAMIC_BATCH)
            else:
                engine.enqueue(ids, weights)

        with pytest.raises(ValueError, match=r"(?s)TPU:1.*experimental_fetch_to_device"):
            enqueue()


def test_eager_inputs_are_on_the_host() -> None:
    """Tensors that are values already have a device too, and are not taken for a TPU's."""
    driver = TpuDriver(topology())
    ids = tf.RaggedTensor.from_row_lengths(tf.range(3), [1, 2])
    driver.check_inputs([("dense", tf.range(3)), ("ragged", ids), ("none", None)])


@EITHER
def test_a_device_that_is_no_core_is_refused(kind: Any) -> None:
    """The device to feed is a TPU core, not its host."""
    with tf.Graph().as_default(), fake_tpu.stock_builds():
        case = Case(kinds=("dense",))
        engine = kind(case, case.strategy(), {"dense": tf.TensorShape([BATCH])})
        ids = {"dense": ids_of("dense", 0)}

        with pytest.raises(ValueError, match=r"TPU.*/device:CPU:0|/device:CPU:0.*"):
            engine.enqueue(ids, {"dense": None}, device="/task:0/device:CPU:0")


def test_a_second_engine_is_refused() -> None:
    """A TPU that is configured for embeddings already is not configured again."""
    plan = plan_of(tf2_engine.TableSpec("videos", 9, 4, optimizer=tf2_engine.SGD(1.0)))
    driver = TpuDriver(topology())
    with (
        fake_tpu.recorded(initialized=True) as made,
        pytest.raises(RuntimeError, match="TPU is already initialized for embeddings"),
    ):
        driver.configure(plan)

    assert [name for name, _ in made] == ["IsTPUEmbeddingInitialized"]
    with pytest.raises(errors.OutOfOrder, match="`configure` comes first"):
        driver.dequeue()


def test_a_second_engine_is_refused_when_a_graph_runs() -> None:
    """In a graph the same is found out by the op, before it configures anything."""
    plan = plan_of(tf2_engine.TableSpec("videos", 9, 4, optimizer=tf2_engine.SGD(1.0)))
    for initialized in (False, True):
        with tf.Graph().as_default(), fake_tpu.recorded(initialized):
            op = TpuDriver(topology()).configure(plan)
            refused = pytest.raises(
                tf.errors.InvalidArgumentError, match="TPU is already initialized for embeddings"
            )
            with refused if initialized else contextlib.nullcontext():
                tf.compat.v1.Session().run(op)


@pytest.mark.parametrize("initialized", [False, True])
def test_a_tpu_that_another_engine_configured_can_be_left_as_it_is(initialized: bool) -> None:
    """The driver tells whether a TPU is configured, and does not configure it when told so."""
    plan = plan_of(tf2_engine.TableSpec("videos", 9, 4, optimizer=tf2_engine.SGD(1.0)))
    driver = TpuDriver(topology(), initialize=False)
    with fake_tpu.recorded(initialized) as made:
        assert driver.initialized() is initialized
        driver.configure(plan)
    with tf.Graph().as_default():
        assert driver.initialized() is None

    assert [name for name, _ in made] == ["IsTPUEmbeddingInitialized"]


def test_without_a_tpu_strategy_there_is_no_driver() -> None:
    """The message says where the engine must be made, and what works without a TPU."""
    with pytest.raises(RuntimeError, match=r"TPUStrategy.*strategy.scope.*driver='host'"):
        TpuDriver()


@pytest.mark.parametrize(
    "call",
    [
        lambda driver: driver.load({}),
        lambda driver: driver.retrieve({}),
        lambda driver: driver.enqueue([[]], True),
        lambda driver: driver.dequeue(),
        lambda driver: driver.send_gradients([[]], []),
    ],
    ids=["load", "retrieve", "enqueue", "dequeue", "send_gradients"],
)
def test_a_driver_must_be_configured(call: Callable[[TpuDriver], Any]) -> None:
    """No verb works before `configure`, and the message says so."""
    with pytest.raises(errors.OutOfOrder, match="`configure` comes first"):
        call(TpuDriver(topology()))


def test_there_must_be_an_entry_for_every_core() -> None:
    """A batch for one core of two is refused, and so are the gradients of two."""
    with tf.Graph().as_default():
        driver = built(Case(kinds=("dense",)), fake_tpu.strategy(1, 2)).driver
        with pytest.raises(errors.InvalidInput, match=r"one entry per core, 2 here, got 1"):
            driver.enqueue([[]], True)
        with pytest.raises(errors.InvalidInput, match=r"one entry per core, 1 here, got 2"):
            driver.send_gradients([[], []], [])


def test_a_plan_for_another_topology_is_refused() -> None:
    """A plan and a TPU must agree on cores and hosts."""
    plan = plan_of(tf2_engine.TableSpec("videos", 9, 4, optimizer=tf2_engine.SGD(1.0)))
    with pytest.raises(errors.InvalidSpec, match=r"1 cores on 1 hosts.*has 8 on 2"):
        TpuDriver(topology(2, 4)).configure(plan)


def test_dropping_ids_is_refused() -> None:
    """The device takes ids as they are, so none can be dropped on the way."""
    table = tf2_engine.TableSpec("videos", 9, 4, optimizer=tf2_engine.SGD(1.0))
    with pytest.raises(errors.InvalidSpec, match=r"out_of_range_ids='drop'.*driver='host'"):
        TpuDriver(topology()).configure(plan_of(table, out_of_range_ids="drop"))


def test_an_optimizer_without_ops_is_refused() -> None:
    """The message names the table and the optimizer that TensorFlow cannot load."""

    class Unknown(tf2_engine.SGD):
        op_name = "Unknown"

    table = tf2_engine.TableSpec("videos", 9, 4, optimizer=Unknown(1.0))
    with pytest.raises(errors.InvalidSpec, match=r"'videos'.*`Unknown`"):
        TpuDriver(topology()).configure(plan_of(table))


def test_ragged_ids_cannot_be_split() -> None:
    """With model parallelism a ragged feature is refused by name, as stock refuses it."""
    with tf.Graph().as_default(), pytest.raises(ValueError, match=r"watched.*ragged.*4 cores"):
        tpu_topology.part("Feature 'watched'", ragged(tf.int64, "watched"), 0, 4)


@pytest.mark.parametrize("shape", [(BATCH, 5), (BATCH, 3, 2, 5)])
def test_sparse_ids_of_another_rank_are_refused(shape: tuple[int, ...]) -> None:
    """Coordinates must have one column more than the activation has axes."""
    table = tf2_engine.TableSpec("videos", 9, 4, optimizer=tf2_engine.SGD(1.0))
    feature = tf2_engine.FeatureSpec("watched", "videos", output_shape=(BATCH, 3))
    plan = make_plan(tf2_engine.EngineSpec((table,), (feature,)), [(BATCH, 3)])
    with tf.Graph().as_default():
        driver = TpuDriver(topology())
        driver.configure(plan)
        readers = tpu_cores.readers(plan, [[sparse(tf.int64, "watched", shape)]])
        with pytest.raises(errors.InvalidInput, match=rf"'watched'.*rank {len(shape)}"):
            driver.enqueue(readers, True)
