"""What the second form makes of the names of stock's estimator: tables."""

from __future__ import annotations

from collections.abc import Mapping

REPLACED: Mapping[str, str] = {
    "TPUEstimator": "Trainer",
    "TPUEstimatorSpec": "ModelSpec",
    "ModeKeys": "ModeKeys",
    "RunConfig": "RunConfig",
    "TrainSpec": "TrainSpec",
    "EvalSpec": "EvalSpec",
    "WarmStartSettings": "WarmStartSettings",
    "train_and_evaluate": "train_and_evaluate",
    "ServingInputReceiver": "ServingInputReceiver",
    "TensorServingInputReceiver": "TensorServingInputReceiver",
    "build_parsing_serving_input_receiver_fn": "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn": "build_raw_serving_input_receiver_fn",
    "PredictOutput": "PredictOutput",
    "ClassificationOutput": "ClassificationOutput",
    "RegressionOutput": "RegressionOutput",
}
"""By the last part of a name, what takes its place; it is in one of the texts of `added`."""

KEPT = ("estimator_bridge.legacy.parameters", "estimator_bridge.legacy.table_config")
"""Modules whose names a spec is made of; with `EmbeddingConfigSpec` they are imported."""

SPEC = ("estimator_bridge.legacy.spec", "EmbeddingConfigSpec")

ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "TPUEstimator": (
        *("model_fn", "model_dir", "config", "params", "train_batch_size", "eval_batch_size"),
        *("predict_batch_size", "embedding_config_spec", "warm_start_from"),
    ),
    "TPUEstimatorSpec": (
        *("mode", "predictions", "loss", "train_op", "eval_metrics", "export_outputs"),
    ),
    "RunConfig": ("model_dir", "tf_random_seed", "save_checkpoints_steps", "cluster", "master"),
    "TrainSpec": ("input_fn", "max_steps"),
    "EvalSpec": ("input_fn", "steps"),
    "WarmStartSettings": ("ckpt_to_initialize_from", "vars_to_warm_start"),
    "train_and_evaluate": ("estimator", "train_spec", "eval_spec"),
    "export_saved_model": ("export_dir_base", "serving_input_receiver_fn"),
}
"""The arguments that are carried, by the old name; all others are left out."""

POSITIONAL: Mapping[str, int] = {
    "TPUEstimator": 4,
    "TPUEstimatorSpec": 6,
    "RunConfig": 0,
    "TrainSpec": 2,
    "EvalSpec": 2,
    "WarmStartSettings": 2,
    "train_and_evaluate": 3,
    "export_saved_model": 2,
}
"""How many arguments mean the same without their names, in the old and the new form."""

METHOD_ARGUMENTS = ("hooks", "saving_listeners", "checkpoint_path", "predict_keys")
"""Arguments of `train`, `evaluate` and `predict` that are left out."""

_EXPORT = (
    "Trainer.export_saved_model exports the model for predictions, for CPUs, when it is called"
)
_HOOKS = "there is no session that has hooks; the loop is in Trainer.train"
_TPU = "the strategy has the cores and the loop of the TPU that it is given"

ARGUMENT_REASONS: Mapping[str, str] = {
    "use_tpu": "a strategy is of a TPU or not, and tables are trained as on a TPU everywhere",
    "tpu_config": _TPU,
    "export_to_tpu": _EXPORT,
    "export_to_cpu": _EXPORT,
    "experimental_mode": "what is exported is for predictions",
    "assets_extra": "copy the files into what export_saved_model returns",
    "as_text": "SavedModels are binary",
    "checkpoint_path": "it is the latest one of model_dir",
    "strip_default_attrs": "they are left out of a SavedModel",
    "hooks": _HOOKS,
    "saving_listeners": _HOOKS,
    "training_hooks": _HOOKS,
    "evaluation_hooks": _HOOKS,
    "prediction_hooks": _HOOKS,
    "exporters": _EXPORT,
    "scaffold_fn": "checkpoints are objects, which Trainer saves",
    "host_call": "the program is on the host; write summaries in Trainer.train",
    "throttle_secs": "every checkpoint is evaluated",
    "start_delay_secs": "every checkpoint is evaluated",
    "log_step_count_steps": "Trainer.train logs nothing; it is yours to change",
}

NAME_REASONS: Mapping[str, str] = {
    "export": _EXPORT,
    "exporters": _EXPORT,
    "hooks": _HOOKS,
    "TPUConfig": _TPU,
    "InputPipelineConfig": _TPU,
    "Scaffold": "checkpoints are objects, which Trainer saves",
    "Saver": "checkpoints are objects, which Trainer saves",
    "stop_if_no_decrease_hook": _HOOKS,
}
"""Why a name has no counterpart, by one of its parts."""

NO_COUNTERPART = "what is written has no counterpart of it"

EXPORTS = ("export_saved_model", "export_savedmodel")
"""Methods of estimators that are `Trainer.export_saved_model`, the first by its own name."""

MODE_OF_EXPORT = ("experimental_mode", "PREDICT", _EXPORT)
"""The argument that names a mode, the end of the one that is carried, and why no other is."""

METHODS: Mapping[str, str] = {
    "experimental_export_all_saved_models": _EXPORT,
    "get_variable_names": "variables are in Trainer, by name",
    "get_variable_value": "variables are in Trainer, by name",
}
"""Methods of estimators that are left out."""

OF_TF1: Mapping[str, str] = {
    "disable_v2_behavior": "it is TensorFlow 2 now",
    "disable_eager_execution": "it is TensorFlow 2 now",
    "disable_resource_variables": "it is TensorFlow 2 now",
    "disable_control_flow_v2": "it is TensorFlow 2 now",
    "disable_v2_tensorshape": "it is TensorFlow 2 now",
    "train.Scaffold": NAME_REASONS["Scaffold"],
    "train.Saver": NAME_REASONS["Saver"],
}
"""Names below `tensorflow` or `tensorflow.compat.v1` whose statements are left out."""

REFUSED_METHODS = ("compute_gradients", "apply_gradients")
"""Methods of optimizers that hand out gradients, of which those of the tables are to be told."""

_GRADIENTS = "the tables are trained by what `minimize` is given"
_COLLECTED = "outside of a graph that collection is not filled"

REFUSED: Mapping[str, str] = {
    "gradients": _GRADIENTS,
    "GradientTape": _GRADIENTS,
    "global_variables": _COLLECTED,
    "model_variables": _COLLECTED,
    "moving_average_variables": _COLLECTED,
    "GraphKeys.GLOBAL_VARIABLES": _COLLECTED,
    "GraphKeys.REGULARIZATION_LOSSES": _COLLECTED,
    "losses.get_regularization_loss": _COLLECTED,
    "losses.get_regularization_losses": _COLLECTED,
    "losses.get_total_loss": _COLLECTED,
    "train.ExponentialMovingAverage": "averages of variables are not kept",
}
"""Names below TensorFlow with which a program would train something else without a word."""

_MOVING_AVERAGES = (
    "in the legacy program nothing runs this layer's updates of its moving averages, unless the "
    "program does so itself: they stay at their initial values, in evaluation and predictions too; "
    "in TensorFlow 2 the layer updates them while it trains"
)

CHANGED: Mapping[str, str] = {
    "keras.layers.BatchNormalization": _MOVING_AVERAGES,
}
"""Names below TensorFlow that stay, of what does something else then: what changes."""
