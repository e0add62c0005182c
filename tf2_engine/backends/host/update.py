"""The backward pass of one table: computes new rows and slots from gradients of occurrences.

The operations follow the order of the device (optimization_parameters.proto): sum over occurrences,
clip the gradient, decay the weight, apply the rule, clip the weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf2_engine.graph_mode import run_after
from tf2_engine.optimizers import Optimizer
from tf2_engine.row_sums import add_rows
from tf2_engine.tables import PARAMETERS, Table
from tf2_engine.types import Op, Tensor


class RowGradients(NamedTuple):
    """Gradients, [num_gradients, dim] float32, and the ids of their rows, [num_ids] int64.

    `gradient_of` is the index of each id's gradient, [num_ids] int64, or None if id i has gradient
    i.
    """

    ids: Tensor
    gradients: Tensor
    gradient_of: Tensor | None = None

    def of_each_id(self) -> RowGradients:
        if self.gradient_of is None:
            return self
        return RowGradients(self.ids, tf.gather(self.gradients, self.gradient_of))


Sums = tuple[Tensor, Tensor]
"""Distinct ids, [count] int64, and the gradient sum of each id, [count, dim] float32."""


def update_table(table: Table, per_core: Sequence[Sequence[RowGradients]], lr: Tensor) -> list[Op]:
    """Updates a table in one step, with the gradients that each core has for the table's features.

    With gradient accumulation, a row is updated once, with the sum over cores and features. Without
    it, a row is updated once per core: first by the core that owns the row, then by the other
    cores in ascending order. (Stock's test shows this for two cores. The order for more cores is
    not public.)
    """
    if table.plan.optimizer.use_gradient_accumulation or len(per_core) == 1:
        ids, total = sum_by_id([pair for core in per_core for pair in core])
        if table.plan.optimizer.updates_all_rows:
            return _update_all_rows(table, ids, total, lr)
        return _update_rows(table, ids, total, lr)
    return _update_core_by_core(table, [sum_by_id(core) for core in per_core], lr)


def new_rows(
    optimizer: Optimizer, old: dict[str, Tensor], g: Tensor, lr: Tensor
) -> dict[str, Tensor]:
    g = _clip(g, optimizer.clip_gradient_min, optimizer.clip_gradient_max)
    slots = dict(old)
    w = slots.pop(PARAMETERS)
    if optimizer.weight_decay_factor:
        decay: Tensor | np.float32 = np.float32(optimizer.weight_decay_factor)
        if optimizer.multiply_weight_decay_factor_by_learning_rate:
            decay = decay * lr
        w = w - decay * w
    w, slots = optimizer.update(w, slots, g, lr)
    w = _clip(w, optimizer.clip_weight_min, optimizer.clip_weight_max)
    return {PARAMETERS: w, **slots}


def sum_by_id(parts: Sequence[RowGradients]) -> Sums:
    ids, gradients, gradient_of = _joined(parts)
    distinct, position = tf.unique(ids, out_idx=tf.int64)
    count = tf.size(distinct, out_type=tf.int64)
    return distinct, add_rows(gradients, gradient_of, position, count, each_has_terms=True)


def _joined(parts: Sequence[RowGradients]) -> RowGradients:
    if len(parts) == 1:
        return parts[0]
    ids, gradients, gradient_of = zip(*parts, strict=True)
    all_ids, all_gradients = tf.concat(ids, 0), tf.concat(gradients, 0)
    if not any(indices is not None for indices in gradient_of):
        return RowGradients(all_ids, all_gradients)
    counts = [tf.shape(each, out_type=tf.int64)[0] for each in gradients]
    starts = tf.cumsum(counts, exclusive=True)
    indices = [
        starts[i] + (tf.range(count) if of_each is None else of_each)
        for i, (count, of_each) in enumerate(zip(counts, gradient_of, strict=True))
    ]
    return RowGradients(all_ids, all_gradients, tf.concat(indices, 0))


def _update_rows(table: Table, ids: Tensor, g: Tensor, lr: Tensor) -> list[Op]:
    ops = _update_rows_in_one_op(table, ids, g, lr)
    if ops:
        return ops
    old = {name: table.gather(name, ids) for name in table.variables}
    with all_read(old):
        return table.scatter(new_rows(table.plan.optimizer, old, g, lr), ids)


def _update_rows_in_one_op(table: Table, ids: Tensor, g: Tensor, lr: Tensor) -> list[Op]:
    optimizer = table.plan.optimizer
    if table.num_shards > 1 or optimizer.weight_decay_factor or optimizer.clips_weights:
        return []
    variables = {name: shards[0] for name, shards in table.variables.items()}
    g = _clip(g, optimizer.clip_gradient_min, optimizer.clip_gradient_max)
    rows = table.rows_in_shard(ids)
    return optimizer.update_rows(variables.pop(PARAMETERS), variables, rows, g, lr)


def _update_core_by_core(table: Table, per_core: Sequence[Sums], lr: Tensor) -> list[Op]:
    owner = [table.core_of(ids, len(per_core)) for ids, _ in per_core]
    pairs = [
        (ids, g, tf.equal(owners, core))
        for core, ((ids, g), owners) in enumerate(zip(per_core, owner, strict=True))
    ]
    # Each row has one owner, so a single pass applies the updates of all owners. Then there is one
    # pass per core, in order.
    owned_ids = tf.concat([tf.boolean_mask(ids, owned) for ids, _, owned in pairs], 0)
    owned_g = tf.concat([tf.boolean_mask(g, owned) for _, g, owned in pairs], 0)
    passes = [(owned_ids, owned_g)]
    passes += [
        (tf.boolean_mask(ids, ~owned), tf.boolean_mask(g, ~owned)) for ids, g, owned in pairs
    ]
    ops: list[Op] = []
    for ids, g in passes:
        with run_after(ops):
            ops = ops + _update_rows(table, tf.identity(ids), g, lr)
    return ops


def _update_all_rows(table: Table, ids: Tensor, g: Tensor, lr: Tensor) -> list[Op]:
    ops = []
    for number, dense in enumerate(table.spread(ids, g)):
        shards = {name: shards[number] for name, shards in table.variables.items()}
        old = {name: tf.convert_to_tensor(shard) for name, shard in shards.items()}
        with all_read(old):
            new = new_rows(table.plan.optimizer, old, dense, lr)
            ops += [shards[name].assign(value) for name, value in new.items()]
    return ops


def all_read(old: dict[str, Tensor]) -> AbstractContextManager[None]:
    """Makes writes in a graph wait until all `old` values are read."""
    return run_after(list(old.values()))


def _clip(value: Tensor, low: float | None, high: float | None) -> Tensor:
    if low is not None:
        value = tf.maximum(value, np.float32(low))
    if high is not None:
        value = tf.minimum(value, np.float32(high))
    return value
