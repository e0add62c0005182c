"""Checks the arguments of estimators, and binds arguments to the functions of a program."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Mapping

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.legacy.requirements import argument_names
from estimator_bridge.runtime.program_types import InputFn, ModelFn
from estimator_bridge.runtime.step.model_step import default_session_config
from tf2_engine import log, soft_tpu
from tf2_engine.types import Object, Strategy

_MODEL_FN_ARGUMENTS = ("features", "labels", "mode", "params", "config", "self")
_SETTINGS = {ModeKeys.TRAIN: "train_distribute", ModeKeys.EVAL: "eval_distribute"}
_IN_ONE_GRAPH = (
    tf.distribute.MirroredStrategy,
    tf.compat.v2.distribute.MirroredStrategy,
    tf.distribute.OneDeviceStrategy,
    tf.compat.v2.distribute.OneDeviceStrategy,
)


def read_config(config: RunConfig | None, model_dir: str | os.PathLike[str] | None) -> RunConfig:
    """Returns a config with a model_dir: the given one, or else a new temporary directory."""
    config = RunConfig() if config is None else config
    if not hasattr(config, "model_dir") or not hasattr(config, "replace"):
        raise errors.InvalidInput(f"`config` must be an instance of `RunConfig`, got {config!r}.")
    path = None if model_dir is None else os.fspath(model_dir)
    if path is not None and config.model_dir not in (None, path):
        raise errors.InvalidInput(
            "`model_dir` are set both in constructor and `RunConfig`, but with different values, "
            f"{path!r} and {config.model_dir!r}. Set one of them, or both to the same value."
        )
    path = path or config.model_dir
    if path is None:
        path = tempfile.mkdtemp()
        log.info("No model_dir is given; checkpoints go to the temporary folder %s.", path)
    return config.replace(model_dir=os.fspath(path))


def maybe_overwrite_model_dir_and_session_config(
    config: RunConfig | None, model_dir: str | os.PathLike[str] | None
) -> RunConfig:
    """Fills in the `model_dir` and `session_config` of a config. Some libraries call this."""
    config = read_config(config, model_dir)
    if config.session_config is None:
        config = config.replace(session_config=default_session_config())
    return config


def read_strategies(config: RunConfig, *, between_graph: bool) -> Mapping[str, Strategy | None]:
    """Reads the strategy of each mode. Prediction has no strategy, to keep the input's order.

    With `between_graph`, TensorFlow 1's ParameterServerStrategy is also left out, because a cluster
    in TF_CONFIG already trains as this strategy does.
    """
    experimental: Object = getattr(config, "experimental_distribute", None)
    if getattr(experimental, "remote_cluster", None):
        raise errors.InvalidInput(
            "`RunConfig`: `experimental_distribute.remote_cluster`="
            f"{experimental.remote_cluster!r}, but the bridge cannot run an estimator in a remote "
            "cluster. Leave `remote_cluster` out."
        )
    strategies = {mode: _read(name, config) for mode, name in _SETTINGS.items()}
    for mode, name in _SETTINGS.items():
        strategy = strategies[mode]
        if between_graph and _is_of_servers(strategy):
            strategies[mode] = None
        elif not isinstance(strategy, (type(None), *_IN_ONE_GRAPH, soft_tpu.SoftTPUStrategy)):
            raise errors.InvalidInput(
                f"`RunConfig`: `{name}`={strategy!r} cannot run an estimator; MirroredStrategy, "
                "OneDeviceStrategy and, with use_tpu=True, SoftTPUStrategy can. Leave the strategy "
                "out, or set TPUConfig.num_shards for several cores."
            )
    return strategies | {ModeKeys.PREDICT: None}


def input_context(config: RunConfig) -> tf.distribute.InputContext | None:
    if not _is_of_servers(_read(_SETTINGS[ModeKeys.TRAIN], config)):
        return None
    return tf.distribute.InputContext(
        num_input_pipelines=config.num_worker_replicas,
        input_pipeline_id=config.global_id_in_cluster or 0,
        num_replicas_in_sync=1,
    )


def _is_of_servers(strategy: Object) -> bool:
    kind = tf.distribute.experimental.ParameterServerStrategy
    return isinstance(strategy, kind) and strategy.num_replicas_in_sync == 1


def _read(name: str, config: RunConfig) -> Strategy | None:
    experimental: Object = getattr(config, "experimental_distribute", None)
    strategy, other = getattr(config, name, None), getattr(experimental, name, None)
    if strategy is not None and other is not None:
        raise errors.InvalidInput(
            f"`RunConfig`: both `{name}` and `experimental_distribute.{name}` are given; "
            "give one of them."
        )
    return strategy or other


def core_devices(strategy: Strategy | None) -> tuple[str, ...]:
    return tuple(strategy.extended.worker_devices) if isinstance(strategy, _IN_ONE_GRAPH) else ()


def checked_receiver_fn(function: Callable[[], Object] | None) -> Callable[[], Object]:
    if not function:
        raise errors.InvalidInput("`serving_input_receiver_fn` must be defined, got None.")
    return function


def checked_model_fn(model_fn: ModelFn | None, params: Object) -> ModelFn:
    if model_fn is None:
        raise errors.InvalidInput("`model_fn` must be provided, got None.")
    if not callable(model_fn):
        raise errors.WrongSetting(f"`model_fn` must be callable, got {model_fn!r}.")
    names = argument_names(model_fn)
    if "features" not in names:
        raise errors.InvalidInput(f"model_fn ({model_fn}) must include features argument. Add it.")
    if params is not None and "params" not in names:
        raise errors.InvalidInput(
            f"model_fn ({model_fn}) does not include params argument, but the estimator has "
            f"params: {params!r}. Add the argument to the model_fn."
        )
    unknown = [name for name in names if name not in _MODEL_FN_ARGUMENTS]
    if unknown:
        raise errors.InvalidInput(
            f"model_fn ({model_fn}) has following not expected args: {unknown}. Estimators "
            "only pass features, labels, mode, params and config."
        )
    return model_fn


def check_takes_params(input_fn: InputFn) -> None:
    if "params" not in argument_names(input_fn):
        raise errors.InvalidInput(
            f"input_fn ({input_fn}) does not include params argument; TPUEstimator passes the "
            'batch size as params["batch_size"]. Add the argument.'
        )


def with_items(params: Object, items: Mapping[str, Object]) -> Object:
    copied = copy.deepcopy(params)
    for key, value in items.items():
        if hasattr(copied, "set_hparam"):
            (copied.set_hparam if key in copied else copied.add_hparam)(key, value)
        else:
            copied[key] = value
    return copied


def call(function: Callable[..., Object], **arguments: Object) -> Object:
    names = argument_names(function)
    if arguments.get("labels") is not None and "labels" not in names:
        raise errors.InvalidInput(
            "model_fn does not take labels, but input_fn returns labels. Add the argument "
            "`labels`, or return only features."
        )
    return function(**{name: value for name, value in arguments.items() if name in names})
