"""Gives stock's TPUEmbedding the engine's methods, so that the same tests run on both."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import types
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from compat_tests.support import fake_tpu
from tf2_engine import EngineSpec, Optimizer, TableSpec

CONFIG = tf.tpu.experimental.embedding


class CannotExpress(ValueError):
    """Stock has no counterpart for a part of a spec."""


class StockEngine:
    """Stock's TPUEmbedding for a spec. Create it in the scope of a strategy.

    Attributes:
        tables: like the engine's `tables`; empty until it is built.
    """

    def __init__(
        self, spec: EngineSpec, num_cores: int = 1, num_hosts: int = 1, *, mended: bool = True
    ) -> None:
        """Creates stock's object.

        Args:
            num_cores: the number of cores of the strategy.
            num_hosts: must be 1.
            mended: whether to work around problems of stock with some releases of its dependencies;
                see `fake_tpu.stock_runs` and `fake_tpu.stock_optimizer`.

        Raises:
            CannotExpress: stock has no class or argument for a part of the spec.
        """
        if spec.partition_strategy != "div":
            raise CannotExpress(
                f"TPUEmbedding has no partition_strategy={spec.partition_strategy!r}"
            )
        assert num_hosts == 1
        self._mended = mended
        self._spec = spec
        tables = {table.name: _table(table, mended=mended) for table in spec.tables}
        config = {
            feature.name: CONFIG.FeatureConfig(
                tables[feature.table],
                name=feature.name,
                max_sequence_length=feature.max_sequence_length,
                output_shape=feature.output_shape,
            )
            for feature in spec.features
        }
        self._stock = CONFIG.TPUEmbedding(
            config,
            optimizer=None,
            pipeline_execution_with_tensor_core=spec.pipeline_execution_with_tensor_core,
        )
        self.enqueue = self._stock.enqueue
        self.dequeue = self._stock.dequeue
        self.apply_gradients = self._stock.apply_gradients
        self.tables: Mapping[str, Any] = {}

    def build_for(self, output_shapes: Sequence[Sequence[int]]) -> None:
        """Builds stock's object for activations of these shapes, in the order of the features."""
        inputs = {}
        for feature, shape in zip(self._spec.features, output_shapes, strict=True):
            # Stock itself adds the length of a sequence, unless the config has an output shape.
            if feature.max_sequence_length and feature.output_shape is None:
                shape = shape[:-1]
            inputs[feature.name] = tf.TensorShape([*shape, None])
        flat = tf.nest.flatten(inputs)
        with self._helped():
            self._stock.build(flat)
        self.tables = {
            name: types.SimpleNamespace(
                variables={kind: tuple(value.variables) for kind, value in kinds.items()}
            )
            for name, kinds in self._stock._variables.items()
        }

    def load(self) -> None:
        with self._helped():
            self._stock._load_variables()

    def retrieve(self) -> None:
        with self._helped():
            self._stock._retrieve_variables()

    def _helped(self) -> contextlib.AbstractContextManager[None]:
        return fake_tpu.stock_runs() if self._mended else contextlib.nullcontext()


def _table(table: TableSpec, *, mended: bool) -> Any:
    if table.quantization is not None:
        raise CannotExpress(f"table {table.name!r}: quantization is not translated")
    assert table.optimizer is not None
    return CONFIG.TableConfig(
        table.vocabulary_size,
        table.dim,
        initializer=table.initializer,
        optimizer=_optimizer(table.optimizer, mended=mended),
        combiner=table.combiner,
        name=table.name,
    )


def _optimizer(optimizer: Optimizer, *, mended: bool) -> Any:
    name = type(optimizer).__name__
    kind = getattr(CONFIG, name, None)
    if kind is None:
        raise CannotExpress(f"tf.tpu.experimental.embedding has no optimizer {name}")
    settings = {
        field.name: getattr(optimizer, field.name) for field in dataclasses.fields(optimizer)
    }
    limits = settings.pop("clip_gradient_min"), settings.pop("clip_gradient_max")
    settings["clipvalue"] = None if limits == (None, None) else limits
    taken = inspect.signature(kind).parameters
    defaults = {field.name: field.default for field in dataclasses.fields(optimizer)}
    for setting in sorted(set(settings) - set(taken)):
        value = settings.pop(setting)
        if value != defaults.get(setting):
            raise CannotExpress(f"stock's {name} has no setting {setting}={value!r}")
    return fake_tpu.stock_optimizer(name, **settings) if mended else kind(**settings)
