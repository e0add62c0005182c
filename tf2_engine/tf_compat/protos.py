"""Protos for the configuration of TPUs that have no public name."""

from __future__ import annotations

from tensorflow.core.protobuf.tpu import optimization_parameters_pb2 as _optimization
from tensorflow.core.protobuf.tpu import tpu_embedding_configuration_pb2 as _configuration

TPUEmbeddingConfiguration = _configuration.TPUEmbeddingConfiguration
OptimizationParameters = _optimization.OptimizationParameters
GradientAccumulationStatus = _optimization.GradientAccumulationStatus
HotIdReplicationConfiguration = _optimization.HotIdReplicationConfiguration
LowDimensionalPackingStatus = _optimization.LowDimensionalPackingStatus
