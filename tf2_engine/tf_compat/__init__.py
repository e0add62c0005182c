"""The seam: every private or version-dependent name of TensorFlow that the project uses.

Nothing else in the project imports `tensorflow.python`, `tensorflow.core` or keras internals. The
modules are by subject, and the rest of the project takes the names from here.
"""

from __future__ import annotations

import tensorflow as tf

from tf2_engine import log
from tf2_engine.tf_compat.export_signatures import export_output_classes as export_output_classes
from tf2_engine.tf_compat.export_signatures import export_outputs as export_outputs
from tf2_engine.tf_compat.export_signatures import in_saved_model_export as in_saved_model_export
from tf2_engine.tf_compat.export_signatures import saved_model_export as saved_model_export
from tf2_engine.tf_compat.export_signatures import signature_defs as signature_defs
from tf2_engine.tf_compat.feature_columns import CategoricalColumn as CategoricalColumn
from tf2_engine.tf_compat.feature_columns import ColumnState as ColumnState
from tf2_engine.tf_compat.feature_columns import DenseColumn as DenseColumn
from tf2_engine.tf_compat.feature_columns import FeatureCache as FeatureCache
from tf2_engine.tf_compat.feature_columns import V1InputLayer as V1InputLayer
from tf2_engine.tf_compat.feature_columns import V1LinearModel as V1LinearModel
from tf2_engine.tf_compat.feature_columns import check_batch_sizes as check_batch_sizes
from tf2_engine.tf_compat.feature_columns import column_scope_name as column_scope_name
from tf2_engine.tf_compat.feature_columns import column_scopes as column_scopes
from tf2_engine.tf_compat.feature_columns import dense_values as dense_values
from tf2_engine.tf_compat.feature_columns import is_dense_column as is_dense_column
from tf2_engine.tf_compat.feature_columns import is_new_column as is_new_column
from tf2_engine.tf_compat.feature_columns import mask_key as mask_key
from tf2_engine.tf_compat.feature_columns import pad_ids as pad_ids
from tf2_engine.tf_compat.feature_columns import sequence_length_key as sequence_length_key
from tf2_engine.tf_compat.feature_columns import sorted_columns as sorted_columns
from tf2_engine.tf_compat.feature_columns import weighted_sum as weighted_sum
from tf2_engine.tf_compat.feature_columns import with_context as with_context
from tf2_engine.tf_compat.graph_ops import ARGUMENT_ATTRIBUTE as ARGUMENT_ATTRIBUTE
from tf2_engine.tf_compat.graph_ops import LAYER_ATTRIBUTE as LAYER_ATTRIBUTE
from tf2_engine.tf_compat.graph_ops import Cancellation as Cancellation
from tf2_engine.tf_compat.graph_ops import HostArguments as HostArguments
from tf2_engine.tf_compat.graph_ops import could_record as could_record
from tf2_engine.tf_compat.graph_ops import eagerly as eagerly
from tf2_engine.tf_compat.graph_ops import has_ops as has_ops
from tf2_engine.tf_compat.graph_ops import host_arguments as host_arguments
from tf2_engine.tf_compat.graph_ops import is_in_control_flow as is_in_control_flow
from tf2_engine.tf_compat.graph_ops import is_in_python as is_in_python
from tf2_engine.tf_compat.graph_ops import move_ops as move_ops
from tf2_engine.tf_compat.graph_ops import name_scope_now as name_scope_now
from tf2_engine.tf_compat.graph_ops import num_kernels as num_kernels
from tf2_engine.tf_compat.graph_ops import ops_in_python as ops_in_python
from tf2_engine.tf_compat.graph_ops import replace_input as replace_input
from tf2_engine.tf_compat.graph_ops import restart_random_ops as restart_random_ops
from tf2_engine.tf_compat.graph_ops import rewire as rewire
from tf2_engine.tf_compat.graph_ops import run_after as run_after
from tf2_engine.tf_compat.graph_ops import set_attributes as set_attributes
from tf2_engine.tf_compat.graph_ops import variable_scope_only as variable_scope_only
from tf2_engine.tf_compat.graph_savers import RowRanges as RowRanges
from tf2_engine.tf_compat.graph_savers import SaverBuilderOfSlices as SaverBuilderOfSlices
from tf2_engine.tf_compat.graph_savers import VariableInSlices as VariableInSlices
from tf2_engine.tf_compat.graph_savers import checkpoint_key as checkpoint_key
from tf2_engine.tf_compat.graph_savers import checkpoint_shape as checkpoint_shape
from tf2_engine.tf_compat.graph_savers import iterator_saveable as iterator_saveable
from tf2_engine.tf_compat.graph_savers import part_of as part_of
from tf2_engine.tf_compat.graph_savers import row_ranges as row_ranges
from tf2_engine.tf_compat.graph_savers import save_as as save_as
from tf2_engine.tf_compat.graph_savers import saver_by_object as saver_by_object
from tf2_engine.tf_compat.graph_savers import saver_of_graph as saver_of_graph
from tf2_engine.tf_compat.graph_savers import set_row_ranges as set_row_ranges
from tf2_engine.tf_compat.keras_internals import broadcast_weights as broadcast_weights
from tf2_engine.tf_compat.keras_internals import compiled_metrics as compiled_metrics
from tf2_engine.tf_compat.keras_internals import flat_layers as flat_layers
from tf2_engine.tf_compat.keras_internals import has_keras_weights as has_keras_weights
from tf2_engine.tf_compat.keras_internals import in_keras_construction as in_keras_construction
from tf2_engine.tf_compat.keras_internals import is_graph_network as is_graph_network
from tf2_engine.tf_compat.keras_internals import keras2 as keras2
from tf2_engine.tf_compat.keras_internals import keras2_v1 as keras2_v1
from tf2_engine.tf_compat.keras_internals import keras_learning_rate as keras_learning_rate
from tf2_engine.tf_compat.keras_internals import keras_train_op as keras_train_op
from tf2_engine.tf_compat.keras_internals import keras_variable_index as keras_variable_index
from tf2_engine.tf_compat.keras_internals import remember_keras_names as remember_keras_names
from tf2_engine.tf_compat.keras_internals import restore_reset_model as restore_reset_model
from tf2_engine.tf_compat.keras_internals import start_keras_optimizer as start_keras_optimizer
from tf2_engine.tf_compat.keras_internals import tf1_style_regularizers as tf1_style_regularizers
from tf2_engine.tf_compat.keras_internals import track as track
from tf2_engine.tf_compat.keras_internals import v1_layers as v1_layers
from tf2_engine.tf_compat.keras_internals import weigh_losses as weigh_losses
from tf2_engine.tf_compat.nests import flatten_with_paths as flatten_with_paths
from tf2_engine.tf_compat.nests import nest as nest
from tf2_engine.tf_compat.protos import BundleEntry as BundleEntry
from tf2_engine.tf_compat.protos import BundleHeader as BundleHeader
from tf2_engine.tf_compat.protos import GradientAccumulationStatus as GradientAccumulationStatus
from tf2_engine.tf_compat.protos import (
    HotIdReplicationConfiguration as HotIdReplicationConfiguration,
)
from tf2_engine.tf_compat.protos import LowDimensionalPackingStatus as LowDimensionalPackingStatus
from tf2_engine.tf_compat.protos import OptimizationParameters as OptimizationParameters
from tf2_engine.tf_compat.protos import TPUEmbeddingConfiguration as TPUEmbeddingConfiguration
from tf2_engine.tf_compat.protos import TrackableObjectGraph as TrackableObjectGraph
from tf2_engine.tf_compat.random_numbers import SEEDS_PER_CORE as SEEDS_PER_CORE
from tf2_engine.tf_compat.random_numbers import (
    begin_random_numbers_anew as begin_random_numbers_anew,
)
from tf2_engine.tf_compat.random_numbers import numbered_seeds as numbered_seeds
from tf2_engine.tf_compat.replicas import call_for_each_replica as call_for_each_replica
from tf2_engine.tf_compat.replicas import estimator_scope as estimator_scope
from tf2_engine.tf_compat.replicas import is_loss_scaled as is_loss_scaled
from tf2_engine.tf_compat.replicas import per_replica as per_replica
from tf2_engine.tf_compat.replicas import regroup as regroup
from tf2_engine.tf_compat.replicas import select_replica as select_replica
from tf2_engine.tf_compat.replicas import strategy_in_scope as strategy_in_scope
from tf2_engine.tf_compat.session_calls import remember_fetches as remember_fetches
from tf2_engine.tf_compat.sessions import add_saving_listener as add_saving_listener
from tf2_engine.tf_compat.sessions import count_evaluation_step as count_evaluation_step
from tf2_engine.tf_compat.sessions import path_of_saver as path_of_saver
from tf2_engine.tf_compat.sessions import publish_checkpoint as publish_checkpoint
from tf2_engine.tf_compat.sessions import read_global_step as read_global_step
from tf2_engine.tf_compat.sessions import set_global_step_read as set_global_step_read
from tf2_engine.tf_compat.sessions import summary_ops as summary_ops
from tf2_engine.tf_compat.sessions import summary_writer_initializers as summary_writer_initializers
from tf2_engine.tf_compat.tf1_names import clustering as clustering
from tf2_engine.tf_compat.tf1_names import index_table_from_tensor as index_table_from_tensor
from tf2_engine.tf_compat.tf1_names import (
    index_to_string_table_from_tensor as index_to_string_table_from_tensor,
)
from tf2_engine.tf_compat.tf1_names import legacy_tpu_class as legacy_tpu_class
from tf2_engine.tf_compat.tf1_names import names_of_tf1 as names_of_tf1
from tf2_engine.tf_compat.tpu_systems import TPUExtended as TPUExtended
from tf2_engine.tf_compat.tpu_systems import around_sparse_core_ids as around_sparse_core_ids
from tf2_engine.tf_compat.tpu_systems import do_not_pack_variables as do_not_pack_variables
from tf2_engine.tf_compat.tpu_systems import embedding_hardware as embedding_hardware
from tf2_engine.tf_compat.tpu_systems import (
    reach_sharded_variables_by_position as reach_sharded_variables_by_position,
)
from tf2_engine.tf_compat.tpu_systems import sharded_variable_creator as sharded_variable_creator
from tf2_engine.tf_compat.tpu_systems import sparse_cores_of as sparse_cores_of
from tf2_engine.tf_compat.tpu_systems import tpu_devices as tpu_devices
from tf2_engine.tf_compat.tpu_systems import tpu_hardware as tpu_hardware
from tf2_engine.tf_compat.tpu_systems import tpu_metadata as tpu_metadata
from tf2_engine.tf_compat.tpu_systems import tpu_replica_context as tpu_replica_context
from tf2_engine.tf_compat.tpu_tracing import TPUReplicateContext as TPUReplicateContext
from tf2_engine.tf_compat.tpu_tracing import core_now as core_now
from tf2_engine.tf_compat.tpu_tracing import in_tpu_shard_context as in_tpu_shard_context
from tf2_engine.tf_compat.tpu_tracing import replica_id as replica_id
from tf2_engine.tf_compat.tpu_tracing import tpu_computation as tpu_computation
from tf2_engine.tf_compat.tpu_tracing import tpu_computation_context as tpu_computation_context
from tf2_engine.tf_compat.tpu_tracing import tpu_computation_graph as tpu_computation_graph
from tf2_engine.tf_compat.tpu_tracing import tpu_shard_context as tpu_shard_context
from tf2_engine.tf_compat.tpu_tracing import trace_on_one_replica as trace_on_one_replica
from tf2_engine.tf_compat.trackables import CheckpointedEmbedding as CheckpointedEmbedding
from tf2_engine.tf_compat.trackables import SavedTensor as SavedTensor
from tf2_engine.tf_compat.variable_kinds import ShardedTable as ShardedTable
from tf2_engine.tf_compat.variable_kinds import ShardInfo as ShardInfo
from tf2_engine.tf_compat.variable_kinds import initializers as initializers
from tf2_engine.tf_compat.variable_kinds import plain_variable as plain_variable

TESTED = ("2.15", "2.21", "2.22")
if ".".join(tf.__version__.split(".")[:2]) not in TESTED:
    log.PlainLogger(__name__).warning(
        "TensorFlow %s: this project is tested with %s; others should work, but check the results.",
        tf.__version__,
        ", ".join(TESTED),
    )
