"""The only place where the project uses private or version-dependent names of TensorFlow.

The package offers the public names of all its modules.
"""

from __future__ import annotations

import tensorflow as tf

from tf2_engine import log
from tf2_engine.tf_compat.feature_columns import *
from tf2_engine.tf_compat.graph_ops import *
from tf2_engine.tf_compat.graph_savers import *
from tf2_engine.tf_compat.keras_internals import *
from tf2_engine.tf_compat.random_numbers import *
from tf2_engine.tf_compat.replicas import *
from tf2_engine.tf_compat.sessions import *
from tf2_engine.tf_compat.tf1_names import *
from tf2_engine.tf_compat.tpu import *
from tf2_engine.tf_compat.trackables import *

TESTED = ("2.15", "2.21", "2.22")
if ".".join(tf.__version__.split(".")[:2]) not in TESTED:
    log.PlainLogger(__name__).warning(
        "TensorFlow %s: this project is tested with %s. Others should work, but check the results.",
        tf.__version__,
        ", ".join(TESTED),
    )
