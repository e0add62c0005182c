"""The only place where the project uses private or version-dependent names of TensorFlow."""

from __future__ import annotations

import tensorflow as tf

from tf2_engine import log
from tf2_engine.tf_compat.export_signatures import (
    export_output_classes,
    export_outputs,
    in_saved_model_export,
    saved_model_export,
    signature_defs,
)
from tf2_engine.tf_compat.feature_columns import (
    CategoricalColumn,
    ColumnState,
    DenseColumn,
    FeatureCache,
    V1InputLayer,
    V1LinearModel,
    check_batch_sizes,
    column_scope_name,
    column_scopes,
    dense_values,
    is_dense_column,
    is_new_column,
    mask_key,
    pad_ids,
    sequence_length_key,
    sorted_columns,
    weighted_sum,
    with_context,
)
from tf2_engine.tf_compat.graph_ops import (
    ARGUMENT_ATTRIBUTE,
    LAYER_ATTRIBUTE,
    Cancellation,
    could_record,
    eagerly,
    has_ops,
    is_in_control_flow,
    is_in_python,
    kernels_of,
    move_ops,
    name_scope_now,
    num_kernels,
    ops_in_python,
    replace_input,
    restart_random_ops,
    rewire,
    run_after,
    set_attributes,
    variable_scope_only,
)
from tf2_engine.tf_compat.graph_savers import (
    RowRanges,
    SaverBuilderOfSlices,
    VariableInSlices,
    checkpoint_key,
    checkpoint_shape,
    iterator_saveable,
    part_of,
    row_ranges,
    save_as,
    saver_by_object,
    saver_of_graph,
    set_row_ranges,
)
from tf2_engine.tf_compat.keras_internals import (
    broadcast_weights,
    compiled_metrics,
    flat_layers,
    has_keras_weights,
    in_keras_construction,
    is_graph_network,
    keras2,
    keras2_v1,
    keras_learning_rate,
    keras_train_op,
    keras_variable_index,
    remember_keras_names,
    restore_reset_model,
    start_keras_optimizer,
    tf1_style_regularizers,
    track,
    update_of_metric,
    v1_layers,
    weigh_losses,
)
from tf2_engine.tf_compat.nests import flatten_with_paths, nest
from tf2_engine.tf_compat.patching import equal_by_identity
from tf2_engine.tf_compat.protos import (
    GradientAccumulationStatus,
    HotIdReplicationConfiguration,
    LowDimensionalPackingStatus,
    OptimizationParameters,
    TPUEmbeddingConfiguration,
)
from tf2_engine.tf_compat.random_numbers import (
    SEEDS_PER_CORE,
    begin_random_numbers_anew,
    numbered_seeds,
)
from tf2_engine.tf_compat.replicas import (
    call_for_each_replica,
    estimator_scope,
    is_loss_scaled,
    per_replica,
    regroup,
    select_replica,
    strategy_in_scope,
)
from tf2_engine.tf_compat.session_calls import remember_fetches
from tf2_engine.tf_compat.sessions import (
    add_saving_listener,
    count_evaluation_step,
    path_of_saver,
    publish_checkpoint,
    read_global_step,
    read_logged_variables,
    set_global_step_read,
    summary_ops,
    summary_writer_initializers,
)
from tf2_engine.tf_compat.tf1_names import (
    clustering,
    index_table_from_tensor,
    index_to_string_table_from_tensor,
    legacy_tpu_class,
    names_of_tf1,
)
from tf2_engine.tf_compat.tpu_systems import (
    TPUExtended,
    around_sparse_core_ids,
    do_not_pack_variables,
    embedding_hardware,
    reach_sharded_variables_by_position,
    sharded_variable_creator,
    sparse_cores_of,
    tpu_devices,
    tpu_hardware,
    tpu_metadata,
    tpu_replica_context,
)
from tf2_engine.tf_compat.tpu_tracing import (
    TPUReplicateContext,
    core_now,
    in_tpu_shard_context,
    replica_id,
    tpu_computation,
    tpu_computation_context,
    tpu_computation_graph,
    tpu_shard_context,
    trace_on_one_replica,
)
from tf2_engine.tf_compat.trackables import CheckpointedEmbedding, SavedTensor
from tf2_engine.tf_compat.variable_kinds import (
    ShardedTable,
    ShardInfo,
    initializers,
    plain_variable,
)

TESTED = ("2.15", "2.21", "2.22")
if ".".join(tf.__version__.split(".")[:2]) not in TESTED:
    log.PlainLogger(__name__).warning(
        "TensorFlow %s: this project is tested with %s; others should work, but check the results.",
        tf.__version__,
        ", ".join(TESTED),
    )
