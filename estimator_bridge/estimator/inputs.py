"""The names of `tf.compat.v1.estimator.inputs`."""

from estimator_bridge.run import namespaces

__getattr__, __dir__, __all__ = namespaces.exports(__name__)
