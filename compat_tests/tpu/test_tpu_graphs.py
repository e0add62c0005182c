"""The TPU driver builds the same graphs as stock's TPUEmbedding, op for op.

Oracle: stock's own code, with the topology of a TPU that does not exist. Graphs cannot run here,
but every op, attribute, device, input and control input is compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import tensorflow as tf

from compat_tests.support import fake_tpu
from compat_tests.support.tpu_graphs import (
    DIFFERENCES,
    ENQUEUE,
    IGNORED_ATTRIBUTES,
    differences,
    graphs,
    removed,
)
from compat_tests.support.tpu_programs import (
    NO_DYNAMIC_BATCH,
    OPTIMIZERS,
    TOPOLOGIES,
    Case,
    Inputs,
    Ours,
    Stock,
    build,
    core_shapes,
    feature_config,
    inputs,
)
from tf2_engine import tf_compat
from tf2_engine.backends.tpu import transfer

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


def is_quick(case: Case) -> bool:
    """Returns whether a case is in the quick tier: an optimizer's largest graph, and all of Adam's.

    The others have the same ops, on fewer hosts and cores.
    """
    largest = (case.num_hosts, case.cores_per_host) == TOPOLOGIES[-1]
    return case in OTHER_CASES or largest or case.optimizer == "Adam"


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if is_quick(case) else pytest.mark.full) for case in CASES],
    ids=str,
)
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

    assert {"SGD", "Adagrad", "Adam"} <= set(OPTIMIZERS)
    assert met == {difference.reason for difference in DIFFERENCES}
    assert attributes >= set(IGNORED_ATTRIBUTES)


# A step as a tf.function, which is how a TPU is used. The one host is this machine.


def traced(kind: type[Stock] | type[Ours], case: Case) -> tf.Graph:
    """Returns the graph of the tf.function of a step; the engine is built eagerly."""
    strategy = fake_tpu.strategy(1, case.cores_per_host, job="localhost")
    with tf.Graph().as_default():
        batch = inputs(tuple(feature_config()), strategy.num_replicas_in_sync)
        shapes = core_shapes(batch, None)
        signature = tf.nest.map_structure(
            lambda each: None if each is None else tf.type_spec_from_value(each), batch
        )
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


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("inside", [False, True])
def test_a_tf_function_is_traced_to_the_graph_of_stock(inside: bool, training: bool) -> None:
    """In a tf.function enqueue, dequeue and gradients become stock's ops, wherever they are."""
    case = Case(inside=inside, training=training)

    assert differences(traced(Stock, case), traced(Ours, case)) == []


# The comparison sees what it is for.


def with_argument(**changed: Any) -> Callable[..., Any]:
    return lambda op, arguments: op(**{**arguments, **changed})


def with_another_config(op: Any, arguments: dict[str, Any]) -> Any:
    """Makes an op with the configuration of another engine."""
    config = tf_compat.TPUEmbeddingConfiguration.FromString(arguments["config"])
    config.pipeline_execution_with_tensor_core = True
    return op(**{**arguments, "config": config.SerializeToString()})


def without_weights(op: Any, arguments: dict[str, Any]) -> Any:
    none = [tf.zeros([0], tf.float32)] * len(arguments["aggregation_weights"])
    return op(**{**arguments, "aggregation_weights": none})


def in_another_order(name: str) -> Callable[..., Any]:
    """Makes an op with one of its lists reversed."""
    return lambda op, arguments: op(**{**arguments, name: arguments[name][::-1]})


def elsewhere(op: Any, arguments: dict[str, Any]) -> Any:
    with tf.device("/job:worker/replica:0/task:1/device:CPU:0"):
        return op(**arguments)


def slots_swapped(op: Any, arguments: dict[str, Any]) -> Any:
    """Makes a load op of Adam that mixes up its slots."""
    swapped = {"momenta": arguments["velocities"], "velocities": arguments["momenta"]}
    return op(**{**arguments, **swapped})


def twice(op: Any, arguments: dict[str, Any]) -> Any:
    op(**arguments)
    return op(**arguments)


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
    with mock.patch.object(transfer, "set_name"):
        ours = build(Ours, case)

    assert len(differences(graphs(case)[0], ours)) >= 3
