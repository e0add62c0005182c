"""The names of `tf.contrib` that TF1 programs can use, and where each name is defined."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from estimator_bridge.run.stock_names import Names, parents

_HERE = "estimator_bridge.run.tf1.contrib"
_V1 = "tensorflow:compat.v1"
_DATA, _TRAIN, _TPU = f"{_V1}.data.experimental", f"{_V1}.train", f"{_V1}.estimator.tpu"
_SUMMARY = "tf2_engine.tf_compat:summary_ops"
_SLIM = "tf_slim.layers:"
_LAYERS = "layers layers.python.layers layers.python.layers"
_RESOLVERS = (
    "cluster_resolver cluster_resolver.python.training "
    "cluster_resolver.python.training.cluster_resolver"
)

# Maps public and private modules below `tensorflow.contrib` to homes, and homes to names. A home is
# the module that defines the names; one that begins with a dot is a module of the bridge. "old=new"
# means that the home calls the name `new`.
_ROWS: Mapping[str, Mapping[str, str]] = {
    "tpu tpu.python.tpu.tpu_estimator": {_TPU: "TPUEstimator TPUEstimatorSpec"},
    "tpu.python.tpu.tpu_estimator tpu.python.tpu._tpu_estimator_embedding": {
        f"{_TPU}.experimental": "EmbeddingConfigSpec",
        f"{_V1}.tpu.experimental": "AdagradParameters AdamParameters "
        "StochasticGradientDescentParameters",
    },
    "tpu tpu.python.tpu.tpu_config tpu.python.tpu.tpu_estimator": {
        _TPU: "InputPipelineConfig RunConfig TPUConfig",
    },
    "tpu.python.tpu.tpu_context": {
        "estimator_bridge.runtime.estimator.cores_and_hosts:": "TPUContext"
    },
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
        ".old_arguments:": "batch_and_drop_remainder padded_batch_and_drop_remainder",
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
        "tf_slim.training.evaluation:": "StopAfterNEvalsHook SummaryAtEndHook evaluate_once "
        "evaluate_repeatedly get_or_create_eval_step wait_for_new_checkpoint",
    },
    "training training.python.training.training": {
        "tf_slim.training.training:": "add_gradients_summaries clip_gradient_norms "
        "clip_gradient_norms_fn create_train_op multiply_gradients train",
    },
    "framework framework.python.ops framework.python.ops.arg_scope": {
        "tf_slim.ops.arg_scope:": "add_arg_scope arg_scope arg_scope_func_key arg_scoped_arguments "
        "current_arg_scope has_arg_scope",
    },
    "framework framework.python.framework.checkpoint_utils": {
        _TRAIN: "init_from_checkpoint list_variables load_checkpoint load_variable",
    },
    "framework framework.python.ops framework.python.ops.variables": {
        _TRAIN: "assert_global_step create_global_step get_global_step get_or_create_global_step",
        "tf_slim.ops.variables:": "add_model_variable assign_from_checkpoint "
        "assign_from_checkpoint_fn assign_from_values assign_from_values_fn filter_variables "
        "get_local_variables "
        "get_model_variables get_trainable_variables get_unique_variable get_variables "
        "get_variables_by_name get_variables_by_suffix get_variables_to_restore local_variable "
        "model_variable variable",
    },
    "framework": {
        _V1: "CriticalSection TensorSpec argsort convert_to_tensor_or_sparse_tensor is_tensor "
        "py_func sort",
        f"{_V1}.debugging": "assert_same_float_dtype assert_scalar",
    },
    f"{_LAYERS}.layers": {
        _SLIM: "avg_pool2d avg_pool3d batch_norm bias_add conv1d conv2d conv2d_transpose conv3d "
        "conv3d_transpose convolution convolution1d convolution2d convolution2d_transpose "
        "convolution3d convolution3d_transpose dropout flatten fully_connected instance_norm "
        "layer_norm linear max_pool2d max_pool3d one_hot_encoding relu relu6 repeat "
        "separable_conv2d separable_convolution2d softmax stack unit_norm",
        f"{_V1}.nn": "elu",
    },
    "layers": {
        _SLIM: "dense_to_sparse gdn group_norm "
        "images_to_sequence legacy_fully_connected maxout recompute_grad rev_block scale_gradient "
        "sequence_to_images spatial_softmax",
        f"{_V1}.nn": "safe_embedding_lookup_sparse",
    },
    f"{_LAYERS}.initializers": {
        _SLIM: "variance_scaling_initializer xavier_initializer xavier_initializer_conv2d",
    },
    f"{_LAYERS}.regularizers": {
        _SLIM: "apply_regularization l1_l2_regularizer l1_regularizer l2_regularizer "
        "sum_regularizer",
    },
    f"{_LAYERS}.optimizers": {
        _SLIM: "OPTIMIZER_CLS_NAMES OPTIMIZER_SUMMARIES adaptive_clipping_fn optimize_loss",
    },
    f"{_LAYERS}.summaries": {
        _SLIM: "summarize_activation summarize_activations summarize_biases "
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
        f"{_V1}.estimator": "DNNEstimator DNNLinearCombinedEstimator LinearEstimator add_metrics",
        ".optimizers:": "clip_gradients_by_norm",
        "estimator_bridge.canned.heads.head_functions:": "binary_classification_head "
        "logistic_regression_head multi_class_head multi_head multi_label_head "
        "poisson_regression_head regression_head",
    },
    "distribute": {
        ".old_arguments:": "MirroredStrategy",
        f"{_V1}.distribute": "OneDeviceStrategy",
    },
    "metrics": {
        f"{_V1}.metrics": "streaming_mean=mean streaming_mean_tensor=mean_tensor",
        f"{_V1}.sets": "set_difference set_intersection set_size set_union",
        _V1: "confusion_matrix",
        "tf_slim.metrics:": "accuracy aggregate_metric_map aggregate_metrics cohen_kappa count "
        "f1_score precision_at_recall recall_at_precision streaming_accuracy streaming_auc "
        "streaming_concat streaming_covariance streaming_false_negatives "
        "streaming_false_positives streaming_mean_absolute_error streaming_mean_iou "
        "streaming_mean_squared_error streaming_pearson_correlation streaming_precision "
        "streaming_recall streaming_root_mean_squared_error streaming_true_negatives "
        "streaming_true_positives "
        "streaming_dynamic_auc streaming_false_negative_rate streaming_false_positive_rate "
        "streaming_mean_cosine_distance streaming_mean_relative_error streaming_percentage_less "
        "streaming_precision_at_thresholds streaming_recall_at_k streaming_recall_at_thresholds "
        "streaming_sensitivity_at_specificity streaming_sparse_average_precision_at_k "
        "streaming_sparse_precision_at_k streaming_sparse_recall_at_k "
        "streaming_specificity_at_sensitivity",
    },
    "opt": {
        ".optimizers:": "AdamWOptimizer DecoupledWeightDecayExtension LARSOptimizer "
        "LazyAdamOptimizer MovingAverageOptimizer NadamOptimizer clip_gradients_by_global_norm "
        "extend_with_decoupled_weight_decay",
    },
    "rnn": {
        f"{_V1}.nn.rnn_cell": "BasicLSTMCell BasicRNNCell DeviceWrapper DropoutWrapper GRUCell "
        "LSTMCell LSTMStateTuple MultiRNNCell RNNCell ResidualWrapper",
        f"{_V1}.nn": "static_bidirectional_rnn static_rnn static_state_saving_rnn",
        ".recurrent_cells:": "LSTMBlockCell LayerNormBasicLSTMCell stack_bidirectional_dynamic_rnn",
    },
    "cudnn_rnn": {".recurrent_cells:": "CudnnCompatibleLSTMCell"},
    "image": {
        ".image_transforms:": "angles_to_projective_transforms compose_transforms "
        "flat_transforms_to_matrices matrices_to_flat_transforms rotate transform translate "
        "translations_to_projective_transforms",
    },
    "predictor": {".predictors:": "from_estimator from_saved_model"},
    "stateless": {
        f"{_V1}.random": "stateless_multinomial stateless_truncated_normal "
        "stateless_random_normal=stateless_normal stateless_random_uniform=stateless_uniform",
    },
    "feature_column": {
        f"{_V1}.feature_column": "sequence_categorical_column_with_hash_bucket "
        "sequence_categorical_column_with_identity sequence_numeric_column "
        "sequence_categorical_column_with_vocabulary_file "
        "sequence_categorical_column_with_vocabulary_list",
    },
    "hooks": {_TRAIN: "ProfilerHook"},
    "distributions": {
        f"{_V1}.distributions": "Bernoulli Beta Categorical Dirichlet DirichletMultinomial "
        "Distribution Exponential FULLY_REPARAMETERIZED Gamma Laplace Multinomial Normal "
        "NOT_REPARAMETERIZED RegisterKL ReparameterizationType StudentT Uniform kl_divergence",
    },
    "compiler.jit": {f"{_V1}.xla.experimental": "experimental_jit_scope=jit_scope"},
    "compiler.xla": {f"{_V1}.xla.experimental": "compile"},
    "util": {_V1: "constant_value=get_static_value make_ndarray make_tensor_proto"},
    "lookup": {
        f"{_V1}.lookup": "KeyValueTensorInitializer TextFileInitializer HashTable=StaticHashTable",
        "tensorflow.python.ops.lookup_ops:": "FastHashSpec HasherSpec IdTableWithHashBuckets "
        "LookupInterface MutableDenseHashTable=DenseHashTable MutableHashTable StrongHashSpec "
        "TextFileIdTableInitializer TextFileIndex TextFileStringTableInitializer "
        "index_table_from_file index_to_string_table_from_file",
        ".old_arguments:": "index_table_from_tensor index_to_string_table_from_tensor",
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
    "losses": "tf_slim.losses",
    "losses.metric_learning": "tf_slim.losses.metric_learning",
    "losses.python.metric_learning": "tf_slim.losses.metric_learning",
    "signal": f"{_V1}.signal",
    "tensorboard.plugins.projector": "tensorboard.plugins.projector",
    "saved_model": f"{_V1}.saved_model",
}
"""Modules that moved as a whole: maps the path below `tensorflow.contrib` to the new path."""

EMPTY = (
    *("bigtable", "boosted_trees", "cloud", "copy_graph", "crf", "eager", "ffmpeg", "gan"),
    *("graph_editor", "learn", "legacy_seq2seq", "memory_stats", "mixed_precision"),
    *("model_pruning", "nccl", "nn", "quantize", "resampler", "seq2seq", "staging"),
    *("stat_summarizer", "tensor_forest", "tensorrt", "tfprof", "timeseries", "tpu.profiler"),
)
"""Modules without any supported name. A program may import them if it uses no name in them."""

_TF_DATA = "write it with the methods of tf.data.Dataset"
_KERAS = "write the model as a model_fn for TPUEstimator, or with tf.keras"
_REASONS: Mapping[str, str] = {
    "tpu.TPUDistributionStrategy": _KERAS,
    "tpu.keras_to_tpu_model": _KERAS,
    "distribute.TPUStrategy": "use tf.distribute.experimental.TPUStrategy",
    "distribute.initialize_tpu_system": "use tf.tpu.experimental.initialize_tpu_system",
    "data.LMDBDataset": _TF_DATA,
    "data.sliding_window_batch": "use tf.data.Dataset.window",
    "estimator.replicate_model_fn": "use TPUConfig.num_shards, or a MirroredStrategy",
    "quantize": "leave the call out, and quantize the exported model with tf.lite.TFLiteConverter; "
    "TensorFlow 2 rewrites no graphs for quantized training",
    "cudnn_rnn": "run tf.contrib.cudnn_rnn.CudnnCompatibleLSTMCell in tf.nn.dynamic_rnn, on CPUs "
    "and GPUs, or use tf.keras.layers.CuDNNLSTM on GPUs",
    "distributions": "use tfp.distributions of the package tensorflow_probability",
    "feature_column.sequence_input_layer": "use tf.keras.experimental.SequenceFeatures",
    "memory_stats": "use tf.config.experimental.get_memory_info",
    "mixed_precision": "use tf.train.experimental.MixedPrecisionLossScaleOptimizer",
    "tensor_forest": "use the package tensorflow_decision_forests",
    "boosted_trees": "use the package tensorflow_decision_forests",
    "predictor.from_contrib_estimator": "use tf.contrib.predictor.from_estimator",
    "lookup.string_to_index": "use the `lookup` of tf.contrib.lookup.index_table_from_tensor",
    "lookup.index_to_string": "use the `lookup` of "
    "tf.contrib.lookup.index_to_string_table_from_tensor",
    "eager": "use tf.GradientTape, and tf.compat.v1.enable_eager_execution",
    "gan": "use the package tensorflow-gan",
    "learn": "use tf.estimator, with its ModeKeys, RunConfig and canned models",
    "learn.Experiment": "call tf.estimator.train_and_evaluate with a TrainSpec of train_input_fn "
    "and train_steps, and an EvalSpec of eval_input_fn, eval_steps and exporters",
    "learn.learn_runner": "call tf.estimator.train_and_evaluate in its place",
    "learn.python.learn.learn_runner": "call tf.estimator.train_and_evaluate in its place",
    "opt": "use tf.train, or write the update as a subclass of tf.train.Optimizer",
    "opt.MomentumWOptimizer": "call tf.contrib.opt.extend_with_decoupled_weight_decay with "
    "tf.train.MomentumOptimizer",
    "slim": "use the package tf_slim",
}
"""What to use instead of a name or module. Of several paths that match, the longest counts."""


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
"""The names of each module below `tensorflow.contrib`, each with its target."""


def submodules(path: str) -> list[str]:
    prefix = f"{path}." if path else ""
    below = (each for each in MODULES if each.startswith(prefix) and each not in EMPTY)
    return sorted({each.removeprefix(prefix).partition(".")[0] for each in below} - {""})


def refusal(path: str) -> str:
    parent = path if path in EMPTY else path.rpartition(".")[0]
    while parent not in MODULES:
        parent = parent.rpartition(".")[0]
    have = [*MODULES[parent], *submodules(parent)]
    there = f"tf.contrib.{parent}".removesuffix(".")
    like = difflib.get_close_matches(path.rpartition(".")[2], have, n=1)
    meant = f" Did you mean `{there}.{like[0]}`?" if like else ""
    listed = f" docs/tf1.md and `dir({there})` list the supported names." if have else ""
    return (
        f"`tf.contrib.{path}` is not supported: TensorFlow 2 has no tf.contrib, and the bridge "
        f"lacks this {'module' if path in EMPTY else 'name'}.{meant} {_way_out(path)}.{listed}"
    )


def _way_out(path: str) -> str:
    for each in (path, *reversed(parents(path))):
        reason = _REASONS.get(each)
        if reason:
            return reason[0].upper() + reason[1:]
    folder = path.partition(".")[0]
    return (
        f"Copy it from tensorflow/contrib/{folder} of TensorFlow 1.15 into the program, with names "
        "of tf.compat.v1 in place of tensorflow.python"
    )
