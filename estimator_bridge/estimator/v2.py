"""The names of `tf.compat.v2.estimator`, which is `tf.estimator` in TensorFlow 2.

    from estimator_bridge.estimator import v2 as tf_estimator

Classes of some names are others than in `tf.compat.v1.estimator`. Modules are the same: they have
the names of TensorFlow 1 too.
"""

from estimator_bridge.run import namespaces

__getattr__, __dir__, __all__ = namespaces.exports(__name__)
