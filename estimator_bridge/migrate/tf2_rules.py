"""The rules of the tf2 form: for each name, method and argument what becomes of it, and why.

A row is what is recognised, the action, and the reason that the report and the comment in the
program give. To carry another name, or to give another reason, add a row.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from estimator_bridge.migrate import stock_replacements
from estimator_bridge.run import stock_names

_Value = TypeVar("_Value")


class Action(enum.Enum):
    """What becomes of a name or a method."""

    KEEP = "it stays, but for some arguments of its calls"
    REPLACE = "`new`, which one of the texts of `tf2_templates` defines, replaces it"
    IMPORT = "it stays, and is imported from `module`"
    REPORT = "it stays, and behaves differently; a line of the report says how"
    UNWRAP = "the first argument of the call replaces the call"
    CALL = "the function `new`, whose first argument is the object, replaces the method"
    COMMENT_OUT = "its statement, and those that depend on it, stay as comments"
    REFUSE = "the program is refused"


class NameRule(NamedTuple):
    """What becomes of a name or a method, and `why`, for the report and for comments.

    Attributes:
        new: the name that replaces it.
        module: from which it is imported.
        arguments: the arguments of calls that are carried; None carries all but `dropped`.
        positional: how many arguments mean the same without their names.
    """

    action: Action
    why: str = ""
    new: str = ""
    module: str = ""
    arguments: tuple[str, ...] | None = None
    positional: int | None = None
    dropped: tuple[str, ...] = ()

    def carries(self, argument: str) -> bool:
        """Returns whether an argument is carried, by its name."""
        return argument not in self.dropped and (
            self.arguments is None or argument in self.arguments
        )


NO_COUNTERPART = "the new program has no counterpart"

_EXPORT = "call Trainer.export_saved_model, which exports for predictions on CPUs"
_HOOKS = "there is no session that runs hooks; put their code into the loop of Trainer.train"
_TPU = "the strategy determines the cores and the loop of the TPU"
_CHECKPOINTS = "Trainer saves the checkpoints, which are of objects"
_BY_NAME = "Trainer.variables has the variables by name"
_TF2 = "the program runs in TensorFlow 2 now"
_GRADIENTS = "the gradient of the loss in `minimize` trains the tables"
_NO_COLLECTION = "outside of a graph the collection is empty"
_MOVING_AVERAGES = (
    "in the legacy program nothing runs this layer's updates of its moving averages, unless the "
    "program does so itself: they stay at their initial values, in evaluation and predictions too; "
    "in TensorFlow 2 the layer updates them while it trains"
)


def _replace(new: str, arguments: str, positional: int | None = None) -> NameRule:
    """Returns the rule of a class or function; by default all arguments may be without names."""
    names = tuple(arguments.split())
    count = len(names) if positional is None else positional
    return NameRule(Action.REPLACE, new=new, arguments=names, positional=count)


def _rows(value: _Value, names: str) -> dict[str, _Value]:
    return dict.fromkeys(names.split(), value)


ESTIMATOR = "TPUEstimator"

EXPORT_MODULE = "estimator_bridge.estimator.export"
"""Has the receivers and outputs of exports."""

STOCK: Mapping[str, NameRule] = {
    ESTIMATOR: _replace(
        "Trainer",
        "model_fn model_dir config params train_batch_size eval_batch_size predict_batch_size "
        "embedding_config_spec warm_start_from",
        positional=4,
    ),
    "TPUEstimatorSpec": _replace(
        "ModelSpec", "mode predictions loss train_op eval_metrics export_outputs"
    ),
    "RunConfig": _replace(
        "RunConfig", "model_dir tf_random_seed save_checkpoints_steps cluster master", positional=0
    ),
    "TrainSpec": _replace("TrainSpec", "input_fn max_steps"),
    "EvalSpec": _replace("EvalSpec", "input_fn steps"),
    "WarmStartSettings": _replace(
        "WarmStartSettings", "ckpt_to_initialize_from vars_to_warm_start"
    ),
    "train_and_evaluate": _replace("train_and_evaluate", "estimator train_spec eval_spec"),
    "ModeKeys": NameRule(Action.REPLACE, new="ModeKeys"),
    **_rows(
        NameRule(Action.IMPORT, module=EXPORT_MODULE),
        "PredictOutput ClassificationOutput RegressionOutput ServingInputReceiver "
        "TensorServingInputReceiver build_parsing_serving_input_receiver_fn "
        "build_raw_serving_input_receiver_fn",
    ),
    "EmbeddingConfigSpec": NameRule(Action.IMPORT, module="estimator_bridge.legacy.spec"),
}
"""Names of stock's estimator, by their last part."""

_IMPORTED_MODULES = ("estimator_bridge.legacy.parameters", "estimator_bridge.legacy.table_config")
"""Modules of the bridge whose names a spec is made of."""

_STOCK_REASONS: Mapping[str, str] = {
    **dict.fromkeys(
        stock_names.CANNED,
        "canned estimators have no TPU embeddings; the bridge form of `migrate` runs them",
    ),
    **_rows(_EXPORT, "export exporters"),
    **_rows(_HOOKS, "hooks stop_if_no_decrease_hook"),
    **_rows(_TPU, "TPUConfig InputPipelineConfig"),
    **_rows(_CHECKPOINTS, "Scaffold Saver"),
}
"""Why other names of stock are commented out, by one of the parts of a name."""

TENSORFLOW: Mapping[str, NameRule] = {
    **_rows(
        NameRule(Action.COMMENT_OUT, _TF2),
        "disable_v2_behavior disable_eager_execution disable_resource_variables "
        "disable_control_flow_v2 disable_v2_tensorshape",
    ),
    **_rows(NameRule(Action.COMMENT_OUT, _CHECKPOINTS), "train.Scaffold train.Saver"),
    **_rows(NameRule(Action.REFUSE, _GRADIENTS), "gradients GradientTape"),
    **_rows(
        NameRule(Action.REFUSE, _NO_COLLECTION),
        "global_variables model_variables moving_average_variables GraphKeys.GLOBAL_VARIABLES "
        "GraphKeys.REGULARIZATION_LOSSES losses.get_regularization_loss "
        "losses.get_regularization_losses losses.get_total_loss",
    ),
    "train.ExponentialMovingAverage": NameRule(
        Action.REFUSE, "Trainer keeps no averages of variables"
    ),
    "keras.layers.BatchNormalization": NameRule(Action.REPORT, _MOVING_AVERAGES),
}
"""Names below `tensorflow`, `tensorflow.compat.v1` and `tensorflow.compat.v2`."""

_ANYWHERE: Mapping[str, NameRule] = {
    "TPUClusterResolver": NameRule(Action.KEEP),
    "CrossShardOptimizer": NameRule(
        Action.UNWRAP, "the strategy adds the gradients of its replicas"
    ),
}
"""Names of any module, by their last part."""

_LOOPS = NameRule(
    Action.KEEP, dropped=("hooks", "saving_listeners", "checkpoint_path", "predict_keys")
)
EXPORT = _replace("export_saved_model", "export_dir_base serving_input_receiver_fn")

METHODS: Mapping[str, NameRule] = {
    **_rows(_LOOPS, "train evaluate predict"),
    **_rows(EXPORT, "export_saved_model export_savedmodel"),
    "experimental_export_all_saved_models": NameRule(Action.COMMENT_OUT, _EXPORT),
    **_rows(NameRule(Action.COMMENT_OUT, _BY_NAME), "get_variable_names get_variable_value"),
    "minimize": NameRule(Action.CALL, new="minimize"),
    **_rows(NameRule(Action.REFUSE, _GRADIENTS), "compute_gradients apply_gradients"),
}
"""Methods of estimators and of optimizers."""

EXPORTED_MODE = ("experimental_mode", "PREDICT")
"""The argument of exports that names a mode, and the mode that is carried."""

ARGUMENTS: Mapping[str, str] = {
    "use_tpu": "the strategy determines the device, and on each tables are trained as on a TPU",
    "tpu_config": _TPU,
    **_rows(_EXPORT, "export_to_tpu export_to_cpu exporters"),
    "experimental_mode": "models are exported for predictions",
    "assets_extra": "copy the files into the directory that export_saved_model returns",
    "as_text": "SavedModels are binary",
    "checkpoint_path": "the latest checkpoint of model_dir is used",
    "strip_default_attrs": "SavedModels are written without default attributes",
    **_rows(_HOOKS, "hooks saving_listeners training_hooks evaluation_hooks prediction_hooks"),
    "scaffold_fn": _CHECKPOINTS,
    "host_call": "Trainer.train runs on the host; write summaries there",
    **_rows("every checkpoint is evaluated", "throttle_secs start_delay_secs"),
    "log_step_count_steps": "Trainer.train logs nothing; add your logging there",
}
"""Why an argument is not carried, by its name; others have no counterpart."""


OTHER_STOCK = NameRule(Action.COMMENT_OUT, NO_COUNTERPART)
"""The rule of all other names of stock; `stock_reason` has the reason."""


def of_name(full: str) -> NameRule | None:
    """Returns the rule of a full name; None if there is none and the name stays as it is."""
    short = full.rpartition(".")[2]
    rule = _ANYWHERE.get(short) or TENSORFLOW.get(stock_replacements.below_tensorflow(full))
    if rule is not None or not stock_replacements.is_stock(full):
        return rule
    place = stock_replacements.place_of(full)
    if place is not None and place.module in _IMPORTED_MODULES:
        return NameRule(Action.IMPORT, module=place.module)
    return STOCK.get(short, OTHER_STOCK)


def stock_reason(names: Iterable[str], written: str) -> str:
    """Returns why a name, by its possible full names and as written, is commented out."""
    refusals = (stock_replacements.refusal_of(name) for name in names)
    reasons = (_STOCK_REASONS.get(part) for part in written.split("."))
    return next(filter(None, (*refusals, *reasons)), NO_COUNTERPART)
