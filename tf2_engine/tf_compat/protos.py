"""Protos without a public name, for the TPU configuration and for checkpoint files."""

from __future__ import annotations

from tensorflow.core.protobuf import tensor_bundle_pb2 as _bundle
from tensorflow.core.protobuf import trackable_object_graph_pb2 as _objects
from tensorflow.core.protobuf.tpu import optimization_parameters_pb2 as _optimization
from tensorflow.core.protobuf.tpu import tpu_embedding_configuration_pb2 as _configuration

TPUEmbeddingConfiguration = _configuration.TPUEmbeddingConfiguration
OptimizationParameters = _optimization.OptimizationParameters
GradientAccumulationStatus = _optimization.GradientAccumulationStatus
HotIdReplicationConfiguration = _optimization.HotIdReplicationConfiguration
LowDimensionalPackingStatus = _optimization.LowDimensionalPackingStatus
BundleHeader = _bundle.BundleHeaderProto
BundleEntry = _bundle.BundleEntryProto
TrackableObjectGraph = _objects.TrackableObjectGraph
