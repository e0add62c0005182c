"""How a legacy program is run: `RunConfig`, as `tf.estimator.RunConfig` has it."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.legacy.checks import (
    NOT_NEGATIVE,
    POSITIVE,
    Requirement,
    argument_names,
    check,
    check_settings,
    one_of,
    optional,
)
from estimator_bridge.legacy.cluster import Task, TFConfig, read_task, tf_config
from tf2_engine.types import Message, Object, Strategy

_Config = TypeVar("_Config", bound="RunConfig")


class _Unset:
    def __repr__(self) -> str:
        return "<default>"


UNSET: Final = _Unset()
"""The default of arguments for which None has a meaning."""


_INT = Requirement(lambda value: not isinstance(value, int), "must be an int")
_NOT_EMPTY = Requirement(lambda value: value == "", "must not be empty")

# The names of the arguments, of the properties, and of what `replace` takes; all may be None.
_SETTINGS: Mapping[str, Requirement | None] = {
    "model_dir": _NOT_EMPTY,
    "tf_random_seed": _INT,
    "save_summary_steps": NOT_NEGATIVE,
    "save_checkpoints_steps": NOT_NEGATIVE,
    "save_checkpoints_secs": NOT_NEGATIVE,
    "session_config": Requirement(
        lambda config: not isinstance(config, tf.compat.v1.ConfigProto), "must be a ConfigProto"
    ),
    "keep_checkpoint_max": NOT_NEGATIVE,
    "keep_checkpoint_every_n_hours": POSITIVE,
    "log_step_count_steps": POSITIVE,
    "train_distribute": None,
    "device_fn": Requirement(
        lambda function: not callable(function) or argument_names(function) != ("op",),
        "must be callable with one argument `op`",
    ),
    "protocol": one_of(("grpc", "grpc+verbs"), "must be 'grpc' or 'grpc+verbs'"),
    "eval_distribute": None,
    "experimental_distribute": None,
    "experimental_max_worker_delay_secs": _INT,
    "session_creation_timeout_secs": POSITIVE,
    "checkpoint_save_graph_def": None,
}
_REQUIREMENTS = {name: optional(each) for name, each in _SETTINGS.items() if each is not None}


def stored(name: str, doc: str) -> Object:
    """Returns a property for an attribute, whose name has an underscore in front, as in stock."""
    return property(lambda self: getattr(self, f"_{name}"), doc=doc)


def _of_task(name: str, doc: str) -> Object:
    """Returns a property whose value TF_CONFIG determines."""
    return property(lambda self: getattr(self._task, name), doc=doc)


class RunConfig:
    """How an estimator runs: where it saves, how often, in which session.

    The cluster is read from the environment variable TF_CONFIG. It must have a single process for
    training: parameter servers and several workers are refused.

    Raises:
        InvalidSpec: a setting is outside its range; both checkpoint intervals are given; or
            TF_CONFIG describes a cluster that is not supported.
    """

    _session_config: Message | None
    _save_checkpoints_steps: int | None
    _save_checkpoints_secs: int | None

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
                    f"`RunConfig`: `{name}_distribute` is a parameter server strategy, {strategy}, "
                    "which cannot run an estimator."
                )
        arguments = dict(locals())
        settings = {name: arguments[name] for name in _SETTINGS}
        config = tf_config()
        settings["model_dir"] = _model_dir(model_dir, config)
        settings.update(_save_intervals(save_checkpoints_steps, save_checkpoints_secs))
        self._set(settings)
        self._task: Task = read_task(config)

    def _set(self, settings: Mapping[str, Object]) -> None:
        for name, value in settings.items():
            if name not in _SETTINGS:
                raise errors.InvalidSpec(
                    f"`RunConfig`: `{name}` cannot be replaced, only {', '.join(_SETTINGS)}."
                )
            setattr(self, f"_{name}", value)
        steps, secs = settings.get("save_checkpoints_steps"), settings.get("save_checkpoints_secs")
        if steps is not None and secs is not None:
            raise errors.InvalidSpec(
                f"`RunConfig`: `save_checkpoints_steps` is {steps} and `save_checkpoints_secs` is "
                f"{secs}; set only one of them."
            )
        # An interval that is given alone replaces the other one.
        if steps is not None:
            self._save_checkpoints_secs = None
        elif secs is not None:
            self._save_checkpoints_steps = None
        check_settings(
            "RunConfig", {name: getattr(self, name) for name in _SETTINGS}, _REQUIREMENTS
        )

    def replace(self: _Config, **settings: Object) -> _Config:
        """Returns a copy with other values for some of the constructor's arguments.

        Raises:
            InvalidSpec: as the constructor, or a name is not one of its arguments.
        """
        changed = copy.deepcopy(self)
        changed._set(settings)
        return changed

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={getattr(self, name)!r}" for name in _SETTINGS)
        return f"<{type(self).__name__} {settings}>"

    model_dir = stored("model_dir", "Where checkpoints and summaries are written; or None.")
    tf_random_seed = stored("tf_random_seed", "The seed of the graph; or None.")
    save_summary_steps = stored("save_summary_steps", "Steps from one summary to the next.")
    save_checkpoints_steps = stored(
        "save_checkpoints_steps", "Steps from one checkpoint to the next; or None."
    )
    save_checkpoints_secs = stored(
        "save_checkpoints_secs", "Seconds from one checkpoint to the next; or None."
    )
    session_config = stored("session_config", "The ConfigProto of sessions; or None.")
    keep_checkpoint_max = stored("keep_checkpoint_max", "Checkpoints kept; None and 0 keep all.")
    keep_checkpoint_every_n_hours = stored(
        "keep_checkpoint_every_n_hours", "Hours between checkpoints that are kept forever."
    )
    log_step_count_steps = stored("log_step_count_steps", "Steps between lines in the log.")
    train_distribute = stored("train_distribute", "A strategy for training; or None.")
    eval_distribute = stored("eval_distribute", "A strategy for evaluation; or None.")
    experimental_distribute = stored("experimental_distribute", "Both strategies; or None.")
    device_fn = stored("device_fn", "Gives the device of each op; or None.")
    protocol = stored("protocol", "The protocol of servers; or None.")
    experimental_max_worker_delay_secs = stored(
        "experimental_max_worker_delay_secs", "The longest delay before a worker starts; or None."
    )
    session_creation_timeout_secs = stored(
        "session_creation_timeout_secs", "Seconds to wait for a session."
    )
    checkpoint_save_graph_def = stored(
        "checkpoint_save_graph_def", "Whether the graph is saved beside the checkpoints."
    )

    cluster_spec = _of_task("cluster_spec", "The `tf.train.ClusterSpec`; empty for one process.")
    task_type = _of_task("task_type", '"worker", "chief", "master" or "evaluator".')
    task_id = _of_task("task_id", "The position of this process among those of its type.")
    is_chief = _of_task("is_chief", "Whether this process saves checkpoints.")
    master = _of_task("master", "The address of the training session; '' is this process.")
    evaluation_master = _of_task("evaluation_master", "The address of the evaluation session.")
    num_ps_replicas = _of_task("num_ps_replicas", "The number of parameter servers: 0.")
    num_worker_replicas = _of_task("num_worker_replicas", "The number of workers and chiefs.")
    global_id_in_cluster = _of_task("global_id_in_cluster", "0; None for an evaluator.")
    service = _of_task("service", 'The "service" of TF_CONFIG; or None.')


def _save_intervals(
    steps: int | _Unset | None, secs: int | _Unset | None
) -> dict[str, int | _Unset | None]:
    """Returns both intervals; 600 seconds if neither was passed, not even as None."""
    if steps is UNSET and secs is UNSET:
        secs = 600
    return {
        "save_checkpoints_steps": None if steps is UNSET else steps,
        "save_checkpoints_secs": None if secs is UNSET else secs,
    }


def _model_dir(model_dir: str | os.PathLike[str] | None, config: TFConfig) -> str | None:
    """Returns the `model_dir` of the argument or of TF_CONFIG, which must agree."""
    argument = None if model_dir is None else os.fspath(model_dir)
    configured: str | None = config.get("model_dir")
    check("RunConfig", "model_dir", argument, _NOT_EMPTY)
    check("TF_CONFIG", "model_dir", configured, _NOT_EMPTY)
    if argument and configured and argument != configured:
        raise errors.InvalidSpec(
            f"`RunConfig`: `model_dir` is {argument!r}, but TF_CONFIG has {configured!r}. Make "
            "them equal, or set only one."
        )
    return argument or configured
