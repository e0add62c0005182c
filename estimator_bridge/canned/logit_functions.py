"""`call_logit_fn`: calls a function that builds logits from features."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.legacy.requirements import argument_names
from tf2_engine.types import Nest, Object


def call_logit_fn(
    logit_fn: Callable[..., Nest], features: Nest, mode: str, params: Object, config: Object
) -> Nest:
    """Calls a function that makes logits from features; it may take mode, params and config.

    Raises:
        InvalidInput: the result is neither a Tensor nor a dict of Tensors by str.
    """
    settings = {"mode": mode, "params": params, "config": config}
    taken = argument_names(logit_fn)
    logits = logit_fn(
        features=features, **{name: value for name, value in settings.items() if name in taken}
    )
    by_name = logits if isinstance(logits, dict) else {"": logits}
    for name, each in by_name.items():
        if not isinstance(name, str) or not isinstance(each, tf.Tensor):
            raise errors.InvalidInput(
                "logit_fn should return a Tensor or a dictionary mapping strings to Tensors.  "
                f"logit_fn returned: {logits}."
            )
    return logits
