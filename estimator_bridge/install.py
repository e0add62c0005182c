"""Makes legacy programs find the bridge: `install.install()`, before they import TensorFlow."""

from estimator_bridge.run.install import install, installed, uninstall

__all__ = ["install", "installed", "uninstall"]
