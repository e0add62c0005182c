"""`RunConfig`, the configuration of an estimator, like `tf.estimator.RunConfig`."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.legacy import requirements
from estimator_bridge.legacy.tf_config import TFConfig, read_task, tf_config
from tf2_engine.arguments import typed
from tf2_engine.types import Message, Object, Strategy

_Config = TypeVar("_Config", bound="RunConfig")


class _Unset:
    def __repr__(self) -> str:
        return "<default>"


UNSET: Final = _Unset()
"""The default of arguments for which None has a meaning."""


class ConfigProperty(property):
    """A property that returns the attribute of the same name with a leading underscore."""

    def __init__(self, doc: str, requirement: requirements.Requirement | None = None) -> None:
        super().__init__(lambda config: getattr(config, self._attribute), doc=doc)
        self.requirement = requirement

    def __set_name__(self, owner: type, name: str) -> None:
        self._attribute = f"_{name}"


class _OfTask(ConfigProperty):
    """A property that comes from TF_CONFIG, not from an argument."""


_INT = requirements.Requirement(lambda value: not isinstance(value, int), "{name} must be integer")
_INT_IF_SET = _INT._replace(text="{name} must be an integer if set.")
_AT_LEAST_ZERO = requirements.NOT_NEGATIVE._replace(text="{name} should be >= 0")
_ABOVE_ZERO = requirements.POSITIVE._replace(text="{name} should be > 0")
_NOT_EMPTY = requirements.Requirement(lambda value: value == "", "{name} should be non-empty")
_CONFIG_PROTO = requirements.Requirement(
    lambda config: not isinstance(config, tf.compat.v1.ConfigProto),
    "{name} must be instance of ConfigProto",
)
_TAKES_OP = requirements.Requirement(
    lambda function: not callable(function) or requirements.argument_names(function) != ("op",),
    '{name} must be callable with exactly one argument "op".',
)
_PROTOCOL = requirements.one_of(("grpc", "grpc+verbs"), "{name} should be grpc or grpc+verbs")


@typed
class RunConfig:
    """The configuration of an estimator. The environment variable TF_CONFIG sets the cluster.

    Raises:
        InvalidSpec: a setting is out of range, both checkpoint intervals are given, or TF_CONFIG
            describes a cluster that is not supported.
    """

    _session_config: Message | None
    _save_checkpoints_steps: int | None
    _save_checkpoints_secs: int | None

    # The arguments of the constructor, and of `replace`.
    model_dir = ConfigProperty("Where checkpoints and summaries are written, or None.", _NOT_EMPTY)
    tf_random_seed = ConfigProperty("The seed of the graph, or None.", _INT)
    save_summary_steps = ConfigProperty("Steps from one summary to the next.", _AT_LEAST_ZERO)
    save_checkpoints_steps = ConfigProperty(
        "Steps from one checkpoint to the next, or None.", _AT_LEAST_ZERO
    )
    save_checkpoints_secs = ConfigProperty(
        "Seconds from one checkpoint to the next, or None.", _AT_LEAST_ZERO
    )
    session_config = ConfigProperty("The ConfigProto of sessions, or None.", _CONFIG_PROTO)
    keep_checkpoint_max = ConfigProperty("Checkpoints kept; None and 0 keep all.", _AT_LEAST_ZERO)
    keep_checkpoint_every_n_hours = ConfigProperty(
        "Hours between checkpoints that are kept forever.", _ABOVE_ZERO
    )
    log_step_count_steps = ConfigProperty("Steps between lines in the log.", _ABOVE_ZERO)
    train_distribute = ConfigProperty("A strategy for training, or None.")
    device_fn = ConfigProperty("A function that gives an op's device, or None.", _TAKES_OP)
    protocol = ConfigProperty("The protocol of servers, or None.", _PROTOCOL)
    eval_distribute = ConfigProperty("A strategy for evaluation, or None.")
    experimental_distribute = ConfigProperty("A DistributeConfig with both strategies, or None.")
    experimental_max_worker_delay_secs = ConfigProperty(
        "The longest delay before a worker starts, or None.", _INT_IF_SET
    )
    session_creation_timeout_secs = ConfigProperty("Seconds to wait for a session.", _ABOVE_ZERO)
    checkpoint_save_graph_def = ConfigProperty("Whether the graph is saved beside the checkpoints.")

    cluster_spec = _OfTask("The `tf.train.ClusterSpec`; empty for one process.")
    task_type = _OfTask('"worker", "ps", "chief", "master" or "evaluator".')
    task_id = _OfTask("The index of this process among the tasks of its type.")
    is_chief = _OfTask("Whether this process saves checkpoints.")
    master = _OfTask("The address of the training session; '' is this process.")
    evaluation_master = _OfTask("The address of the evaluation session; '' is this process.")
    num_ps_replicas = _OfTask("The number of parameter servers.")
    num_worker_replicas = _OfTask("The number of workers, including the chief.")
    global_id_in_cluster = _OfTask("The index of this task in the cluster; None for an evaluator.")
    service = _OfTask('The "service" in TF_CONFIG, or None.')

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        tf_random_seed: int | None = None,
        save_summary_steps: int | None = 100,
        save_checkpoints_steps: int | _Unset | None = UNSET,
        save_checkpoints_secs: int | _Unset | None = UNSET,
        session_config: Message | None = None,
        keep_checkpoint_max: int | None = 5,
        keep_checkpoint_every_n_hours: float | None = 10000,
        log_step_count_steps: int | None = 100,
        train_distribute: Strategy | None = None,
        device_fn: Callable[[Object], str] | None = None,
        protocol: str | None = None,
        eval_distribute: Strategy | None = None,
        experimental_distribute: Object = None,
        experimental_max_worker_delay_secs: int | None = None,
        session_creation_timeout_secs: float | None = 7200,
        checkpoint_save_graph_def: bool = True,
    ) -> None:
        for name, strategy in (("train", train_distribute), ("eval", eval_distribute)):
            if type(strategy).__name__ == "ParameterServerStrategyV2":
                raise errors.InvalidSpec(
                    f"`RunConfig`: `{name}_distribute` is {strategy}, a strategy of TensorFlow 2 "
                    "that cannot run an estimator. Leave the strategy out: in a cluster from "
                    "TF_CONFIG, an estimator already trains as with ParameterServerStrategy. "
                    "(Stock's message says: Please use "
                    "`tf.compat.v1.distribute.experimental.ParameterServerStrategy`.)"
                )
        arguments = dict(locals())
        settings = {name: arguments[name] for name in _SETTINGS}
        config = tf_config()
        settings["model_dir"] = _model_dir(model_dir, config)
        if save_checkpoints_steps is UNSET and save_checkpoints_secs is UNSET:
            settings["save_checkpoints_secs"] = 600
        self._set({name: None if each is UNSET else each for name, each in settings.items()})
        vars(self).update({f"_{name}": value for name, value in vars(read_task(config)).items()})

    def _set(self, settings: Mapping[str, Object]) -> None:
        for name, value in settings.items():
            if name not in _SETTINGS:
                raise errors.InvalidSpec(
                    f"`RunConfig`: Replacing {name} is not supported; only these settings can be "
                    f"replaced: {', '.join(_SETTINGS)}."
                )
            setattr(self, f"_{name}", value)
        steps, secs = settings.get("save_checkpoints_steps"), settings.get("save_checkpoints_secs")
        if steps is not None and secs is not None:
            raise errors.InvalidSpec(
                "`RunConfig`: `save_checkpoints_steps` and `save_checkpoints_secs` cannot be both "
                f"set; they are {steps} and {secs}. Drop one of them."
            )
        # If only one interval is given, it disables the other interval.
        if steps is not None:
            self._save_checkpoints_secs = None
        elif secs is not None:
            self._save_checkpoints_steps = None
        for name, setting in _SETTINGS.items():
            if setting.requirement is not None:
                requirement = requirements.optional(setting.requirement)
                requirements.check("RunConfig", name, getattr(self, name), requirement)

    def replace(self: _Config, **settings: Object) -> _Config:
        changed = copy.deepcopy(self)
        changed._set(settings)
        return changed

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={getattr(self, name)!r}" for name in _SETTINGS)
        return f"<{type(self).__name__} {settings}>"


_SETTINGS = {name: each for name, each in vars(RunConfig).items() if type(each) is ConfigProperty}


def _model_dir(model_dir: str | os.PathLike[str] | None, config: TFConfig) -> str | None:
    argument = None if model_dir is None else os.fspath(model_dir)
    configured: str | None = config.get("model_dir")
    requirements.check("RunConfig", "model_dir", argument, _NOT_EMPTY)
    requirements.check("RunConfig", "model_dir in TF_CONFIG", configured, _NOT_EMPTY)
    if argument and configured and argument != configured:
        raise errors.InvalidSpec(
            "`RunConfig`: `model_dir` provided in RunConfig construct, if set, must have the same "
            f"value as the model_dir in TF_CONFIG. They are {argument!r} and {configured!r}. Make "
            "them equal, or set only one."
        )
    return argument or configured
