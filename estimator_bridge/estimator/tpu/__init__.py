"""The names of `tf.compat.v1.estimator.tpu`."""

from estimator_bridge.estimator.tpu import experimental
from estimator_bridge.run import namespaces

__getattr__, __dir__, __all__ = namespaces.exports(__name__)
