"""Calls of the user's functions: each gets the arguments that it names."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from estimator_bridge import errors
from estimator_bridge.legacy.checks import argument_names

_MODEL_FN_ARGUMENTS = ("features", "labels", "mode", "params", "config", "self")


def check_model_fn(model_fn: Any, params: Any) -> None:
    """Refuses a model_fn that cannot be called as one.

    Raises:
        InvalidInput: it takes no features, or something that no model_fn is given; or there are
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


def with_items(params: Any, items: Mapping[str, Any]) -> Any:
    """Returns a copy of params, a dict or an HParams, with other values for some keys."""
    made = copy.deepcopy(params)
    for key, value in items.items():
        if hasattr(made, "set_hparam"):
            (made.set_hparam if key in made else made.add_hparam)(key, value)
        else:
            made[key] = value
    return made


def call_input_fn(input_fn: Callable[..., Any], mode: str, config: Any, params: Any) -> Any:
    """Returns what an input_fn gives, called with those of params, config and mode it takes."""
    names = argument_names(input_fn)
    given = {"params": params, "config": copy.deepcopy(config), "mode": mode}
    return input_fn(**{name: value for name, value in given.items() if name in names})


def check_takes_params(input_fn: Callable[..., Any]) -> None:
    """Refuses an input_fn that cannot learn its batch size.

    Raises:
        InvalidInput: it does not take `params`.
    """
    if "params" not in argument_names(input_fn):
        raise errors.InvalidInput(
            f"input_fn ({input_fn}) does not include params argument; TPUEstimator passes the "
            'batch size as params["batch_size"]. Add it.'
        )


def call_model_fn(
    model_fn: Callable[..., Any],
    features: Any,
    labels: Any,
    mode: str,
    config: Any,
    params: Any,
) -> Any:
    """Returns what a model_fn gives, called with those arguments that it takes.

    Raises:
        InvalidInput: there are labels and it does not take them.
    """
    names = argument_names(model_fn)
    if labels is not None and "labels" not in names:
        raise errors.InvalidInput(
            "The input_fn returns labels, which the model_fn has no argument for. Add `labels` to "
            "it, or return features alone."
        )
    given = {
        "labels": labels,
        "mode": mode,
        "config": copy.deepcopy(config),
        "params": params,
    }
    return model_fn(
        features=features, **{name: value for name, value in given.items() if name in names}
    )
