"""The ops of a step of stochastic dual coordinate ascent; weights may be split into parts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned.sdca.example_table import ExampleTable
from estimator_bridge.canned.sdca.examples import Examples
from estimator_bridge.canned.sdca.linear_sdca import LinearSDCA
from tf2_engine import log
from tf2_engine.types import Op, Tensor, Variable

Parts = list[Variable]

_FEW = 1.0  # Smaller values of l2 are less than the method is meant for.


class Ascent:
    """A linear model that is trained on a batch.

    A step changes "unshrunk" copies of the weights; `update_weights` computes the model's weights
    from them by shrinking them by l1 / l2.

    Args:
        examples: the batch, and the model's weights.
        loss_type: 'logistic_loss' or 'squared_loss'.

    Raises:
        InvalidInput: a regularization is out of range.
    """

    def __init__(self, optimizer: LinearSDCA, examples: Examples, loss_type: str) -> None:
        _check_regularization(optimizer)
        self._optimizer, self._examples, self._loss_type = optimizer, examples, loss_type
        self._sparse_slots = [_copies(parts) for parts in examples.sparse_weights]
        self._dense_slots = [_copies(parts) for parts in examples.dense_weights]
        self._table = ExampleTable(optimizer.num_table_shards or 1)
        tf.summary.scalar("approximate_duality_gap", self._duality_gap())
        tf.summary.scalar("examples_seen", self._table.size())

    def minimize(self, global_step: Variable) -> Op:
        """Makes the train op, which also counts the step."""
        examples, settings = self._examples, self._optimizer
        with tf.name_scope("sdca/minimize"):
            keys = tf.raw_ops.SdcaFprint(input=examples.names)
            ids = [_distinct_ids(values.ids) for values in examples.sparse]
            state, sparse, dense = tf.raw_ops.SdcaOptimizerV2(
                sparse_example_indices=[values.examples for values in examples.sparse],
                sparse_feature_indices=[values.ids for values in examples.sparse],
                sparse_feature_values=[values.weights for values in examples.sparse],
                dense_features=examples.dense,
                example_weights=examples.importance,
                example_labels=examples.labels,
                sparse_indices=ids,
                sparse_weights=[
                    tf.gather(_whole(parts), each)
                    for parts, each in zip(self._sparse_slots, ids, strict=True)
                ],
                dense_weights=[_whole(parts) for parts in self._dense_slots],
                example_state_data=self._table.lookup(keys),
                loss_type=self._loss_type,
                l1=settings.symmetric_l1_regularization,
                l2=settings.symmetric_l2_regularization,
                num_loss_partitions=settings.num_loss_partitions,
                num_inner_iterations=1,
                adaptive=settings.adaptive,
            )
            with tf.control_dependencies([state]):
                updates = [self._table.insert(keys, state)]
                for parts, each, change in zip(self._sparse_slots, ids, sparse, strict=True):
                    updates += _add_rows(parts, each, change)
                for parts, change in zip(self._dense_slots, dense, strict=True):
                    sizes = [part.shape[0] for part in parts]
                    changes = tf.split(change, sizes) if len(parts) > 1 else [change]
                    updates += map(tf.assign_add, parts, changes)
            with tf.control_dependencies(updates):
                return tf.assign_add(global_step, 1).op

    def update_weights(self, train_op: Op) -> Op:
        """Makes the op that updates the model's weights after a step."""
        slots = itertools.chain(*self._sparse_slots, *self._dense_slots)
        with tf.control_dependencies([train_op]):
            updates = [
                weights.assign(slot) for weights, slot in zip(self._weights(), slots, strict=True)
            ]
        settings = self._optimizer
        if settings.symmetric_l1_regularization > 0:
            shrinkage = settings.symmetric_l1_regularization / settings.symmetric_l2_regularization
            with tf.control_dependencies(updates):
                updates = [
                    weights.assign(tf.sign(weights) * tf.maximum(0.0, tf.abs(weights) - shrinkage))
                    for weights in self._weights()
                ]
        return tf.group(*updates)

    def _duality_gap(self) -> Tensor:
        """Bounds how far the loss of all examples is from its minimum; NaN without examples."""
        settings = self._optimizer
        with tf.name_scope("sdca/approximate_duality_gap"):
            sums = self._table.sums()
            primal, dual, importance = sums[1], sums[2], sums[3]
            with tf.name_scope("sdca/l1_loss"):
                l1 = settings.symmetric_l1_regularization * self._sum_of_weights(tf.abs)
            with tf.name_scope("sdca/l2_loss"):
                l2 = settings.symmetric_l2_regularization * self._sum_of_weights(tf.square) / 2.0
            # The l2 loss is in the primal and in the dual problem.
            return (primal + dual + l1 + 2.0 * l2) / importance

    def _sum_of_weights(self, of_each: Callable[[Tensor], Tensor]) -> Tensor:
        weights = [tf.cast(tf.convert_to_tensor(each), tf.float64) for each in self._weights()]
        return tf.add_n([tf.reduce_sum(of_each(each)) for each in weights])

    def _weights(self) -> Iterator[Variable]:
        examples = self._examples
        return itertools.chain(*examples.sparse_weights, *examples.dense_weights)


class UpdateWeightsHook(tf.train.SessionRunHook):
    """Updates the weights of a model in each step, after its train op."""

    def __init__(self, ascent: Ascent, train_op: Op) -> None:
        self._ascent, self._train_op = ascent, train_op
        self._update: Op = None

    def begin(self) -> None:
        """Makes the op while the graph can still be changed."""
        self._update = self._ascent.update_weights(self._train_op)

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        return tf.train.SessionRunArgs(self._update)


def _check_regularization(optimizer: LinearSDCA) -> None:
    l1, l2 = optimizer.symmetric_l1_regularization, optimizer.symmetric_l2_regularization
    if l2 <= 0.0:
        raise errors.InvalidInput(
            f"symmetric_l2_regularization should be positive, got {l2}. Give LinearSDCA a larger "
            "one, such as 1."
        )
    if l1 < 0.0:
        raise errors.InvalidInput(
            f"symmetric_l1_regularization should be non-negative, got {l1}. Give LinearSDCA 0 or "
            "more."
        )
    if l2 <= _FEW:
        log.warning(
            "symmetric_l2_regularization=%s of LinearSDCA is less than usual: it should be about "
            "the mean L2 norm of the examples.",
            l2,
        )


def _copies(parts: Sequence[Variable]) -> Parts:
    """Makes a variable of zeros for each part; v2's class makes them trainable, as in stock."""
    return [
        tf.compat.v2.Variable(tf.zeros(part.shape), name=f"{part.op.name}_unshrunk")
        for part in parts
    ]


def _whole(parts: Parts) -> Tensor:
    values = [tf.convert_to_tensor(part) for part in parts]
    return tf.concat(values, axis=0) if len(values) > 1 else values[0]


def _distinct_ids(ids: Tensor) -> Tensor:
    return tf.cast(tf.unique(tf.cast(ids, tf.int32))[0], tf.int64)


def _add_rows(parts: Parts, ids: Tensor, changes: Tensor) -> list[Op]:
    """Adds changes to rows of a variable that may be split into parts along its rows."""
    if len(parts) == 1:
        return [tf.scatter_add(parts[0], ids, changes)]
    updates, first = [], 0
    for part in parts:
        end = first + int(part.shape[0])
        rows = tf.where(tf.logical_and(ids >= first, ids < end))[:, 0]
        updates.append(tf.scatter_add(part, tf.gather(ids, rows) - first, tf.gather(changes, rows)))
        first = end
    return updates
