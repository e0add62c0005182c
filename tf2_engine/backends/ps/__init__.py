"""Tables on parameter servers: TensorFlow's servers hold rows, and workers run the cores."""

from tf2_engine.backends.ps.driver import PsDriver

__all__ = ["PsDriver"]
