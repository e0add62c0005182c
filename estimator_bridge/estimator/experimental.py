"""The names of `tf.compat.v1.estimator.experimental`, and the tf.data functions for estimators."""

from estimator_bridge.run import namespaces

__getattr__, __dir__, __all__ = namespaces.exports(__name__)
