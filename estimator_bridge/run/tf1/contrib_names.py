"""The names of `tf.contrib` that TF1 programs find: by the modules that have them, and their homes.

This is the one list of them: the view of `tensorflow`, its refusals and the page on programs of
TensorFlow 1 are made of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from estimator_bridge.run.stock_names import Names, parents

_HERE = "estimator_bridge.run.tf1.contrib"
_V1 = "tensorflow:compat.v1"
_DATA, _TRAIN, _TPU = f"{_V1}.data.experimental", f"{_V1}.train", f"{_V1}.estimator.tpu"
_SUMMARY = "tf2_engine.tf_compat:summary_ops"
_LAYERS = "layers layers.python.layers layers.python.layers"
_RESOLVERS = (
    "cluster_resolver cluster_resolver.python.training "
    "cluster_resolver.python.training.cluster_resolver"
)

EXTRAS: Mapping[str, str] = {"tf_slim": "'estimator-bridge[slim]'"}
"""By package that is not required, what to install."""

# By modules below `tensorflow.contrib` and home: names. A home that begins with a dot is a module
# of the bridge's own; "old=new" is a name that its home calls otherwise. Programs import the names
# by the public paths and by those of the files that defined them.
_ROWS: Mapping[str, Mapping[str, str]] = {
    "tpu tpu.python.tpu.tpu_estimator": {_TPU: "TPUEstimator TPUEstimatorSpec"},
    "tpu tpu.python.tpu.tpu_config tpu.python.tpu.tpu_estimator": {
        _TPU: "InputPipelineConfig RunConfig TPUConfig",
    },
    "tpu.python.tpu.tpu_context": {"estimator_bridge.runtime.estimator.tpu_context:": "TPUContext"},
    "tpu": {
        f"{_V1}.tpu": "CrossShardOptimizer batch_parallel bfloat16_scope core cross_replica_sum "
        "initialize_system outside_compilation replicate rewrite shard shutdown_system",
        f"{_V1}.tpu.experimental": "DeviceAssignment Topology",
        "tensorflow.python.tpu.device_assignment:": "device_assignment",
        "tensorflow.python.tpu.datasets:": "StreamingFilesDataset",
        "tensorflow.python.tpu.tpu_feed:": "InfeedQueue",
        "tensorflow.python.tpu.training_loop:": "repeat while_loop",
    },
    "tpu tpu.python.tpu.async_checkpoint": {_TRAIN: "AsyncCheckpointSaverHook=CheckpointSaverHook"},
    f"{_RESOLVERS} cluster_resolver.python.training.tpu_cluster_resolver": {
        f"{_V1}.distribute.cluster_resolver": "TPUClusterResolver",
    },
    _RESOLVERS: {
        f"{_V1}.distribute.cluster_resolver": "ClusterResolver SimpleClusterResolver "
        "TFConfigClusterResolver UnionResolver",
    },
    "data data.python.ops.batching": {
        ".data:": "batch_and_drop_remainder padded_batch_and_drop_remainder",
        _DATA: "dense_to_sparse_batch map_and_batch unbatch",
    },
    "data data.python.ops.interleave_ops": {
        _DATA: "choose_from_datasets parallel_interleave sample_from_datasets",
    },
    "data data.python.ops.shuffle_ops": {_DATA: "shuffle_and_repeat"},
    "data data.python.ops.grouping": {
        _DATA: "Reducer bucket_by_sequence_length group_by_reducer group_by_window",
    },
    "data data.python.ops.readers": {
        _DATA: "CsvDataset SqlDataset make_batched_features_dataset make_csv_dataset",
    },
    "data": {
        _DATA: "AUTOTUNE Counter Optional RandomDataset TFRecordWriter copy_to_device "
        "CheckpointInputPipelineHook enumerate_dataset get_next_as_optional get_single_element "
        "ignore_errors make_saveable_from_iterator prefetch_to_device rejection_resample scan "
        "unique",
    },
    "summary summary.summary": {
        f"{_V1}.summary": "all_summary_ops=all_v2_summary_ops initialize",
        _SUMMARY: "SummaryWriter always_record_summaries audio create_file_writer "
        "create_summary_file_writer eval_dir flush generic graph histogram image import_event "
        "never_record_summaries record_summaries_every_n_global_steps scalar "
        "should_record_summaries summary_writer_initializer_op",
    },
    "training training.python.training.hparam": {".hparams:": "HParams parse_values"},
    "training training.python.training.evaluation": {
        _TRAIN: "checkpoints_iterator",
        ".evaluation:": "StopAfterNEvalsHook SummaryAtEndHook get_or_create_eval_step "
        "wait_for_new_checkpoint",
    },
    "training training.python.training.training": {".training:": "create_train_op"},
    "framework framework.python.ops framework.python.ops.arg_scope": {
        ".arg_scopes:": "add_arg_scope arg_scope arg_scope_func_key arg_scoped_arguments "
        "current_arg_scope has_arg_scope",
    },
    "framework framework.python.framework.checkpoint_utils": {
        _TRAIN: "init_from_checkpoint list_variables load_checkpoint load_variable",
    },
    "framework framework.python.ops framework.python.ops.variables": {
        _TRAIN: "assert_global_step create_global_step get_global_step get_or_create_global_step",
        ".variables:": "add_model_variable assign_from_checkpoint assign_from_checkpoint_fn "
        "assign_from_values assign_from_values_fn filter_variables get_local_variables "
        "get_model_variables get_trainable_variables get_unique_variable get_variables "
        "get_variables_by_name get_variables_by_suffix get_variables_to_restore local_variable "
        "model_variable variable",
    },
    "framework": {_V1: "CriticalSection argsort is_tensor sort"},
    f"{_LAYERS}.layers": {
        ".layers:": "bias_add dropout flatten fully_connected linear one_hot_encoding relu relu6 "
        "softmax unit_norm",
        ".convolutions:": "conv1d conv2d conv2d_transpose conv3d conv3d_transpose convolution "
        "convolution1d=conv1d convolution2d=conv2d convolution2d_transpose=conv2d_transpose "
        "convolution3d=conv3d convolution3d_transpose=conv3d_transpose separable_conv2d "
        "separable_convolution2d=separable_conv2d",
        ".pooling:": "avg_pool2d avg_pool3d max_pool2d max_pool3d",
        ".stacking:": "repeat stack",
        ".normalization:": "batch_norm instance_norm layer_norm",
        f"{_V1}.nn": "elu",
    },
    f"{_LAYERS}.initializers": {
        ".initializers:": "variance_scaling_initializer xavier_initializer "
        "xavier_initializer_conv2d=xavier_initializer",
    },
    f"{_LAYERS}.regularizers": {
        ".regularizers:": "apply_regularization l1_l2_regularizer l1_regularizer l2_regularizer "
        "sum_regularizer",
    },
    f"{_LAYERS}.optimizers": {
        ".optimize_loss:": "OPTIMIZER_CLS_NAMES OPTIMIZER_SUMMARIES adaptive_clipping_fn "
        "optimize_loss",
    },
    f"{_LAYERS}.summaries": {
        ".layer_summaries:": "summarize_activation summarize_activations summarize_biases "
        "summarize_collection summarize_tensor summarize_tensors summarize_variables "
        "summarize_weights",
    },
    "layers layers.python.layers.feature_column": {
        ".feature_columns:": "bucketized_column crossed_column embedding_column one_hot_column "
        "real_valued_column sparse_column_with_hash_bucket sparse_column_with_integerized_feature "
        "sparse_column_with_keys weighted_sparse_column",
    },
    "layers layers.python.layers.feature_column_ops": {
        ".feature_columns:": "input_from_feature_columns",
    },
    "estimator": {
        f"{_V1}.estimator.experimental": "InMemoryEvaluatorHook make_early_stopping_hook "
        "make_stop_at_checkpoint_step_hook stop_if_higher_hook stop_if_lower_hook "
        "stop_if_no_decrease_hook stop_if_no_increase_hook build_raw_supervised_input_receiver_fn "
        "call_logit_fn dnn_logit_fn_builder linear_logit_fn_builder",
        f"{_V1}.estimator": "DNNEstimator DNNLinearCombinedEstimator LinearEstimator add_metrics "
        "binary_classification_head=BinaryClassHead multi_class_head=MultiClassHead "
        "logistic_regression_head=LogisticRegressionHead multi_head=MultiHead "
        "multi_label_head=MultiLabelHead",
        "estimator_bridge.canned.heads.contrib_heads:": "poisson_regression_head regression_head",
    },
    "distribute": {
        ".distribute:": "MirroredStrategy",
        f"{_V1}.distribute": "OneDeviceStrategy",
    },
    "metrics": {
        ".streaming_metrics:": "streaming_covariance streaming_pearson_correlation "
        "streaming_accuracy streaming_auc streaming_precision streaming_false_negatives "
        "streaming_false_positives streaming_mean_absolute_error streaming_mean_iou "
        "streaming_mean_squared_error streaming_recall streaming_root_mean_squared_error "
        "streaming_true_negatives streaming_true_positives",
        f"{_V1}.metrics": "streaming_mean=mean streaming_mean_tensor=mean_tensor",
    },
    "opt": {".lars:": "LARSOptimizer", ".nadam:": "NadamOptimizer"},
    "rnn": {
        f"{_V1}.nn.rnn_cell": "BasicLSTMCell BasicRNNCell DeviceWrapper DropoutWrapper GRUCell "
        "LSTMCell LSTMStateTuple MultiRNNCell RNNCell ResidualWrapper",
        f"{_V1}.nn": "static_bidirectional_rnn static_rnn",
    },
    "util": {_V1: "constant_value=get_static_value make_ndarray make_tensor_proto"},
    "lookup": {
        f"{_V1}.lookup": "KeyValueTensorInitializer TextFileInitializer HashTable=StaticHashTable",
    },
}

_TPU_FILES = (
    *("bfloat16", "datasets", "device_assignment", "functional", "tensor_tracer", "topology"),
    *("tpu", "tpu_feed", "tpu_function", "tpu_optimizer", "tpu_sharding", "training_loop"),
)
WHOLE: Mapping[str, str] = {
    **{f"tpu.python.tpu.{each}": f"tensorflow.python.tpu.{each}" for each in _TPU_FILES},
    "tpu.python.ops.tpu_ops": "tensorflow.python.tpu.ops.tpu_ops",
    "tpu.proto.compilation_result_pb2": "tensorflow.core.protobuf.tpu.compilation_result_pb2",
    "framework.nest": "tf2_engine.tf_compat:nest",
    "slim": "tf_slim",
    "slim.nets": "tf_slim.nets",
    "slim.python.slim.nets": "tf_slim.nets",
    "autograph": f"{_V1}.autograph",
    "keras": f"{_V1}.keras",
    "saved_model": f"{_V1}.saved_model",
}
"""By path below `tensorflow.contrib`, the module that it is now."""

EMPTY = (
    *("bigtable", "cloud", "copy_graph", "cudnn_rnn", "eager", "ffmpeg", "gan", "graph_editor"),
    *("image", "learn", "model_pruning", "nccl", "quantize", "resampler", "seq2seq", "tensorrt"),
    *("tpu.profiler", "compiler", "crf", "stat_summarizer", "staging", "tfprof", "timeseries"),
)
"""Modules without a name that is supported: programs that import them and use none run."""

_TF_DATA = "write it with the methods of tf.data.Dataset"
_KERAS = "write the model as a model_fn for TPUEstimator, or with tf.keras"
_REASONS: Mapping[str, str] = {
    "tpu.TPUDistributionStrategy": _KERAS,
    "tpu.keras_to_tpu_model": _KERAS,
    "distribute.TPUStrategy": "use tf.distribute.experimental.TPUStrategy",
    "distribute.initialize_tpu_system": "use tf.tpu.experimental.initialize_tpu_system",
    "data.LMDBDataset": _TF_DATA,
    "data.sliding_window_batch": "use tf.data.Dataset.window",
    "estimator.clip_gradients_by_norm": "clip the gradients in the model_fn",
    "estimator.replicate_model_fn": "use TPUConfig.num_shards, or a MirroredStrategy",
    "image": "use tfa.image or tf.raw_ops.ImageProjectiveTransformV3",
    "quantize": "leave quantization out; TensorFlow 2 quantizes models after the training",
    "seq2seq": "use tfa.seq2seq, or a tf.while_loop",
    "crf": "use tfa.text",
    "eager": "use tf.GradientTape, and tf.compat.v1.enable_eager_execution",
    "gan": "use the package tensorflow-gan",
    "learn": "use tf.estimator",
    "lookup": "use tf.lookup",
    "opt": "use tf.train, or write the update as a subclass of tf.train.Optimizer",
    "slim": "use the package tf_slim",
}
"""By name or module, what to do instead; the longest path that has a reason counts."""


def _modules() -> dict[str, dict[str, str]]:
    modules: dict[str, dict[str, str]] = {path: {} for path in ("", *WHOLE, *EMPTY)}
    for paths, homes in _ROWS.items():
        for home, names in homes.items():
            home = f"{_HERE}{home}" if home.startswith(".") else home
            separator = "" if home.endswith(":") else "."
            targets = {}
            for entry in names.split():
                name, _, name_at_home = entry.partition("=")
                targets[name] = f"{home}{separator}{name_at_home or name}"
            for path in paths.split():
                modules.setdefault(path, {}).update(targets)
    for path in list(modules):
        for parent in parents(path):
            modules.setdefault(parent, {})
    return modules


MODULES: Mapping[str, Names] = _modules()
"""By path below `tensorflow.contrib`, the names of a module, each with its target."""


def submodules(path: str) -> list[str]:
    """Returns the names of the modules right below one."""
    prefix = f"{path}." if path else ""
    below = (each.removeprefix(prefix) for each in MODULES if each.startswith(prefix))
    return sorted({each.partition(".")[0] for each in below} - {""})


def refusal(path: str) -> str:
    """Returns the message for a name of `tf.contrib` that there is not: cause and way out."""
    parent = path.rpartition(".")[0]
    while parent not in MODULES:
        parent = parent.rpartition(".")[0]
    have = ", ".join(sorted([*MODULES[parent], *submodules(parent)])) or "no name"
    there = f"tf.contrib.{parent}".removesuffix(".")
    return (
        f"`tf.contrib.{path}` is not supported: TensorFlow 2 has no tf.contrib, and of `{there}` "
        f"the bridge has {have}. {_way_out(path)}."
    )


def _way_out(path: str) -> str:
    for each in (path, *reversed(parents(path))):
        reason = _REASONS.get(each)
        if reason:
            return reason[0].upper() + reason[1:]
    return "Define it in the program, on names of tf.compat.v1"
