"""Process-wide defaults for settings that an estimator or a spec does not set."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from estimator_bridge import errors

if TYPE_CHECKING:  # commands without NumPy and TensorFlow import this module
    from tf2_engine.backends.host.driver import Arithmetic
    from tf2_engine.backends.ps.messages import Wire
    from tf2_engine.placement import Layout


@dataclasses.dataclass
class Defaults:
    """The process's defaults; `estimator-bridge run` sets them before the program starts.

    Attributes:
        quirks: "stock" or "documented"; see `settings.quirks`.
        engine: "host" or "software_tpu"; see `runtime.step.devices`.
        arithmetic: "tpu" or "sparsecore".
        cores: how many cores a TPUEstimator emulates if its TPUConfig sets no `num_shards`. If
            None, the environment variable that `CORES_VARIABLE` names decides.
        input_hosts: how many hosts call an input_fn. If None, the environment variable that
            `INPUT_HOSTS_VARIABLE` names decides. If that is not set either, an input_fn that reads
            its host number is called by every worker, and any other input_fn by the chief.
    """

    quirks: str = "documented"
    engine: str = "host"
    arithmetic: Arithmetic = "tpu"
    layout: Layout = "div"
    wire: Wire = "smallest"
    cores: int | None = None
    input_hosts: int | None = None


DEFAULTS = Defaults()

CORES_VARIABLE = "ESTIMATOR_BRIDGE_CORES"
INPUT_HOSTS_VARIABLE = "ESTIMATOR_BRIDGE_INPUT_HOSTS"


def default_cores() -> int | None:
    """Returns the number of cores, or None; raises InvalidInput if the variable is malformed."""
    return _count(DEFAULTS.cores, CORES_VARIABLE, "cores")


def default_input_hosts() -> int | None:
    """Returns the number of hosts, or None; raises InvalidInput if the variable is malformed."""
    return _count(DEFAULTS.input_hosts, INPUT_HOSTS_VARIABLE, "hosts")


def _count(of_run: int | None, variable: str, things: str) -> int | None:
    text = os.environ.get(variable, "")
    if of_run is not None or not text:
        return of_run
    if not text.isdecimal() or int(text) < 1:
        raise errors.InvalidInput(f"${variable}={text!r} must be a positive number of {things}.")
    return int(text)
