"""What the TPU driver refuses; if stock refuses it too, both are tested."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tensorflow as tf

import tf2_engine
from compat_tests.support import fake_tpu
from compat_tests.support.tpu_programs import (
    BATCH,
    NO_DYNAMIC_BATCH,
    Case,
    Ours,
    Stock,
    built,
    core_shapes,
    ids_of,
    inputs,
    placeholder,
    plan_of,
    ragged,
    sparse,
    step_inputs,
    topology,
)
from tf2_engine import errors
from tf2_engine.backends.tpu import topology as tpu_topology
from tf2_engine.backends.tpu.driver import TpuDriver
from tf2_engine.batch import Batch
from tf2_engine.plan import make_plan

# What is refused. Where stock refuses too, it does so with the same type of exception.

EITHER = pytest.mark.parametrize("kind", [Stock, Ours])


def fails_inside(kind: type[Stock] | type[Ours], call: Callable[..., Any], **run: Any) -> None:
    """Runs `call`, which is given the engine, ids and weights, within `strategy.run`."""
    with tf.Graph().as_default(), fake_tpu.stock_builds():
        case = Case(kinds=("dense", "sparse"))
        strategy = case.strategy()
        batch = inputs(case.kinds or (), 2)
        engine = kind(case, strategy, core_shapes(batch, None))
        strategy.run(
            tf.autograph.experimental.do_not_convert(functools.partial(call, engine)),
            args=batch.distributed(strategy),
            **run,
        )


def in_a_condition(engine: Any, ids: Any, weights: Any) -> None:
    """Calls what cannot be moved to the host from there."""
    tf.cond(
        tf.constant(True),
        lambda: [engine.enqueue(ids, weights), tf.constant(0)][1],
        lambda: tf.constant(0),
    )


def in_a_function(engine: Any, ids: Any, weights: Any) -> None:
    tf.config.run_functions_eagerly(False)
    tf.function(lambda: engine.enqueue(ids, weights), autograph=False)()


def on_computed_ids(engine: Any, ids: Any, weights: Any) -> None:
    engine.enqueue({**ids, "dense": ids["dense"] + 1}, weights)


@EITHER
@pytest.mark.parametrize(
    "step, error, message",
    [
        (in_a_condition, RuntimeError, r"inside control flow"),
        (in_a_function, RuntimeError, r"tf.function"),
        (on_computed_ids, ValueError, r"(?s)AddV2.*dynamic batch size"),
    ],
)
def test_what_run_cannot_move_to_the_host_is_refused(
    kind: Any, step: Any, error: type[Exception], message: str
) -> None:
    """Inside `strategy.run` enqueue must be at the top, with arguments of the function as ids."""
    with pytest.raises(error, match=message):
        fails_inside(kind, step, options=NO_DYNAMIC_BATCH)


@pytest.mark.parametrize("verb", ["enqueue", "check"])
def test_each_of_two_checks_is_enough(verb: str) -> None:
    """Control flow is refused before anything is built, and again by enqueue itself."""

    def step(engine: Any, ids: Any, weights: Any) -> None:
        part = step_inputs([ids["dense"], ids["sparse"]])
        calls = {
            "enqueue": lambda: engine.driver.enqueue(part, True),
            "check": lambda: engine.cores.check(engine.plan, Batch({})),
        }

        def call() -> Any:
            calls[verb]()
            return tf.constant(0)

        tf.cond(tf.constant(True), call, lambda: tf.constant(0))

    with pytest.raises(errors.ControlFlow, match=r"Enqueue at the top of the function"):
        fails_inside(Ours, step, options=NO_DYNAMIC_BATCH)


@contextlib.contextmanager
def with_dense_ids(kind: type[Stock] | type[Ours]) -> Iterator[tuple[Any, Any]]:
    """Yields an engine with a dense feature, and its strategy of two cores, in a graph."""
    with tf.Graph().as_default(), fake_tpu.stock_builds():
        case = Case(kinds=("dense",))
        strategy = case.strategy()
        yield kind(case, strategy, {"dense": tf.TensorShape([BATCH])}), strategy


@EITHER
def test_dynamic_batches_inside_run_are_refused_with_the_cause(kind: Any) -> None:
    """Support for dynamic batch sizes, on by default, hides that an input is an argument."""
    with with_dense_ids(kind) as (engine, strategy):
        values = [placeholder(tf.int32, [None], f"dense_{core}") for core in range(2)]
        ids = {"dense": fake_tpu.distribute(strategy, values)}

        with pytest.raises(ValueError, match=r"experimental_enable_dynamic_batch_size=False"):
            strategy.run(engine.enqueue, args=(ids, {"dense": None}))


@EITHER
@pytest.mark.parametrize("inside", [False, True])
def test_inputs_on_a_tpu_are_refused(kind: Any, inside: bool) -> None:
    """Ids that a dataset has brought to a core already must stay on the host."""
    with with_dense_ids(kind) as (engine, strategy):
        values = []
        for core, kind_of_device in enumerate(("CPU", "TPU")):
            with tf.device(f"/job:worker/replica:0/task:0/device:{kind_of_device}:{core}"):
                values.append(ids_of("dense", core))
        batch = {"dense": fake_tpu.distribute(strategy, values)}, {"dense": None}

        enqueue = functools.partial(engine.enqueue, *batch)
        if inside:
            enqueue = functools.partial(strategy.run, engine.enqueue, batch, None, NO_DYNAMIC_BATCH)
        with pytest.raises(ValueError, match=r"(?s)TPU:1.*experimental_fetch_to_device"):
            enqueue()


@EITHER
def test_a_device_that_is_no_core_is_refused(kind: Any) -> None:
    with with_dense_ids(kind) as (engine, _):
        batch = {"dense": ids_of("dense", 0)}, {"dense": None}
        with pytest.raises(ValueError, match=r"TPU.*/device:CPU:0|/device:CPU:0.*"):
            engine.enqueue(*batch, device="/task:0/device:CPU:0")


VIDEOS = tf2_engine.TableSpec("videos", 9, 4, optimizer=tf2_engine.SGD(1.0))


def test_a_second_engine_is_refused_when_a_graph_runs() -> None:
    """In a graph an op finds out that the TPU is configured already, before it configures it."""
    plan = plan_of(VIDEOS)
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
    plan = plan_of(VIDEOS)
    driver = TpuDriver(topology(), initialize=False)
    cores = driver.cores(None, None)
    with fake_tpu.recorded(initialized) as recorded:
        assert cores.initialized() is initialized
        driver.configure(plan)
    with tf.Graph().as_default():
        assert cores.initialized() is None

    assert [name for name, _ in recorded] == ["IsTPUEmbeddingInitialized"]


@pytest.mark.parametrize(
    "call",
    [
        lambda driver: driver.load({}),
        lambda driver: driver.retrieve({}),
        lambda driver: driver.enqueue(step_inputs([]), True),
        lambda driver: driver.dequeue(),
        lambda driver: driver.send_gradients([[]], []),
    ],
    ids=["load", "retrieve", "enqueue", "dequeue", "send_gradients"],
)
def test_a_driver_must_be_configured(call: Callable[[TpuDriver], Any]) -> None:
    with pytest.raises(errors.OutOfOrder, match="Call `configure` first"):
        call(TpuDriver(topology()))


def test_there_must_be_an_entry_for_every_core() -> None:
    with tf.Graph().as_default():
        driver = built(Case(kinds=("dense",)), fake_tpu.strategy(1, 2)).driver
        with pytest.raises(errors.InvalidInput, match=r"one entry per core: expected 2, got 1"):
            driver.enqueue(step_inputs([]), True)
        with pytest.raises(errors.InvalidInput, match=r"one entry per core: expected 1, got 2"):
            driver.send_gradients([[], []], [])


class Unknown(tf2_engine.SGD):
    """An optimizer that TensorFlow has no load op for."""

    op_name = "Unknown"


@pytest.mark.parametrize(
    "of_topology, table, options, message",
    [
        ((2, 4), VIDEOS, {}, r"1 cores on 1 hosts.*has 8 cores on 2"),
        # The device takes ids as they are.
        ((), VIDEOS, {"out_of_range_ids": "drop"}, r"out_of_range_ids='drop'.*driver='host'"),
        ((), dataclasses.replace(VIDEOS, optimizer=Unknown(1.0)), {}, r"'videos'.*`Unknown`"),
    ],
    ids=["another topology", "dropping ids", "an optimizer without ops"],
)
def test_a_plan_that_a_tpu_cannot_have_is_refused(
    of_topology: tuple[int, ...], table: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(errors.InvalidSpec, match=message):
        TpuDriver(topology(*of_topology)).configure(plan_of(table, **options))


def test_ragged_ids_cannot_be_split() -> None:
    """With model parallelism a ragged feature is refused by name, as stock refuses it."""
    with tf.Graph().as_default(), pytest.raises(ValueError, match=r"watched.*ragged.*4 cores"):
        tpu_topology.part("Feature 'watched'", ragged(tf.int64, "watched"), 0, 4)


@pytest.mark.parametrize("shape", [(BATCH, 5), (BATCH, 3, 2, 5)])
def test_sparse_ids_of_another_rank_are_refused(shape: tuple[int, ...]) -> None:
    """Coordinates without one column more than the activation has axes are refused."""
    feature = tf2_engine.FeatureSpec("watched", "videos", output_shape=(BATCH, 3))
    plan = make_plan(tf2_engine.EngineSpec((VIDEOS,), (feature,)), [(BATCH, 3)])
    with tf.Graph().as_default():
        driver = TpuDriver(topology())
        driver.configure(plan)
        with pytest.raises(errors.InvalidInput, match=rf"'watched'.*rank {len(shape)}"):
            driver.enqueue(step_inputs([sparse(tf.int64, "watched", shape)]), True)
