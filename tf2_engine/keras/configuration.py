"""Converts a layer's arguments to an engine's spec, and chooses the arithmetic of the tables."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tf2_engine import errors, specs
from tf2_engine.keras.keras_optimizers import is_keras_optimizer, translate_keras_optimizer
from tf2_engine.types import Nest, Object, Variable

ARITHMETICS = ("tpu", "sparsecore", "keras")

_NOT_PIPELINED = (
    "`pipeline_execution_with_tensor_core`=True is ignored: off a TPU Keras optimizers train the "
    "tables, and activations are never one step old. `arithmetic`='tpu' trains as a TPU does."
)


@dataclasses.dataclass(frozen=True)
class Configuration:
    """The checked arguments of a layer. The optimizers in the spec are optimizers of the engine."""

    spec: specs.EngineSpec
    tables: tuple[Object, ...]
    arithmetic: str
    trains: bool

    def by_table(self, parameters: Mapping[str, Variable]) -> dict[Object, Variable]:
        names = (table.name or "" for table in self.spec.tables)
        return {table: parameters[name] for table, name in zip(self.tables, names, strict=True)}


def configure(
    feature_config: Nest,
    optimizer: Object,
    *,
    arithmetic: str | None,
    on_tpu: bool,
    made_here: bool,
    bias_correction: bool,
    pipelined: bool,
) -> Configuration:
    tables = tuple(specs.table_configs(feature_config))
    optimizers = [table.optimizer or optimizer for table in tables]
    trains = all(each is not None for each in optimizers)
    if on_tpu and not trains:
        raise errors.InvalidSpec(
            "`optimizer`=None is not possible under a TPUStrategy; pass the optimizer that trains "
            "the tables."
        )
    by_keras = trains and all(map(is_keras_optimizer, optimizers))
    arithmetic = _arithmetic(arithmetic, on_tpu, by_keras and not made_here)
    if arithmetic == "keras":
        _check_keras_optimizers(optimizers if trains else ())
        if pipelined:
            warnings.warn(_NOT_PIPELINED, stacklevel=3)
        pipelined = False
    # Each optimizer is translated once, so that its tables share one rate.
    translated = {
        id(optimizer): translate_keras_optimizer(optimizer, bias_correction=bias_correction)
        if arithmetic != "keras" and trains
        else specs.NO_UPDATES
        for optimizer in optimizers
    }
    copies = {
        id(table): _with(table, optimizer=translated[id(optimizer)])
        for table, optimizer in zip(tables, optimizers, strict=True)
    }
    engine_config = tf.nest.map_structure(
        lambda feature: _with(feature, table=copies[id(feature.table)]), feature_config
    )
    spec = specs.from_feature_config(engine_config, pipeline_execution_with_tensor_core=pipelined)
    return Configuration(spec, tables, arithmetic, trains)


def _arithmetic(choice: str | None, on_tpu: bool, by_keras: bool) -> str:
    if choice is None:
        return "keras" if by_keras and not on_tpu else "tpu"
    specs.check_choice("", "arithmetic", choice, ARITHMETICS)
    # A program chooses "keras" for machines without a TPU, but may also run on a TPU.
    return "tpu" if on_tpu and choice == "keras" else choice


def _check_keras_optimizers(optimizers: Sequence[Object]) -> None:
    for optimizer in optimizers:
        if not is_keras_optimizer(optimizer):
            raise errors.InvalidSpec(
                f"`arithmetic`='keras', but {optimizer!r} is not a Keras optimizer. Pass one, or "
                "leave `arithmetic` out."
            )


def _with(config: Object, **changes: Object) -> Object:
    changed = copy.copy(config)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed
