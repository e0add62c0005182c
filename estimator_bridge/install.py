"""Makes legacy programs import the bridge: call `install.install()` before importing TensorFlow."""

from estimator_bridge.run.install import install, installed, uninstall
from estimator_bridge.run.keras_choice import use_legacy_keras

__all__ = ["install", "installed", "uninstall", "use_legacy_keras"]
