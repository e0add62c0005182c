"""The names of `tf.compat.v2.estimator`, which is `tf.estimator` in TensorFlow 2.

    from estimator_bridge.estimator import v2 as tf_estimator

Some names stand for different classes from those in `tf.compat.v1.estimator`. The submodules are
the same.
"""

from estimator_bridge.run import namespaces

__getattr__, __dir__, __all__ = namespaces.exports(__name__)
