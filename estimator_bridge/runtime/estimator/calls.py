"""Calls the user's functions: each gets the arguments that it names."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from estimator_bridge import errors
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.checks import argument_names
from estimator_bridge.runtime.program_types import InputFn, ModelFn, ModelSpec
from tf2_engine.types import Nest, Object

_MODEL_FN_ARGUMENTS = ("features", "labels", "mode", "params", "config", "self")


def check_model_fn(model_fn: ModelFn | None, params: Object) -> None:
    """Raises an error if a model_fn cannot be called as one.

    Raises:
        InvalidInput: it takes no features, or an argument that no model_fn gets; or there are
            params and it does not take them.
    """
    if model_fn is None:
        raise errors.InvalidInput("`model_fn` must be given.")
    names = argument_names(model_fn)
    if "features" not in names:
        raise errors.InvalidInput(f"model_fn ({model_fn}) must take the argument `features`.")
    if params is not None and "params" not in names:
        raise errors.InvalidInput(
            f"There are params, {params!r}, but model_fn ({model_fn}) does not take `params`. Add "
            "the argument."
        )
    unknown = [name for name in names if name not in _MODEL_FN_ARGUMENTS]
    if unknown:
        raise errors.InvalidInput(
            f"model_fn ({model_fn}) takes {unknown}; a model_fn is given features, labels, mode, "
            "params and config."
        )


def with_items(params: Object, items: Mapping[str, Object]) -> Object:
    """Returns a copy of params, a dict or an HParams, with other values for some keys."""
    copied = copy.deepcopy(params)
    for key, value in items.items():
        if hasattr(copied, "set_hparam"):
            (copied.set_hparam if key in copied else copied.add_hparam)(key, value)
        else:
            copied[key] = value
    return copied


def call_input_fn(input_fn: InputFn, mode: str, config: RunConfig, params: Object) -> Object:
    """Calls an input_fn with those of params, config and mode that it takes."""
    arguments = {"params": params, "config": copy.deepcopy(config), "mode": mode}
    return input_fn(**_taken(arguments, argument_names(input_fn)))


def check_takes_params(input_fn: InputFn) -> None:
    """Raises an error if an input_fn cannot learn its batch size.

    Raises:
        InvalidInput: it does not take `params`.
    """
    if "params" not in argument_names(input_fn):
        raise errors.InvalidInput(
            f"input_fn ({input_fn}) does not include params argument; TPUEstimator passes the "
            'batch size as params["batch_size"]. Add it.'
        )


def call_model_fn(
    model_fn: ModelFn,
    features: Nest,
    labels: Nest,
    mode: str,
    config: RunConfig,
    params: Object,
) -> ModelSpec:
    """Calls a model_fn with those of the arguments that it takes.

    Raises:
        InvalidInput: there are labels and it does not take them.
    """
    names = argument_names(model_fn)
    if labels is not None and "labels" not in names:
        raise errors.InvalidInput(
            "The input_fn returns labels, for which the model_fn has no argument. Add `labels` to "
            "it, or return features alone."
        )
    arguments = {
        "features": features,
        "labels": labels,
        "mode": mode,
        "config": copy.deepcopy(config),
        "params": params,
    }
    return model_fn(**_taken(arguments, names))


def _taken(arguments: Mapping[str, Object], names: tuple[str, ...]) -> dict[str, Object]:
    return {name: value for name, value in arguments.items() if name in names}
