"""The seam: every private or version-dependent name of TensorFlow that the project uses.

Nothing else in the project imports `tensorflow.python`, `tensorflow.core` or keras internals.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

# The config proto and its enums have no public name.
from tensorflow.core.protobuf.tpu import optimization_parameters_pb2 as _optimization
from tensorflow.core.protobuf.tpu import tpu_embedding_configuration_pb2 as _configuration

TPUEmbeddingConfiguration = _configuration.TPUEmbeddingConfiguration
GradientAccumulationStatus = _optimization.GradientAccumulationStatus
HotIdReplicationConfiguration = _optimization.HotIdReplicationConfiguration
