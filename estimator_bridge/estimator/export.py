"""The names of `tf.compat.v1.estimator.export`."""

from estimator_bridge.run import namespaces
from tf2_engine import tf_compat

__getattr__, __dir__, __all__ = namespaces.exports(__name__)

# TensorFlow still has the output classes, and its SavedModel code accepts no others.
globals().update(tf_compat.export_output_classes())
