"""The functions and classes of stock's private modules that the bridge lacks.

They can be imported, as from stock, and fail only when they are used: many programs and libraries
import a name that they never need.
"""

from __future__ import annotations

from collections.abc import Mapping

from estimator_bridge.run import stock_names

_LACKING: Mapping[str, str] = {
    "canned.baseline": """_baseline_logit_fn_builder _baseline_model_fn
        _baseline_model_fn_builder_v2 _baseline_model_fn_v2 _get_batch_size_and_size_checks
        _get_weight_column_key _get_weight_column_key_v2""",
    "canned.dnn": """_DNNModel _DNNModelV2 _add_hidden_layer_summary _dnn_model_fn
        _dnn_model_fn_builder_v2 _get_dnn_estimator_spec _get_previous_name_scope
        _name_from_scope_name _validate_features dnn_logit_fn_builder_v2 dnn_model_fn_v2""",
    "canned.dnn_linear_combined": """_add_layer_summary _check_no_sync_replicas_optimizer
        _dnn_linear_combined_model_fn _dnn_linear_combined_model_fn_v2
        _init_dnn_linear_combined_estimator _linear_learning_rate _validate_feature_columns""",
    "canned.head": """_BinaryLogisticHeadWithSigmoidCrossEntropyLoss
        _MultiClassHeadWithSoftmaxCrossEntropyLoss _RegressionHeadWithMeanSquaredErrorLoss
        _accuracy_at_threshold _accuracy_baseline _all_class_ids _all_classes
        _append_update_ops _assert_range _auc _binary_logistic_or_multi_class_head
        _call_loss_fn _check_dense_labels_match_logits_and_reshape _check_logits_final_dim
        _classification_output _create_eval_metrics_tuple
        _get_weights_and_check_match_logits _indicator_labels_mean _precision_at_threshold
        _predictions_mean _recall_at_threshold _summary_key _validate_loss_fn_args
        _validate_n_classes""",
    "canned.kmeans": """_InitializeClustersHook _LossRelativeChangeHook _ModelFn
        _parse_features_if_necessary""",
    "canned.linear": """LinearModel _LinearModelLayer _SDCAUpdateWeightsHook
        _compute_fraction_of_zero _get_default_optimizer _get_default_optimizer_v2
        _get_expanded_variable_list _linear_model_fn _linear_model_fn_builder_v2
        _linear_model_fn_v2 _sdca_model_fn
        _validate_linear_sdca_optimizer_for_linear_classifier
        _validate_linear_sdca_optimizer_for_linear_regressor linear_logit_fn_builder_v2""",
    "canned.optimizers": "_optimizer_has_default_learning_rate",
    "canned.parsing_utils": "_add_label_and_weight_to_parsing_spec",
    "canned.rnn": """RNNModel _get_rnn_estimator_spec _make_rnn_cell_fn _make_rnn_layer
        _single_rnn_cell _verify_rnn_cell_input""",
    "early_stopping": """_CheckForStoppingHook _MultiWorkerEarlyStoppingHook
        _StopOnPredicateHook _get_or_create_stop_var _stop_if_no_metric_improvement_hook
        _stop_if_threshold_crossed_hook _summaries read_eval_metrics""",
    "estimator": """_assert_members_are_not_overridden _check_checkpoint_available
        _check_hooks_type _check_listeners_type _combine_distributed_scaffold _dict_to_str
        _extract_metric_update_ops _get_default_warm_start_settings
        _get_loss_reduce_op_for_reporting _get_replica_device_setter
        _has_dataset_or_queue_runner _verify_and_create_loss_metric _verify_model_fn_args
        _write_checkpoint_path_to_summary _write_dict_to_summary
        create_per_replica_ready_for_local_init_op""",
    "export.export": """UnsupervisedInputReceiver _check_tensor _check_tensor_key
        _placeholder_from_tensor _placeholders_from_receiver_tensors_dict
        wrap_and_check_input_tensors""",
    "exporter": "_loss_smaller _verify_compare_fn_args",
    "extenders": "_call_metric_fn _verify_metric_fn_args",
    "head.base_head": """all_class_ids all_classes call_loss_fn
        check_dense_labels_match_logits_and_reshape check_label_range check_logits_final_dim
        check_prediction_keys classification_output create_estimator_spec_summary
        create_estimator_spec_train_op create_eval_metrics_tuple
        get_weights_and_check_match_logits update_metric_with_broadcast_weights
        validate_loss_fn_args validate_loss_reduction validate_n_classes
        validate_trainable_variables validate_update_ops validate_v2_optimizer""",
    "head.multi_head": "_default_export_output _no_op_train_fn",
    "hooks.hooks": "_StopAtCheckpointStepHook",
    "inputs.numpy_io": "_get_unique_target_key _validate_and_convert_features",
    "inputs.pandas_io": "_get_unique_target_key",
    "keras_lib": """FormattedKeyError _any_weight_initialized _assert_valid_model
        _cast_tensor_to_floatx _clone_and_build_model _convert_estimator_io_to_keras
        _convert_keras_metrics_to_estimator _convert_tensor _create_keras_model_fn
        _extract_sample_weight_tensors _get_file_from_google_storage _save_first_checkpoint
        standardize_sample_weights""",
    "model_fn": """_TPUEstimatorSpec _check_is_tensor _check_is_tensor_or_operation
        _update_variable_collection _validate_estimator_spec_export_outputs
        _validate_estimator_spec_hooks _validate_estimator_spec_loss
        _validate_estimator_spec_predictions _validate_estimator_spec_train_op
        _validate_eval_metric_ops _validate_scaffold verify_model_fn_args""",
    "run_config": """_count_ps _count_worker _get_eval_session_master
        _get_global_id_in_cluster _get_model_dir _get_session_master _validate_properties
        _validate_save_ckpt_with_replaced_keys _validate_service
        _validate_task_type_and_task_id get_default_session_config path_to_str""",
    "tpu._tpu_estimator_embedding": """EmbeddingConfig
        _get_embedding_var_name_from_table_name _get_embedding_variable_name
        _get_slot_variable_names _get_sparse_feature_from_feature
        _get_table_name_from_embedding_var_name _get_weights_from_features
        _maybe_dense_to_sparse _split_tensor get_configs_from_feature_columns
        get_full_variable_names get_tpu_embedding_columns split_inputs""",
    "tpu.tpu_config": "_get_tpu_job_name_from_tf_config",
    "tpu.tpu_context": """_InternalTPUContext _OneCoreTPUContext _TPUEstimatorReplicaContext
        _get_tpu_context""",
    "tpu.tpu_estimator": """CatchInvalidHostcallFunctions ExamplesPerSecondHook
        InstallSignalHandlerHook PeriodicLogger TPUInfeedOutfeedSessionHook
        TPUInfeedOutfeedSessionHookForPrediction TensorPacker _CapturedObject
        _CapturingContext _InputPipeline _Inputs _InputsWithStoppingSignals _ModelFnWrapper
        _NotSaver _OpQueueContext _OpSignalOnceQueueContext _OutfeedHostCall
        _OutfeedHostCallHook _PaddingSignals _SIGNAL _SetEvalIterationsHook _StopSignals
        _StoppingPredictHook _TPUStopAtStepHook _add_item_to_params
        _build_computation_for_inference _build_tpu_computation_for_inference
        _check_add_preemption_hook _clone_export_output_with_tensors _create_global_step
        _create_or_get_iterations_per_loop _eval_on_tpu_system _export_output_to_tensors
        _extract_key_names _get_scaffold _increase_eval_step_op _is_iterable
        _predict_on_tpu_system _sync_variables_ops _train_on_tpu_system
        _validate_tpu_training_graph _verify_cross_hosts_transfer_size
        _wrap_computation_in_while_loop
        _wrap_computation_in_while_loop_with_stopping_signals call_computation
        export_estimator_savedmodel generate_broadcast_enqueue_ops_fn
        generate_per_core_enqueue_ops_fn_for_host generate_per_host_enqueue_ops_fn_for_host
        generate_per_host_v2_enqueue_ops_fn_for_host inference_on_tpu""",
    "tpu.util": "IterationsPerLoopCounter MultiHostDatasetInitializerHook",
    "training": """_NewCheckpointListenerForEvaluate _StopAtSecsHook _is_google_env
        _validate_exporters _validate_hooks _validate_input_fn _validate_saving_listeners""",
    "util": "DistributedIteratorInitializerHook _DatasetInitializerHook",
}


def names_of(module: str) -> frozenset[str]:
    """Returns the names that stock has in a module (a full path) and the bridge lacks."""
    for root in stock_names.LIBRARIES:
        if module.startswith(f"{root}."):
            return frozenset(_LACKING.get(module[len(root) + 1 :], "").split())
    return frozenset()
