"""Calls of the user's functions: each gets the arguments that it names."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from estimator_bridge import errors
from estimator_bridge.legacy.checks import argument_names


def call_input_fn(
    input_fn: Callable[..., Any], mode: str, config: Any, params: Mapping[str, Any]
) -> Any:
    """Returns what an input_fn gives, called with those of params, config and mode it takes.

    Raises:
        InvalidInput: it does not take `params`, through which it learns its batch size.
    """
    names = argument_names(input_fn)
    if "params" not in names:
        raise errors.InvalidInput(
            f"input_fn ({input_fn}) does not include params argument; TPUEstimator passes the "
            'batch size as params["batch_size"]. Add it.'
        )
    given = {"params": dict(params), "config": copy.deepcopy(config), "mode": mode}
    return input_fn(**{name: value for name, value in given.items() if name in names})


def call_model_fn(
    model_fn: Callable[..., Any],
    features: Any,
    labels: Any,
    mode: str,
    config: Any,
    params: Mapping[str, Any],
) -> Any:
    """Returns what a model_fn gives, called with those arguments that it takes.

    Raises:
        InvalidInput: there are labels and it does not take them.
    """
    names = argument_names(model_fn)
    if labels is not None and "labels" not in names:
        raise errors.InvalidInput(
            "model_fn does not take labels, but input_fn returns labels. Add the argument, or "
            "return features alone."
        )
    given = {
        "labels": labels,
        "mode": mode,
        "config": copy.deepcopy(config),
        "params": dict(params),
    }
    return model_fn(features, **{name: value for name, value in given.items() if name in names})
