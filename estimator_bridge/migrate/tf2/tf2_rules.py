"""Lists the rules of the tf2 form: what happens to each name, method and argument, and why."""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from estimator_bridge.migrate import selection, stock_replacements
from estimator_bridge.run import stock_names
from estimator_bridge.settings import quirks

_Value = TypeVar("_Value")


@enum.unique
class Action(enum.Enum):
    """What a rule does with a name or a method."""

    IMPORT = "it becomes `new` of `module`"
    REPORT = "it stays, and behaves differently; a line of the report says how"
    UNWRAP = "the first argument of the call replaces the call"
    UNWRAP_TENSOR = "the argument `tensor` of the call replaces the call"
    CALL = "the function `new`, whose first argument is the object, replaces the method"
    READ = "a call of the function `new` replaces the call that reads the collection"
    FIT = "the method `new` of a Keras model replaces it, with `x` and `callbacks`"
    EXPORT = "the method `new` replaces it if it exports for predictions; else it is refused"
    COMMENT_OUT = "its statement, and those that depend on it, stay as comments"
    DROP = "its statement is left out; those that depend on it stay as comments"
    LEAVE_OUT = "the argument stays as a comment"
    DROP_ARGUMENT = "the argument is left out"
    OBJECT = "`object` replaces it"
    ADD = "a call gets an argument"
    LOOK = "it stays, and a line of the report says what to look at"
    OTHER = "see the reason"
    REFUSE = "the program is refused"


class NameRule(NamedTuple):
    """The rule for a name or a method: the action, and the reason (`why`) for reports and comments.

    Attributes:
        arguments: the arguments that calls keep; None keeps all.
        positional: how many arguments calls may pass by position; None if there is no limit.
        refused: arguments whose loss would change what the program does.
        way_out: what the user can do about a refusal; by default, remove the code.
        unpacked: whether calls may contain `**arguments`. If so, these are carried over.
    """

    action: Action
    why: str = ""
    new: str = ""
    module: str = ""
    arguments: tuple[str, ...] | None = None
    positional: int | None = None
    refused: tuple[str, ...] = ()
    way_out: str = ""
    unpacked: bool = False

    @property
    def effect(self) -> str:
        return _EFFECTS.get(self.action, selection.SAFE)

    def carries(self, argument: str) -> bool:
        return self.arguments is None or argument in self.arguments


_EFFECTS = {
    Action.REPORT: selection.CHANGES_NUMBERS,
    Action.ADD: selection.CHANGES_NUMBERS,
    Action.LOOK: selection.NEEDS_A_LOOK,
    Action.COMMENT_OUT: selection.NEEDS_A_LOOK,
    Action.REFUSE: selection.REFUSED,
}


KEEP = "keep-estimator"
"""The id of the rule that lets a program keep its estimators."""

NO_COUNTERPART = "the new program has no counterpart"

TRAINING = "tf2_engine.training"

KERAS = "tf2_engine.keras"

_CANNED = "canned-estimator"
_EXPORT = "call Trainer.export_saved_model, which exports for predictions on CPUs"
_HOOKS = "there is no session that runs hooks"
_TPU = "the strategy determines the cores and the loop of the TPU"
_TF2 = "the program runs in TensorFlow 2 now"
_TAPE = "only gradients from `minimize`, `compute_gradients` or `tf.gradients` reach the tables"
_NO_SUCH_SETTING = "the config of the library does not have it"
_QUEUES = "TensorFlow 2 has no queues"
_TENSOR = "a layer takes the tensor itself"
_DATASET = "Return the tf.data.Dataset from the input_fn"


def _training(
    new: str, arguments: str | None = None, positional: int | None = None, refused: str = ""
) -> NameRule:
    """Makes the rule for a name that has a counterpart in the training library.

    If `arguments` is None, calls keep all arguments. If `positional` is None, they may pass all of
    these by position.
    """
    names = None if arguments is None else tuple(arguments.split())
    count = len(names) if names is not None and positional is None else positional
    rule = NameRule(Action.IMPORT, new=new, module=TRAINING, arguments=names, positional=count)
    return rule._replace(refused=tuple(refused.split()))


def _rows(value: _Value, names: str) -> dict[str, _Value]:
    return dict.fromkeys(names.split(), value)


ESTIMATOR = "TPUEstimator"

STOCK: Mapping[str, NameRule] = {
    ESTIMATOR: _training(
        "Trainer",
        "model_fn model_dir config params train_batch_size eval_batch_size predict_batch_size "
        "embedding_config_spec warm_start_from",
        positional=4,
    ),
    "Estimator": _training(
        "Trainer", "model_fn model_dir config params warm_start_from", 4
    )._replace(unpacked=True),
    "TPUEstimatorSpec": _training("ModelSpec"),
    "EstimatorSpec": _training("ModelSpec")._replace(positional=4),
    "RunConfig": _training(
        "RunConfig",
        "model_dir tf_random_seed save_summary_steps save_checkpoints_steps save_checkpoints_secs "
        "keep_checkpoint_max keep_checkpoint_every_n_hours log_step_count_steps cluster master",
        positional=0,
        refused="train_distribute eval_distribute",
    )._replace(unpacked=True),
    "numpy_input_fn": _training("numpy_input_fn"),
    "pandas_input_fn": _training("pandas_input_fn"),
    "TrainSpec": _training("TrainSpec", "input_fn max_steps hooks saving_listeners"),
    "EvalSpec": _training("EvalSpec", "input_fn steps name hooks exporters"),
    "WarmStartSettings": _training(
        "WarmStartSettings",
        "ckpt_to_initialize_from vars_to_warm_start var_name_to_prev_var_name",
        positional=2,
        refused="var_name_to_vocab_info",
    ),
    "train_and_evaluate": _training("train_and_evaluate", "estimator train_spec eval_spec"),
    "add_metrics": NameRule(
        Action.REFUSE,
        "the evaluations would lack these metrics",
        way_out="Return the metrics from the model_fn, in the EstimatorSpec",
    ),
    "ModeKeys": _training("ModeKeys"),
    **{
        name: _training(name)
        for name in (
            *("make_early_stopping_hook", "stop_if_higher_hook", "stop_if_lower_hook"),
            *("stop_if_no_decrease_hook", "stop_if_no_increase_hook"),
        )
    },
    **_rows(
        NameRule(Action.IMPORT, module="estimator_bridge.legacy.exporters"),
        "BestExporter FinalExporter LatestExporter",
    ),
    **_rows(
        NameRule(Action.IMPORT, module="estimator_bridge.estimator.export"),
        "PredictOutput ClassificationOutput RegressionOutput ServingInputReceiver "
        "TensorServingInputReceiver build_parsing_serving_input_receiver_fn "
        "build_raw_serving_input_receiver_fn",
    ),
    "EmbeddingConfigSpec": NameRule(Action.IMPORT, module="estimator_bridge.legacy.spec"),
    **_rows(NameRule(Action.DROP, _TPU), "TPUConfig InputPipelineConfig"),
}
"""Names of stock's estimator, by their last part."""

_OF_TRAIN = "tensorflow.compat.v1.train"

ESTIMATORS = (ESTIMATOR, "Estimator")

_MODEL = STOCK[ESTIMATOR]._replace(new="TrainerModel", module=KERAS, unpacked=True)
"""The rule for Estimator and TPUEstimator in a program that becomes a `TrainerModel`."""

_SESSION_HOOKS = frozenset(
    [
        *("SessionRunHook", "SessionRunArgs", "SessionRunContext", "SessionRunValues"),
        *("CheckpointSaverHook", "CheckpointSaverListener", "FeedFnHook", "FinalOpsHook"),
        *("GlobalStepWaiterHook", "LoggingTensorHook", "NanLossDuringTrainingError"),
        *("NanTensorHook", "ProfilerHook", "SecondOrStepTimer", "StepCounterHook"),
        *("StopAtStepHook", "SummarySaverHook"),
    ]
)
"""Names that `tf.estimator` and `tf.compat.v1.train` share."""

_IMPORTED_MODULES = ("estimator_bridge.legacy.parameters", "estimator_bridge.legacy.table_config")
"""Modules of the bridge that define the names that specs use."""

_STOCK_REASONS: Mapping[str, str] = {
    **_rows(_EXPORT, "export exporters"),
    **_rows(_HOOKS, "hooks"),
}
"""Why names of stock without a rule are commented out, by a part of the dotted name."""

TENSORFLOW: Mapping[str, NameRule] = {
    **_rows(
        NameRule(Action.DROP, _TF2),
        "disable_v2_behavior disable_eager_execution disable_resource_variables "
        "disable_control_flow_v2 disable_v2_tensorshape",
    ),
    "train.Scaffold": _training(
        "Scaffold",
        "saver summary_op",
        positional=0,
        refused="init_op init_fn init_feed_dict local_init_op",
    ),
    "train.Saver": _training(
        "Saver", "var_list max_to_keep keep_checkpoint_every_n_hours", positional=1
    ),
    "train.ExponentialMovingAverage": _training("ExponentialMovingAverage"),
    "gradients": _training("gradients"),
    "losses.get_regularization_loss": _training("get_regularization_loss"),
    "losses.get_regularization_losses": _training("get_regularization_losses"),
    "losses.get_total_loss": _training("get_total_loss"),
    "GraphKeys.REGULARIZATION_LOSSES": NameRule(
        Action.READ, new="get_regularization_losses", module=TRAINING
    ),
    "GradientTape": NameRule(Action.REFUSE, _TAPE),
    **{
        f"train.{name}": _training(name)
        for name in ("init_from_checkpoint", "list_variables", "load_variable", "load_checkpoint")
    },
    "placeholder": _training("placeholder"),
    **{
        f"feature_column.{name}": _training(name)
        for name in ("shared_embedding_columns", "shared_embeddings")
    },
    **_rows(
        _training("make_iterator"),
        "data.make_one_shot_iterator data.make_initializable_iterator",
    ),
    **_rows(
        NameRule(Action.REFUSE, _HOOKS + " with a graph", way_out="Leave the hook out"),
        "train.CheckpointSaverHook train.FinalOpsHook",
    ),
    **_rows(
        NameRule(Action.REFUSE, _QUEUES, way_out=_DATASET),
        "train.batch train.shuffle_batch train.string_input_producer train.input_producer "
        "train.start_queue_runners train.slice_input_producer",
    ),
    **_rows(NameRule(Action.UNWRAP_TENSOR, _TENSOR), "keras.layers.Input keras.Input"),
}
"""Names below `tensorflow`, `tensorflow.compat.v1` and `tensorflow.compat.v2`."""

COLLECTIONS: Mapping[str, str] = {"regularization_losses": "GraphKeys.REGULARIZATION_LOSSES"}
"""Maps the keys of collections to the names that `TENSORFLOW` has for these keys."""

_ANYWHERE: Mapping[str, NameRule] = {
    "TPUClusterResolver": _training("TPUClusterResolver"),
    "CrossShardOptimizer": NameRule(
        Action.UNWRAP,
        "the strategy adds the gradients of its replicas",
        new="CrossShardOptimizer",
        module=TRAINING,
    ),
}
"""Names that have the same rule in every module, by their last part."""

EXPORT = NameRule(
    Action.EXPORT,
    _EXPORT,
    new="export_saved_model",
    arguments=(
        *("export_dir_base", "serving_input_receiver_fn", "assets_extra", "as_text"),
        "checkpoint_path",
    ),
    positional=5,
)

METHODS: Mapping[str, NameRule] = {
    **_rows(EXPORT, "export_saved_model export_savedmodel"),
    "experimental_export_all_saved_models": NameRule(
        Action.REFUSE,
        "models are exported for predictions",
        way_out=f"{_EXPORT[:1].upper()}{_EXPORT[1:]}",
    ),
    **_rows(
        NameRule(Action.CALL, new="make_iterator", module=TRAINING),
        "make_one_shot_iterator make_initializable_iterator",
    ),
    **{
        name: NameRule(Action.CALL, new=name, module=TRAINING)
        for name in ("minimize", "compute_gradients")
    },
    "as_estimator_spec": NameRule(
        Action.REFUSE, "Trainer takes the spec itself", way_out="Return the spec"
    ),
}

_METHODS_OF_KERAS: Mapping[str, NameRule] = {
    "train": NameRule(Action.FIT, new="fit"),
    "predict": NameRule(Action.FIT, new="predictions"),
}


def of_method(name: str, *, keras: bool = False) -> NameRule | None:
    return (_METHODS_OF_KERAS if keras else {}).get(name) or METHODS.get(name)


NOT_IN_CONFIG: Mapping[str, NameRule] = {
    f"config.{name}": NameRule(
        Action.REFUSE, _NO_SUCH_SETTING, way_out="Use the value from which the config is made"
    )
    for name in ("tpu_config", "session_config", "train_distribute", "eval_distribute")
}
"""Attributes that the new config lacks, written as in the program: `config.tpu_config`."""

NOT_IN_REPLACE = (
    *("tpu_config", "session_config", "evaluation_master", "device_fn", "protocol"),
    *("session_creation_timeout_secs", "checkpoint_save_graph_def"),
)
"""Arguments of a config's `replace` that are dropped."""

EXPORTED_MODE = ("experimental_mode", "PREDICT")
"""The argument of exports that chooses a mode, and the only value that is supported."""

ARGUMENTS: Mapping[str, str] = {
    "use_tpu": "the strategy chooses the device, and on every device tables train as on a TPU",
    "tpu_config": _TPU,
    **_rows(_EXPORT, "export_to_tpu export_to_cpu"),
    "experimental_mode": "models are exported for predictions",
    "strip_default_attrs": "SavedModels are written without default attributes",
    **_rows("every checkpoint is evaluated", "throttle_secs start_delay_secs"),
}
"""Why the new program does not need an argument. Arguments not listed have no counterpart."""


OTHER_STOCK = NameRule(Action.COMMENT_OUT, NO_COUNTERPART)
"""The rule for names of stock that are not listed; `stock_reason` finds the reason."""


_OF_BRIDGE = {
    each.name: each.namespace
    for each in stock_names.SYMBOLS
    if each.namespace in ("", "experimental")
    and each.home.startswith("estimator_bridge.canned.heads.")
}
"""The namespace of each head in the bridge: "experimental", or ""."""


def of_name(full: str, *, keras: bool = False) -> NameRule | None:
    """Finds the rule for a full name; returns None if the name stays as it is."""
    short = full.rpartition(".")[2]
    below = stock_replacements.below_tensorflow(full)
    rule = _ANYWHERE.get(short) or TENSORFLOW.get(below)
    if rule is not None or not stock_replacements.is_stock(full):
        return rule
    if keras and short in ESTIMATORS:
        return _MODEL
    if short in _SESSION_HOOKS:
        return TENSORFLOW.get(f"train.{short}", OTHERS["session-hooks"])
    place = stock_replacements.place_of(full)
    if place is not None and place.module in _IMPORTED_MODULES:
        return OTHERS["parameters"]._replace(why="", module=place.module)
    if short in stock_names.CANNED | stock_names.CANNED_EXPERIMENTAL:
        return OTHERS[_CANNED]
    known = STOCK.get(short)
    if short == "RunConfig" and ".tpu." not in full:
        return STOCK[short]._replace(positional=5)  # `tpu.RunConfig` begins with tpu_config
    if known is None and short in _OF_BRIDGE:
        return NameRule(Action.IMPORT, module=stock_names.namespace_module(_OF_BRIDGE[short]))
    return known or OTHER_STOCK


_LEFT_OUT = (Action.COMMENT_OUT, Action.DROP, Action.REFUSE)


def of_type(full: str, rule: NameRule, *, is_annotation: bool) -> NameRule:
    if not stock_replacements.is_stock(full):
        return rule
    # `isinstance` with `object` would be true for everything.
    leaves_out = is_annotation and rule.action in _LEFT_OUT
    return OTHERS["annotation"] if leaves_out else rule


def stock_reason(names: Iterable[str], written: str) -> str:
    refusals = (stock_replacements.refusal_of(name) for name in names)
    reasons = (_STOCK_REASONS.get(part) for part in written.split("."))
    return next(filter(None, (*refusals, *reasons)), NO_COUNTERPART)


def rule_id(name: str) -> str:
    """Makes the id of a name's rule: its last part, in lower case with hyphens."""
    short = name.removeprefix("config.").rpartition(".")[2]
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", short)
    return ("config-" if name.startswith("config.") else "") + words.replace("_", "-").lower()


def id_of(full: str, rule: NameRule) -> str:
    if rule.module == _OF_TRAIN:
        return "session-hooks"
    for name in ("annotation", _CANNED):
        if rule is OTHERS[name]:
            return name
    if rule is STOCK[ESTIMATOR]:
        return rule_id(ESTIMATOR)
    return "parameters" if rule.module in _IMPORTED_MODULES else rule_id(full)


@functools.cache
def leaves_no_comment(rule_id: str) -> bool:
    rule = listed().get(rule_id)
    dropped = (Action.DROP, Action.DROP_ARGUMENT, Action.UNWRAP)
    return rule_id == "import-stock" or (rule is not None and rule.action in dropped)


def argument_rule(name: str) -> str:
    return f"argument-{rule_id(name)}" if name in ARGUMENTS else "argument-other"


OTHERS: Mapping[str, NameRule] = {
    _CANNED: NameRule(
        Action.REFUSE,
        "it makes an estimator that contains its own model_fn",
        way_out="Write this model_fn out in the program",
    ),
    "annotation": NameRule(
        Action.OBJECT, "an annotation with a class that has no counterpart in the new program"
    ),
    "argument-other": NameRule(Action.LEAVE_OUT, NO_COUNTERPART),
    "arguments-unpacked": NameRule(Action.REFUSE, "`**` may have arguments that are not supported"),
    "arguments-without-names": NameRule(Action.REFUSE, "not all of them are supported"),
    "called-elsewhere": NameRule(
        Action.REFUSE, "a class whose arguments change must be called by its name, or an alias"
    ),
    "depends-on-left-out": NameRule(
        Action.COMMENT_OUT, "it uses code that is left out, or only such code uses it"
    ),
    "import-stock": NameRule(Action.OTHER, "imports of stock are removed, others are added"),
    "dimension-value": NameRule(
        Action.OTHER, "`.value` of a size in a shape, which TensorFlow 2 has as a number"
    ),
    "imports-legacy-module": NameRule(
        Action.REFUSE, "a module beside the program has to be migrated with it"
    ),
    "imports-star": NameRule(Action.REFUSE, "a star import has names of stock"),
    "keep-quirks": NameRule(Action.OTHER, f"a spec gets {quirks.ARGUMENT}"),
    KEEP: NameRule(
        Action.OTHER,
        "where a Trainer cannot replace the estimators without an edit, the bridge's estimators "
        f"replace them and run in TensorFlow 2; with `--skip {KEEP}` the Trainer is written "
        "nevertheless, with marks, or the program is refused",
    ),
    "loses-a-name": NameRule(Action.REFUSE, "a name would have no value where it is used"),
    "loses-training": NameRule(Action.REFUSE, "a statement that trains would be left out"),
    "no-estimator": NameRule(Action.REFUSE, "the program creates no TPUEstimator"),
    "no-training": NameRule(
        Action.REFUSE,
        "it trains, and calls no minimize, compute_gradients or tf.gradients, which would tell the "
        "library what is trained",
        way_out="Call one of them in the model_fn, in the program or in a module of its folder",
    ),
    "other-stock": OTHER_STOCK,
    "parameters": NameRule(
        Action.IMPORT,
        "parameters of optimizers, and configs of tables and features",
        module="estimator_bridge.legacy",
    ),
    "session-hooks": NameRule(
        Action.IMPORT,
        "hooks of sessions and their parts, such as `tf.estimator.SessionRunHook`, are those of "
        "`tf.compat.v1.train`",
        module=_OF_TRAIN,
    ),
    "variable-op-name": NameRule(
        Action.OTHER, "`.op.name` of a variable becomes a part of `.name`"
    ),
}
"""Rules that do not belong to one name, by id."""


def listed(*, keras: bool = False) -> dict[str, NameRule]:
    tables = (STOCK, TENSORFLOW, _ANYWHERE, METHODS, NOT_IN_CONFIG)
    rules = {rule_id(name): rule for table in tables for name, rule in table.items()}
    arguments = {
        argument_rule(name): NameRule(Action.DROP_ARGUMENT, why) for name, why in ARGUMENTS.items()
    }
    return dict(sorted({**rules, **arguments, **OTHERS}.items()))


def becomes(rule: NameRule) -> str:
    if rule.action is Action.OTHER:
        return rule.why
    new = f"`{rule.new}`" if rule.new else "its name"
    done = rule.action.value.replace("`new`", new).replace("`module`", f"`{rule.module}`")
    return f"{done}: {rule.why}" if rule.why else done
