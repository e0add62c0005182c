"""The drivers; the table below is the list of them, one module or package each."""

from __future__ import annotations

from tf2_engine.backends.host import HostDriver
from tf2_engine.backends.interface import Driver
from tf2_engine.backends.tpu.driver import TpuDriver

DRIVERS: dict[str, type[Driver]] = {"host": HostDriver, "tpu": TpuDriver}
"""Every driver by name."""

__all__ = ["DRIVERS", "Driver", "HostDriver", "TpuDriver"]
