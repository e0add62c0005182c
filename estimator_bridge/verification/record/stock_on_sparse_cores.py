"""Wraps stock's TPUEmbeddingV2 as a driver of the engine, to record what it computes."""

from __future__ import annotations

import collections
import functools
import weakref
from collections.abc import Mapping

import tensorflow as tf

from estimator_bridge.migrate.legacy_specs.spec_to_tf2 import stock_optimizer
from tf2_engine import errors, tf_compat
from tf2_engine.backends import SparseCoreDriver
from tf2_engine.backends.interface import Activations, Gradients, Rates
from tf2_engine.batch import Batch, FeatureBatch, by_cell, read_ids
from tf2_engine.plan import FeaturePlan, Plan
from tf2_engine.types import Nest, Object, Op, Tensor

_Queue = dict[str | None, collections.deque[Nest]]


class StockDriver(SparseCoreDriver):
    """Looks up and trains with stock's class; the base class loads and retrieves the tables."""

    def __init__(self) -> None:
        super().__init__()
        self._embedding: Object = None
        self._waiting: weakref.WeakKeyDictionary[Object, tuple[_Queue, _Queue]] = (
            weakref.WeakKeyDictionary()
        )

    def __repr__(self) -> str:
        return f"<StockDriver {self._embedding!r}>"

    def configure(self, plan: Plan) -> Op:
        done = super().configure(plan)
        with tf.init_scope(), self._strategy.scope():
            kind = tf.tpu.experimental.embedding.TPUEmbeddingV2
            self._embedding = kind(_feature_config(plan))
            self._embedding.build()
        for table in self._tables:
            table.variables = dict(self._embedding.variables[table.stack.name])
        return done

    def enqueue(self, batch: Batch, training: Tensor | bool, name: str | None = None) -> Op:
        (part,) = batch.parts.values()
        enqueued, _ = self._of_computation()
        enqueued.setdefault(name, collections.deque()).append(part)
        return tf.group()

    def dequeue(self, name: str | None = None) -> Activations:
        enqueued, looked_up = self._of_computation()
        part = enqueued[name].popleft()
        features = zip(self._ready().features, part, strict=True)
        inputs = [_by_row(feature, each) for feature, each in features]
        activations, preserved = self._embedding(
            {_key(position): each.ids for position, each in enumerate(inputs)},
            {_key(position): each.weights for position, each in enumerate(inputs)},
        )
        looked_up.setdefault(name, collections.deque()).append(preserved)
        return [[activations[_key(position)] for position in range(len(part))]]

    def send_gradients(self, gradients: Gradients, rates: Rates, name: str | None = None) -> Op:
        _, looked_up = self._of_computation()
        (of_core,) = gradients
        sent = {_key(position): gradient for position, gradient in enumerate(of_core)}
        self._embedding.apply_gradients(sent, looked_up[name].popleft())
        return tf.group()

    def _of_computation(self) -> tuple[_Queue, _Queue]:
        computation = tf_compat.tpu_computation_context()
        if computation is None:
            raise errors.OutOfOrder("Stock's class only works inside `strategy.run`.")
        return self._waiting.setdefault(computation, ({}, {}))


def _by_row(feature: FeaturePlan, values: FeatureBatch) -> FeatureBatch:
    if not isinstance(values.ids, tf.SparseTensor) or len(feature.output_shape) == 1:
        return values
    raw = by_cell(feature, read_ids(feature, values.ids, values.weights))
    shape = tf.stack([tf.cast(raw.num_samples, tf.int64), 1])
    ids = tf.SparseTensor(raw.index, raw.ids, shape)
    return FeatureBatch(ids, None if raw.weight is None else ids.with_values(raw.weight))


def _key(position: int) -> str:
    # Stock orders features by their keys.
    return f"{position:06}"


def _feature_config(plan: Plan) -> Mapping[str, Object]:
    emb, optimizer_of = tf.tpu.experimental.embedding, functools.cache(stock_optimizer)
    tables = {}
    for table in plan.tables:
        optimizer, reason = optimizer_of(table.optimizer)
        if reason is not None:
            raise errors.InvalidSpec(f"Table {table.name!r}: {reason}.")
        # The driver of SparseCores refuses any other value.
        optimizer.weight_decay_factor = None
        optimizer.multiply_weight_decay_factor_by_learning_rate = None
        tables[table.name] = emb.TableConfig(
            table.vocabulary_size,
            table.dim,
            initializer=tf.zeros_initializer(),
            optimizer=optimizer,
            combiner=table.combiner,
            name=table.name,
        )
    return {
        _key(position): emb.FeatureConfig(
            tables[feature.table.name], output_shape=list(feature.output_shape), name=feature.name
        )
        for position, feature in enumerate(plan.features)
    }
