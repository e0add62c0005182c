"""Optimizers of the engine as those of `tf.tpu.experimental.embedding`, where it has them. Pure."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tf2_engine import specs
from tf2_engine.optimizers import Optimizer
from tf2_engine.optimizers.optimizer import KEEPING
from tf2_engine.types import Object

_NAMESPACE = "tf.tpu.experimental.embedding"


def stock_optimizer(optimizer: Optimizer) -> tuple[Object, str | None]:
    """Returns stock's optimizer with every setting carried explicitly, and None.

    Where it has none, or refuses a setting, the engine's is returned as it is, with the reason.
    """
    name = type(optimizer).__name__
    kind = getattr(tf.tpu.experimental.embedding, name, None)
    if kind is None:
        return optimizer, f"{_NAMESPACE} has no {name}"
    settings = {
        field.name: getattr(optimizer, field.name)
        for field in dataclasses.fields(optimizer)
        if field.name not in KEEPING and not field.name.startswith("clip_gradient")
    }
    if optimizer.clips_gradients:
        settings["clipvalue"] = (optimizer.clip_gradient_min, optimizer.clip_gradient_max)
    try:
        made = kind(**settings)
    except (NotImplementedError, TypeError, ValueError) as error:
        return optimizer, f"{_NAMESPACE}.{name} refuses it: {error}".rstrip(".")
    # Newer protobufs refuse the bool that is stock's default.
    made.low_dimensional_packing_status = 0
    if specs.read_optimizer(made) != optimizer:
        return optimizer, f"{_NAMESPACE}.{name} does not keep all of its settings"
    return made, None
