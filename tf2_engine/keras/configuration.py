"""What a layer is told, read: the engine's spec, and who trains with which arithmetic. Pure."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf2_engine import errors, specs
from tf2_engine.keras.translation import is_keras_optimizer, translate_keras_optimizer
from tf2_engine.optimizers import Optimizer

ARITHMETICS = ("tpu", "keras")


@dataclasses.dataclass(frozen=True)
class Configuration:
    """A feature config with optimizers of the engine, and what follows from it.

    Attributes:
        feature_config: a copy of the user's nest; its tables have optimizers of the engine.
        spec: the same as an EngineSpec.
        tables: the user's TableConfigs, in the order of the spec.
        arithmetic: "tpu" or "keras".
        trains: whether every table has an optimizer.
    """

    feature_config: Any
    spec: specs.EngineSpec
    tables: tuple[Any, ...]
    arithmetic: str
    trains: bool


def configure(
    feature_config: Any,
    optimizer: Any,
    *,
    arithmetic: str | None,
    on_tpu: bool,
    made_here: bool,
    bias_correction: bool,
    pipelined: bool,
) -> Configuration:
    """Reads what a layer is told; nothing that is passed in is changed.

    Args:
        optimizer: for tables without one; None if there is none.
        arithmetic: what the user asks for; None is the default.
        on_tpu: whether a TPU holds the tables.
        made_here: whether the layer made the optimizer itself, of its name.

    Raises:
        InvalidSpec, WrongType: a setting cannot be honoured; the message names it.
    """
    tables = tuple(specs.table_configs(feature_config))
    used = [table.optimizer or optimizer for table in tables]
    trains = all(each is not None for each in used)
    if on_tpu and not trains:
        raise errors.InvalidSpec(
            "`optimizer`=None is not possible under a TPUStrategy; pass the one that the tables "
            "are trained with."
        )
    by_keras = trains and all(map(is_keras_optimizer, used))
    arithmetic = _arithmetic(arithmetic, on_tpu, by_keras and not made_here)
    if arithmetic == "keras" and trains and not by_keras:
        (other, *_) = (each for each in used if not is_keras_optimizer(each))
        raise errors.InvalidSpec(
            f"`arithmetic`='keras', but {other!r} is no Keras optimizer. Pass one, or leave "
            "`arithmetic` out."
        )
    if arithmetic == "keras" and pipelined:
        raise errors.InvalidSpec(
            "`pipeline_execution_with_tensor_core`=True is an order of updates that a Keras "
            "optimizer does not have. Drop it, or set `arithmetic`='tpu'."
        )
    translated: dict[int, Optimizer | None] = {id(None): None}
    if trains and arithmetic == "tpu":
        for each in used:
            if id(each) not in translated:  # so that tables which share a rate still do
                translated[id(each)] = translate_keras_optimizer(
                    each, bias_correction=bias_correction
                )
        chosen = [translated[id(each)] for each in used]
    else:
        chosen = [specs.NO_UPDATES] * len(tables)
    replaced = {
        id(table): _with(table, optimizer=own) for table, own in zip(tables, chosen, strict=True)
    }
    own_config = tf.nest.map_structure(
        lambda feature: _with(feature, table=replaced[id(feature.table)]), feature_config
    )
    spec = specs.from_feature_config(own_config, pipeline_execution_with_tensor_core=pipelined)
    return Configuration(own_config, spec, tables, arithmetic, trains)


def _arithmetic(asked: str | None, on_tpu: bool, by_keras: bool) -> str:
    if asked is None:
        return "keras" if by_keras and not on_tpu else "tpu"
    if asked not in ARITHMETICS:
        raise errors.InvalidSpec(
            f"`arithmetic` must be one of {', '.join(ARITHMETICS)}, got {asked!r}."
        )
    # Programs say which one they want off a TPU, and run on both.
    return "tpu" if on_tpu else asked


def _with(config: Any, **changes: Any) -> Any:
    changed = copy.copy(config)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed


def by_table(configuration: Configuration, parameters: Mapping[str, Any]) -> dict[Any, Any]:
    """Returns what there is per table name under the user's TableConfigs instead."""
    return {
        key: parameters[table.name or ""]
        for key, table in zip(configuration.tables, configuration.spec.tables, strict=True)
    }
