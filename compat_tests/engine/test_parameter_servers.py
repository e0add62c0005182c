"""Tables on parameter servers train bitwise like those of one process, except for powers."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cases.optimizers import (
    ACCUMULATION,
    CASES,
    COMBINERS,
    KINDS,
    allows,
    initial_weights,
)
from compat_tests.conftest import Array, Engine, Runner
from compat_tests.engine import test_profile
from compat_tests.engine.test_conformance import (
    INPUTS,
    REFUSED_HERE,
    Combination,
    arguments_of,
    spec_of,
)
from compat_tests.support import local_cluster
from compat_tests.support.placements import ids_of
from tf2_engine import SGD, EngineSpec, FeatureSpec, TableSpec, TPUEmbedding, errors
from tf2_engine.backends import HostDriver, PsDriver
from tf2_engine.backends.host import profile
from tf2_engine.backends.ps.messages import WIRES, Wire
from tf2_engine.placement import LAYOUTS, Layout
from tf2_engine.specs import Quantization
from tf2_engine.tables import Table

Group = tuple[Combination, ...]


def combinations(cores: int, turn: int = 0, kinds: Sequence[str] = KINDS) -> Group:
    """Returns a case of every optimizer with each accumulation; by `turn` cases and inputs vary."""
    inputs, combiners = itertools.cycle(INPUTS[turn:] + INPUTS), itertools.cycle(COMBINERS)
    groups = []
    for kind, accumulation in itertools.product(kinds, ACCUMULATION):
        row = {"accumulation": accumulation}
        cases = [case for case in CASES.values() if case.kind == kind and allows(case, row)]
        if not cases or (("kind", kind), ("accumulation", accumulation)) in REFUSED_HERE:
            continue
        name = cases[turn % len(cases)].name
        place, combiner = f"1x{cores}", next(combiners)
        groups.append(
            Combination(kind, next(inputs), place, "graph", accumulation, combiner, "host", name)
        )
    return tuple(groups)


def rows_of(table: Table, part: int) -> Any:
    placement = table.plan.placement
    return slice(None) if placement is None else ids_of(placement, part)


def read(runner: Runner, embedding: TPUEmbedding) -> dict[tuple[str, str], Array]:
    """Returns each variable of each table by its ids, [rows, dim]."""
    variables = {name: dict(table.variables) for name, table in embedding.tables.items()}
    whole = {}
    # In one run: a cluster places and divides the graph for each set of fetches.
    for name, kinds in runner.read(variables).items():
        table = embedding.tables[name]
        for kind, values in kinds.items():
            rows = np.empty((table.plan.rows, table.plan.dim), np.float32)
            for part, value in enumerate(values):
                rows[rows_of(table, part)] = value
            whole[name, kind] = rows
    return whole


def train(
    runner: Runner,
    group: Group,
    driver: HostDriver,
    quantization: Quantization | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    retrieves: bool = False,
) -> list[Any]:
    """Trains a table for each combination; returns activations and variables after each step.

    Args:
        settings: of the spec of the engine.
        retrieves: whether the tables are retrieved before the variables are read.
    """
    with runner.scope():
        step = tf.Variable(0.0, name="step")
        spec = spec_of(group, step)
        tables = [dataclasses.replace(each, quantization=quantization) for each in spec.tables]
        spec = dataclasses.replace(spec, tables=tuple(tables), **settings or {})
    cores = group[0].cores
    engine = Engine(runner, spec, driver=driver, num_cores=cores)
    engine.build_for([one.shape for one in group])
    runner.write_all(
        (shard, initial_weights(one.case, place)[rows_of(table, part)])
        for place, one in enumerate(group)
        for table in [engine.embedding.tables[f"table{place}"]]
        for part, shard in enumerate(table.variables["parameters"])
    )
    retrieve = runner.wrap(engine.embedding.retrieve) if retrieves else lambda: None
    steps: list[Any] = []
    for number, arguments in enumerate(arguments_of(group)):
        runner.write(step, float(number))
        activations = engine.train(*arguments)
        retrieve()
        steps.append((activations, read(runner, engine.embedding)))
    return steps


POWERS = ("AdagradMomentum", "FTRL", "FrequencyEstimator")
"""Rules with a power. TensorFlow computes that of the last elements of a vector by another function
than of the others, and a row has another place in the vector of its server."""
OF_POWERS = 5e-5
"""Two powers in each of 3 steps are off by a unit, 1.2e-7 of numbers below 4; FTRL divides them by
the rate, 1/8, and multiplies them by weights below 2: 3 * 2 * 4 * 1.2e-7 * 8 * 2 = 4.6e-5."""


def assert_same(actual: Sequence[Any], expected: Sequence[Any], group: Group) -> None:
    """Asserts that activations and variables are equal to the bit, and names what is not."""

    def check_one(mine: Array, theirs: Array, case: Combination, where: str) -> None:
        if case.kind in POWERS:
            np.testing.assert_allclose(mine, theirs, 0, OF_POWERS, err_msg=f"{where} of {case}")
        else:
            np.testing.assert_array_equal(mine, theirs, f"{where} of {case}")

    assert len(actual) == len(expected) > 0
    for step, (one, other) in enumerate(zip(actual, expected, strict=True)):
        for core, (mine, theirs) in enumerate(zip(one[0], other[0], strict=True)):
            for key, activation in theirs.items():
                case = group[int(key.removeprefix("ids"))]
                check_one(mine[key], activation, case, f"step {step}, core {core}, activation")
        assert one[1].keys() == other[1].keys()
        for (table, kind), rows in other[1].items():
            case = group[int(table.removeprefix("table"))]
            check_one(one[1][table, kind], rows, case, f"step {step}, {kind}")


@functools.lru_cache(maxsize=1)
def of_one_process(group: Group) -> list[Any]:
    """Returns what one process with as many cores finds."""
    return train(Runner("graph"), group, HostDriver(native=False))


NATIVE: dict[str, Callable[[str], bool]] = {
    "plain": lambda device: False,
    "native": lambda device: True,
    "native cores": lambda device: "worker" in device,
    "native servers": lambda device: "ps" in device,
    "one native server": lambda device: "ps/task:1" in device,
}
"""Which tasks have the native ops, by device."""


def on_cluster(group: Group, workers: int, servers: int, ends: str, **settings: Any) -> list[Any]:
    """Returns what a cluster finds; native ops are where `ends` says."""
    cluster = local_cluster.start(2, 5)
    places = cluster.workers[:workers], cluster.servers[:servers]
    native = [device for device in itertools.chain(*places) if NATIVE[ends](device)]
    driver = PsDriver(*places, native=lambda: native, **settings)
    steps = train(local_cluster.ClusterRunner(cluster.target), group, driver)
    assert ("native ops" in repr(driver)) == bool(native)
    return steps


def check(group: Group, workers: int, servers: int, ends: str = "plain", **settings: Any) -> None:
    """Asserts that a cluster trains as one process with as many cores."""
    actual = on_cluster(group, workers, servers, ends, **settings)
    assert_same(actual, of_one_process(group), group)


@pytest.mark.parametrize("ends", ["plain", "native"])
def test_a_cluster_trains_as_one_process(ends: str) -> None:
    """Two workers with a core each, two servers: accumulation on and off, in octaves."""
    check(combinations(2, kinds=["Adagrad"]), 2, 2, ends, layout="octaves", whole_up_to=0)


CLUSTERS = ((1, 1, 1), (1, 2, 2), (2, 2, 3), (2, 4, 5))
"""Numbers of workers, cores and parameter servers."""


def part_of(layout: Layout, turn: int) -> Group:
    """Returns the combinations that a cluster trains in a layout: a third, another by each turn."""
    place = (LAYOUTS.index(layout) - turn) % len(LAYOUTS)
    return combinations(CLUSTERS[turn][1], turn)[place :: len(LAYOUTS)]


@pytest.mark.full
@pytest.mark.parametrize("turn", range(len(CLUSTERS)))
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ends", ["plain", "native"])
def test_every_optimizer_trains_as_in_one_process(ends: str, layout: Layout, turn: int) -> None:
    """Every optimizer, with accumulation and without, trains on every cluster, in every layout.

    Not the product of all, of which most time goes into graphs of some ten thousand ops: each pair
    of an optimizer with accumulation or without, a cluster and a layout is met, as the test below
    says. Cases of an optimizer and kinds of inputs take turns.
    """
    workers, _, servers = CLUSTERS[turn]
    check(part_of(layout, turn), workers, servers, ends, layout=layout, whole_up_to=0)


@pytest.mark.full
@pytest.mark.parametrize("wire", [*WIRES[:3]])
@pytest.mark.parametrize("ends", NATIVE)
def test_tasks_with_native_ops_and_without_understand_each_other(ends: str, wire: Wire) -> None:
    """Numbers are those of one process, whichever tasks have them, in each form of gradients.

    Some optimizers have no native rule, or look up no rows, and some inputs several ids of a cell.
    """
    group = combinations(2, 3, kinds=["SGD", "Adam", "FrequencyEstimator"])
    check(group, 2, 3, ends, layout="mod", whole_up_to=0, wire=wire)


@pytest.mark.full
@pytest.mark.parametrize("ends", ["plain", "native"])
@pytest.mark.parametrize("cores", [1, 2])
def test_summed_gradients_differ_by_roundings(cores: int, ends: str) -> None:
    """Sums of one core, and updates core by core, are equal to the bit; others nearly so.

    A sum of a few tens of gradients, of which each is below 10, is off by some units of 1e-6.
    """
    group = combinations(cores, 1, kinds=["SGD"])
    actual = on_cluster(group, cores, 2, ends, layout="div", whole_up_to=0, wire="summed")
    expected = of_one_process(group)
    exact = [cores == 1 or one.accumulation == "per core" for one in group]
    for one, other in zip(actual, expected, strict=True):
        for (table, kind), rows in other[1].items():
            if exact[int(table.removeprefix("table"))]:
                np.testing.assert_array_equal(one[1][table, kind], rows)
            np.testing.assert_allclose(one[1][table, kind], rows, rtol=0, atol=1e-5)


def test_every_optimizer_meets_every_cluster_and_layout() -> None:
    """The parts of a cluster are all of its combinations, and each has each layout on some one."""
    layouts = collections.defaultdict(set)
    for turn, (_, cores, _) in enumerate(CLUSTERS):
        parts = {layout: part_of(layout, turn) for layout in LAYOUTS}
        assert {*itertools.chain(*parts.values())} == {*combinations(cores, turn)}
        for layout, part in parts.items():
            for one in part:
                layouts[one.kind, one.accumulation].add(layout)
    assert {kind for kind, _ in layouts} == set(KINDS)
    assert all(met == set(LAYOUTS) for met in layouts.values()), layouts


@pytest.mark.full
def test_whole_tables_train_as_in_one_process() -> None:
    check(combinations(2, 5), 2, 2)


def both_of(group: Group, servers: int) -> list[tuple[Runner, Group, HostDriver]]:
    """Returns the arguments of `train` for a cluster of two workers, and for one process."""
    cluster = local_cluster.start(2, 5)
    driver = PsDriver(cluster.workers, cluster.servers[:servers], layout="mod", whole_up_to=0)
    return [
        (local_cluster.ClusterRunner(cluster.target), group, driver),
        (Runner("graph"), group, HostDriver(native=False)),
    ]


@pytest.mark.full
def test_quantized_rows_are_those_of_one_process() -> None:
    """Simulated quantization rounds rows on the core that looks them up; gradients pass."""
    group = combinations(2, kinds=["SGD", "Adam"])
    actual, expected = (
        train(*of, quantization=Quantization(8, -1.0, 1.0)) for of in both_of(group, 5)
    )
    assert_same(actual, expected, group)


@pytest.mark.full
@pytest.mark.parametrize("servers", [1, 3])
def test_a_pipeline_trains_as_in_one_process(servers: int) -> None:
    """Activations are a step old, and the update that waits is applied when tables are retrieved.

    Adam updates all rows, and a batch without gradients would move them, too.
    """
    group = combinations(2, kinds=["Adagrad", "Adam", "SGD"])
    settings = {"pipeline_execution_with_tensor_core": True}
    last = []
    for retrieves in (False, True):
        actual, expected = (
            train(*of, settings=settings, retrieves=retrieves) for of in both_of(group, servers)
        )
        assert_same(actual, expected, group)
        last.append(expected[-1][1])
    # The update of the last step is in no table before they are retrieved.
    assert all(not np.array_equal(rows, last[1][name]) for name, rows in last[0].items())


def test_what_is_pending_waits_on_the_workers() -> None:
    """Neither ids nor gradients of a pipeline pass through the client."""
    with tf.Graph().as_default() as graph:
        embedding = make({}, pipeline_execution_with_tensor_core=True)
        embedding.build_for([(2,)])
        batch = [{"watched": tf.constant([1, 2])}] * 2
        embedding.enqueue(batch)
        embedding.apply_gradients(embedding.dequeue())
    queues = [op.device for op in graph.get_operations() if op.type == "FIFOQueueV2"]
    assert queues == [f"/job:worker/task:{core}/device:CPU:0" for core in range(2)]


@pytest.mark.full
def test_profiles_are_those_of_one_process(tmp_path: pathlib.Path) -> None:
    """Workers count the ids of their cores, and the client writes the file of one process."""
    cluster = local_cluster.start(2, 5)
    clients = {
        "one": (Runner("graph"), HostDriver(native=False)),
        "cluster": (
            local_cluster.ClusterRunner(cluster.target),
            PsDriver(cluster.workers, cluster.servers[:3], layout="octaves", whole_up_to=0),
        ),
    }
    for name, (runner, driver) in clients.items():
        test_profile.train(tmp_path / name, runner, driver=driver, num_cores=2)
    one, other = (
        {path.name: json.loads(path.read_text()) for path in (tmp_path / name).glob("*.json")}
        for name in clients
    )
    assert len(one) == 1
    assert other == one
    (counts,) = one.values()
    assert counts["samples"] >= profile.MIN_SAMPLES
    assert counts["ids"] == test_profile.IDS_PER_SAMPLE * counts["samples"]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_hosts": 2, "num_cores": 2}, "`num_hosts`=2"),
        ({"num_cores": 3}, "3 cores cannot be spread evenly over 2 workers"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    """Settings that would train otherwise than in one process are errors before any session."""
    with pytest.raises(errors.InvalidSpec, match=message), tf.Graph().as_default():
        make(options).build_for([(2,)])


def test_it_works_in_graphs_alone() -> None:
    """Eagerly an engine is refused when it is built, with the way out."""
    with pytest.raises(errors.InvalidSpec, match=r"built in a tf\.Graph"):
        make({}).build_for([(2,)])
    with pytest.raises(errors.InvalidSpec, match="`servers` must name at least one device"):
        PsDriver(["/job:worker/task:0"], [])
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope(), pytest.raises(errors.InvalidSpec, match="outside of the strategy"):
        make({})


def make(options: Mapping[str, Any], **settings: Any) -> TPUEmbedding:
    """Returns an engine with one table, for two workers and two servers that need not run."""
    table = TableSpec("videos", 4, 2, "sum", SGD(0.5))
    spec = EngineSpec((table,), (FeatureSpec("watched", "videos"),), **settings)
    driver = PsDriver(
        [f"/job:worker/task:{i}" for i in range(2)], [f"/job:ps/task:{i}" for i in range(2)]
    )
    return TPUEmbedding(spec, driver=driver, **options)
