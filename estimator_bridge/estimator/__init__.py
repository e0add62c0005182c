"""The names of `tf.compat.v1.estimator`, for programs that use TPUs.

    from estimator_bridge import estimator as tf_estimator

`run/stock_names.py` has a row for each name in this package and its modules.
"""

from estimator_bridge.estimator import experimental, export, inputs, tpu, v2
from estimator_bridge.run import namespaces

__getattr__, __dir__, __all__ = namespaces.exports(__name__)
