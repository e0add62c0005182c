"""Defines the sides of a comparison: which engine runs the program, and with which options."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Literal

from estimator_bridge import errors

Arithmetic = Literal["tpu", "sparsecore"]
"""Repeats the host driver's type, which cannot be imported without TensorFlow."""
A, B, PERTURBED = "a", "b", "a-perturbed"
"""The roles of runs. The perturbed run is side A with the last bits of its values changed."""


@dataclasses.dataclass(frozen=True)
class Side:
    """One side of a comparison: an engine and its options.

    Attributes:
        stock: whether stock's TPUEstimator runs the program, instead of the bridge's.
        use_tpu: overrides the program's value, unless None. If it is true, stock runs on the
            software TPU.
        native: whether the host driver uses C++ ops; None lets the driver decide.
        software_tpu: whether the bridge's tables are on the software TPU, not on the host driver.
        arithmetic: the host driver's arithmetic; "tpu" leaves the choice to the program.
        stock_v2: whether the tables of a TensorFlow 2 program are in stock's TPUEmbeddingV2.
        quirks: the bridge's `quirks`; None leaves the choice to the program.
    """

    name: str
    stock: bool = False
    use_tpu: bool | None = None
    native: bool | None = None
    software_tpu: bool = False
    arithmetic: Arithmetic = "tpu"
    stock_v2: bool = False
    quirks: str | None = "stock"

    def arithmetic_of(self, program: Arithmetic | None) -> Arithmetic:
        return self.arithmetic if self.arithmetic != "tpu" else program or "tpu"


SIDES = {
    "stock": Side("stock", stock=True),
    "stock-cpu": Side("stock-cpu", stock=True, use_tpu=False),
    "stock-tpu": Side("stock-tpu", stock=True, use_tpu=True),
    "bridge": Side("bridge"),
    "bridge-cpu": Side("bridge-cpu", use_tpu=False),
    "bridge-tpu": Side("bridge-tpu", use_tpu=True),
    "bridge-native": Side("bridge-native", use_tpu=True, native=True),
    "bridge-ops": Side("bridge-ops", use_tpu=True, native=False),
    "bridge-sparsecore": Side("bridge-sparsecore", use_tpu=True, arithmetic="sparsecore"),
    "v2-soft": Side("v2-soft", use_tpu=True, arithmetic="sparsecore", stock_v2=True),
    "bridge-software-tpu": Side("bridge-software-tpu", use_tpu=True, software_tpu=True),
}


def side_of(name: str | Side) -> Side:
    if isinstance(name, Side):
        return name
    if name not in SIDES:
        raise errors.InvalidInput(f"There is no side {name!r}; the sides are {', '.join(SIDES)}.")
    return SIDES[name]


@contextlib.contextmanager
def opened(side: Side) -> Iterator[type]:
    """Sets up what a side needs, and yields the side's TPUEstimator class.

    Raises:
        MissingStock: this TensorFlow has no stock estimators.
        InvalidSpec, CannotBuild: the software TPU or the software SparseCores cannot run here.
    """
    from estimator_bridge.run import software_tpu

    with contextlib.ExitStack() as stack:
        if side.stock:
            # The program may ask for a TPU unless the side forbids it.
            if side.use_tpu is not False:
                stack.enter_context(software_tpu.stock_on_software_tpu())
            yield software_tpu.stock_estimator().tpu.TPUEstimator
        else:
            from estimator_bridge.runtime.estimator.tpu_estimator import TPUEstimator
            from tf2_engine import soft_tpu

            if side.stock_v2:
                strategy = soft_tpu.SoftTPUStrategy(1, hardware="sparsecore")
                stack.enter_context(strategy.scope())
            if side.software_tpu:
                stack.enter_context(software_tpu.bridge_on_software_tpu())
            yield TPUEstimator


@dataclasses.dataclass(frozen=True)
class RecordingRequest:
    """One run of a side.

    Attributes:
        replayed: the recording whose batches the run trains on.
        followed: the recording whose variables the side takes over after every recorded step.
        gradients_of: the recording whose gradients a `PERTURBED` run applies.
        sketches: whether to record a sketch of the value of each op of the model.
        steps: the run may be stopped after this many steps; None means that the program ends it.
        seconds: the run fails if it takes longer than this.
        next_role: the role of the next run, whose process is started in advance.
    """

    role: str
    directory: str
    begin_from: str | None = None
    replayed: str | None = None
    followed: str | None = None
    gradients_of: str | None = None
    sketches: bool = False
    steps: int | None = None
    seconds: float | None = None
    next_role: str | None = None

    @property
    def side(self) -> str:
        return side_of_role(self.role)


def side_of_role(role: str) -> str:
    return B if role.partition("-")[0] == B else A


Record = Callable[[RecordingRequest], None]
"""Runs a side, and writes its recording."""
