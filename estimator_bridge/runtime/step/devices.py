"""Adds the engine to the graph of a step, with a host driver or with a software TPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, get_args

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.defaults import DEFAULTS
from estimator_bridge.runtime.program_types import Hook, RunContext
from tf2_engine import TPUEmbedding, soft_tpu, tf_compat
from tf2_engine.backends import HostDriver
from tf2_engine.backends.interface import Arithmetic, Driver
from tf2_engine.backends.ps.messages import WIRES, Wire
from tf2_engine.placement import Layout
from tf2_engine.plan import Shape
from tf2_engine.types import Nest, Op, Session, Strategy, Tensor

SOFTWARE_TPU: Final = "software_tpu"
HOST: Final = "host"

Engine = str | Driver  # HOST, SOFTWARE_TPU, or a driver that keeps the tables on hosts
PerCore = Sequence[Mapping[str, Nest]]  # for each core, a dict keyed by feature

_LAYOUTS: tuple[Layout, ...] = ("div", "octaves")  # a spec may also ask for "mod"


def wire_of(wire: Wire | None) -> Wire:
    chosen = DEFAULTS.wire if wire is None else wire
    if chosen not in WIRES:
        names = ", ".join(map(repr, WIRES))
        raise errors.InvalidInput(f"`wire` must be one of {names}, got {chosen!r}.")
    return chosen


def layout_of(layout: Layout | None, strategy: str) -> Layout:
    chosen = DEFAULTS.layout if layout is None else layout
    if chosen not in _LAYOUTS:
        names = " or ".join(map(repr, _LAYOUTS))
        raise errors.InvalidInput(f"`layout` must be {names}, got {chosen!r}.")
    if strategy != "mod":
        return chosen
    if chosen != "div":
        raise errors.InvalidInput(
            f"`layout`={chosen!r}, but the embedding spec has `partition_strategy`='mod', which is "
            "a layout itself and balances the load like octaves. Set only one of the two. (With "
            "octaves, checkpoints hold rows in the order of their ids.)"
        )
    return "mod"


def engine_of(engine: Engine | None, arithmetic: Arithmetic | None) -> Engine:
    chosen: Engine = DEFAULTS.engine if engine is None else engine
    if isinstance(chosen, str) and chosen not in (HOST, SOFTWARE_TPU):
        raise errors.InvalidInput(
            f"`engine`={chosen!r}: a TPUEstimator runs on 'host', which emulates a TPU on any "
            "machine, or on 'software_tpu'. On a TPU, use the engine without an estimator: "
            "tf2_engine.TPUEmbedding under a TPUStrategy."
        )
    if arithmetic is not None and arithmetic not in get_args(Arithmetic):
        names = " or ".join(map(repr, get_args(Arithmetic)))
        raise errors.InvalidInput(f"`arithmetic` must be {names}, got {arithmetic!r}.")
    if isinstance(chosen, Driver):
        if arithmetic not in (None, arithmetic_of(chosen)):
            raise errors.InvalidInput(
                f"`arithmetic`={arithmetic!r}, but `engine`={chosen!r} is a driver, and a driver "
                "has its own arithmetic. Leave one of the two out, or set HostDriver's "
                "`arithmetic`."
            )
        return chosen
    if (arithmetic or DEFAULTS.arithmetic) != "sparsecore":
        return chosen
    if chosen != HOST:
        raise errors.InvalidInput(
            f"`arithmetic`='sparsecore', but `engine`={chosen!r}: under an estimator, the software "
            "TPU has embedding hardware of the first generation. Leave `engine` out."
        )
    return HostDriver(arithmetic="sparsecore")


def arithmetic_of(engine: Engine) -> Arithmetic:
    return engine.arithmetic if isinstance(engine, Driver) else "tpu"


class Device:
    """The engine as a part of a step's graph. This base class is for host drivers."""

    hooks: tuple[Hook, ...] = ()  # hooks that sessions need
    holds_tables = False  # True if the tables are on the device and the variables are copies

    def __init__(self, engine: TPUEmbedding) -> None:
        self.engine = engine

    def look_up(
        self, ids: PerCore, weights: PerCore, training: bool, after: Sequence[Op]
    ) -> tuple[PerCore, Op]:
        """Looks up a batch after the ops in `after`. The step must also run the returned op."""
        enqueued = self.engine.enqueue(_nest(ids), _nest(weights), training=training)
        with tf.control_dependencies(list(after)):
            activations = tf.nest.map_structure(tf.identity, self.engine.dequeue())
        return (activations if len(ids) > 1 else [activations]), enqueued

    def update(self, gradients: PerCore) -> Op:
        return self.engine.apply_gradients(_nest(gradients))

    def retrieve(self, session: Session, retrieve: Op) -> None:
        session.run(retrieve)


def _nest(per_core: PerCore) -> Nest:
    return list(per_core) if len(per_core) > 1 else per_core[0]


class _SoftwareTpuDevice(Device):
    holds_tables = True

    def __init__(self, engine: TPUEmbedding, strategy: Strategy, hold: _HoldHook) -> None:
        super().__init__(engine)
        self._strategy, self._hold = strategy, hold
        self.hooks = (hold,)
        self._looked_up: list[Tensor] = []

    def look_up(
        self, ids: PerCore, weights: PerCore, training: bool, after: Sequence[Op]
    ) -> tuple[PerCore, Op]:
        enqueued = self.engine.enqueue(_distributed(ids), _distributed(weights), training=training)
        # If a hook fetches only activations, a lookup without its batch would wait forever.
        with tf.control_dependencies([*after, enqueued]):
            activations = self._strategy.run(self.engine.dequeue)
        leaves = map(self._strategy.experimental_local_results, tf.nest.flatten(activations))
        per_core = [
            tf.nest.pack_sequence_as(activations, list(core)) for core in zip(*leaves, strict=True)
        ]
        self._looked_up = tf.nest.flatten(per_core)
        return per_core, enqueued

    def update(self, gradients: PerCore) -> Op:
        def send(gradients_of_core: Mapping[str, Tensor]) -> Tensor:
            with tf.control_dependencies([self.engine.apply_gradients(gradients_of_core)]):
                return tf.constant(True)  # `strategy.run` would not return an op.

        # Even constant gradients have to wait until the batch has been looked up.
        with tf.control_dependencies(self._looked_up):
            sent = self._strategy.run(
                tf.autograph.experimental.do_not_convert(send), args=(_distributed(gradients),)
            )
        return tf.group(*self._strategy.experimental_local_results(sent))

    def retrieve(self, session: Session, retrieve: Op) -> None:
        if self._hold.holds:  # otherwise the variables are newer than the device
            session.run(retrieve)


class _HoldHook(tf.train.SessionRunHook):
    """Takes over the software TPU for a session, for example from an evaluation that has ended.

    It configures the TPU and loads the variables' values.
    """

    def __init__(self, num_cores: int, configure: Op, load: Op) -> None:
        self._num_cores = num_cores
        self._configure, self._load = configure, load
        self._start: int | None = None

    @property
    def holds(self) -> bool:
        return self._start == soft_tpu.num_starts()

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        self._take(session)

    def before_run(self, run_context: RunContext) -> None:
        if not self.holds:
            self._take(run_context.session)

    def _take(self, session: Session) -> None:
        soft_tpu.start(self._num_cores)
        self._start = soft_tpu.num_starts()
        session.run(self._configure)
        session.run(self._load)


def make_device(
    engine: Engine, num_cores: int, make: Callable[..., TPUEmbedding], shapes: Sequence[Shape]
) -> Device:
    """Builds the engine; `shapes` are the activations' shapes without the last dimension."""
    if engine != SOFTWARE_TPU:
        embedding = make(driver=engine, num_cores=num_cores)
        embedding.build_for(shapes)
        return Device(embedding)
    strategy = soft_tpu.SoftTPUStrategy(num_cores)
    with strategy.scope():
        embedding = make(driver="tpu")
    configure, load = embedding.build_for(shapes)
    return _SoftwareTpuDevice(embedding, strategy, _HoldHook(num_cores, configure, load))


def _distributed(per_core: PerCore) -> Nest:
    return tf.nest.map_structure(
        lambda *parts: None if parts[0] is None else tf_compat.per_replica(parts), *per_core
    )
