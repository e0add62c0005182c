"""Tables on parameter servers: TensorFlow servers store the rows, and workers run the cores."""

from tf2_engine.backends.ps.cores import is_server_strategy
from tf2_engine.backends.ps.driver import PsDriver, StrategyPsDriver

__all__ = ["PsDriver", "StrategyPsDriver", "is_server_strategy"]
