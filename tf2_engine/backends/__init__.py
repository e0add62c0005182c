"""The backends, which run the engine on different devices. `DRIVERS` lists their drivers."""

from __future__ import annotations

from tf2_engine import errors, tf_compat
from tf2_engine.backends.host import HostDriver
from tf2_engine.backends.interface import Driver, ReplicaDriver, StepDriver
from tf2_engine.backends.ps import PsDriver, StrategyPsDriver
from tf2_engine.backends.sparsecore import SparseCoreDriver
from tf2_engine.backends.tpu import TpuDriver

DRIVERS: dict[str, type[Driver]] = {
    "host": HostDriver,
    "ps": StrategyPsDriver,
    "sparsecore": SparseCoreDriver,
    "tpu": TpuDriver,
}
"""Maps names to drivers. `PsDriver` is left out, because it needs the devices of its tasks."""


def make_driver(name: str | None, *, initialize: bool) -> Driver:
    if name is None:
        strategy = tf_compat.strategy_in_scope()
        claiming = [key for key, kind in DRIVERS.items() if kind.claims(strategy)]
        name = (claiming or list(DRIVERS))[0]
    if not isinstance(name, str) or name not in DRIVERS:
        raise errors.InvalidSpec(f"`driver` must be one of {', '.join(DRIVERS)}, got {name!r}.")
    return DRIVERS[name].for_engine(initialize=initialize)
