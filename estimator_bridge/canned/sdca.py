"""`LinearSDCA`: trains linear models by stochastic dual coordinate ascent."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned.constructor_arguments import Arguments, check_new_columns
from estimator_bridge.canned.heads.classifier_heads import BinaryClassHead
from estimator_bridge.canned.heads.graph_heads import GraphHead
from estimator_bridge.canned.heads.regression import RegressionHead
from estimator_bridge.canned.linear_model import KERAS_NAME, V1_NAME, LinearLayer, apply_layer
from estimator_bridge.legacy.estimator_spec import EstimatorSpec, ModeKeys
from estimator_bridge.runtime.program_types import Columns, Features
from tf2_engine import log, tf_compat
from tf2_engine.types import Nest, Object, Op, Tensor, Variable


@dataclasses.dataclass(eq=False, repr=False)
class LinearSDCA:
    """Stochastic dual coordinate ascent, as the `optimizer` of a linear estimator.

    It minimizes the mean loss of the examples plus l1 and l2 regularization, without a learning
    rate. It stores four numbers for every example, so examples need names. It needs columns from
    `tf.feature_column`, and trains classifiers with two classes and regressors with one number.

    Args:
        example_id_column: the key of the feature that contains the name of each example, a string.
        num_loss_partitions: how many workers train at the same time.
        num_table_shards: the number of tables that hold these four numbers; None means one.
        symmetric_l1_regularization: the factor of the sum of absolute weights, 0 or more.
        symmetric_l2_regularization: the factor of half the sum of squared weights, above 0.
        adaptive: whether to train more often on examples with a larger loss.

    References: Shalev-Shwartz and Zhang, "Stochastic Dual Coordinate Ascent Methods for Regularized
    Loss Minimization", 2013; Ma et al., 2015 (the distributed variant).
    """

    example_id_column: str
    num_loss_partitions: int = 1
    num_table_shards: int | None = None
    symmetric_l1_regularization: float = 0.0
    symmetric_l2_regularization: float = 1.0
    adaptive: bool = False


def check_sdca(args: Arguments, columns: Columns) -> None:
    if args.sparse_combiner != "sum":
        raise errors.InvalidInput(
            'sparse_combiner must be "sum" when optimizer is a LinearSDCA object, got '
            f"{args.sparse_combiner!r}."
        )
    if not tf_compat.is_new_column(columns):
        raise errors.InvalidInput(
            "V2 feature columns required when optimizer is a LinearSDCA object. Use columns of "
            "tf.feature_column."
        )
    if getattr(args, "label_dimension", 1) > 1:
        raise errors.InvalidInput(
            "LinearSDCA can only be used with one-dimensional label, got "
            f"label_dimension={args.label_dimension}. Use optimizer='Ftrl'."
        )
    if getattr(args, "n_classes", 2) > 2:
        raise errors.InvalidInput(
            "LinearSDCA cannot be used in a multi-class setting, got "
            f"n_classes={args.n_classes}. Use optimizer='Ftrl'."
        )


class SparseValues(NamedTuple):
    """The categories of a batch in one column: for each, the example, the id and the weight."""

    examples: Tensor
    ids: Tensor
    weights: Tensor


class Examples(NamedTuple):
    """A batch, and those weights of the model that the batch uses.

    Attributes:
        sparse: for each categorical column, the categories of the batch.
        sparse_weights: for each categorical column, the parts of the variable, [buckets, 1].
        dense: for each dense column, the values, [batch, width] float32. The last item is the
            input of the bias: ones.
        dense_weights: for each dense column, the parts of the variable. The last item has the parts
            of the bias.
        labels, importance, names: [batch].
    """

    sparse: list[SparseValues]
    sparse_weights: list[list[Variable]]
    dense: list[Tensor]
    dense_weights: list[list[Variable]]
    labels: Tensor
    importance: Tensor
    names: Tensor


def read_examples(
    optimizer: LinearSDCA,
    layer: LinearLayer,
    feature_columns: Columns,
    features: Features,
    labels: Tensor,
    weight_column: Object,
) -> Examples:
    name = optimizer.example_id_column
    if name not in features:
        raise errors.InvalidInput(
            f"LinearSDCA: `example_id_column` is {name!r}, but the features are "
            f"{sorted(features)}. Add this feature, with a unique string for each example."
        )
    cache = tf_compat.FeatureCache(features)
    batch_size = tf.shape(labels)[0]
    sparse, sparse_weights, dense, dense_weights = [], [], [], []
    for column in sorted(feature_columns, key=lambda each: str(each.name)):
        weights = layer.weights_of(column)
        if isinstance(column, tf_compat.CategoricalColumn):
            sparse.append(_distinct(column.get_sparse_tensors(cache, layer.state)))
            sparse_weights.append(weights)
        else:
            _check_rank(column)
            dense.append(column.get_dense_tensor(cache, layer.state))
            dense_weights.append(weights)
    return Examples(
        sparse,
        sparse_weights,
        [*dense, tf.ones([batch_size, 1])],
        [*dense_weights, layer.bias_parts],
        tf.cast(tf.reshape(labels, [-1]), tf.float32),
        _importance(features, weight_column, batch_size),
        features[name],
    )


def _importance(features: Features, weight_column: Object, batch_size: Tensor) -> Tensor:
    if not weight_column:
        return tf.ones([batch_size])
    # `weight_column` is a key, or a numeric column that has a key.
    key = str(getattr(weight_column, "key", weight_column))
    return tf.cast(tf.reshape(features[key], [-1]), tf.float32)


def _check_rank(column: Object) -> None:
    rank = column.variable_shape.ndims
    if rank != 1:
        raise errors.InvalidInput(
            f"LinearSDCA: column {column.name!r} has {rank} axes, but must have one. "
            "Flatten the feature in the input_fn."
        )


def _distinct(categories: Object) -> SparseValues:
    ids, weights = categories.id_tensor, categories.weight_tensor
    count = tf.shape(ids.indices)[0]
    values = tf.ones([count], tf.float32) if weights is None else weights.values
    examples = tf.reshape(ids.indices[:, 0], [-1])
    flat = tf.cast(tf.reshape(ids.values, [-1]), tf.int64)
    is_known = tf.greater_equal(flat, 0)
    flat, examples, values = (tf.boolean_mask(each, is_known) for each in (flat, examples, values))
    # Each pair of an example and an id becomes one number.
    width = tf.reduce_max(flat) + 1
    pairs, places = tf.unique(width * examples + flat)
    size = tf.shape(pairs)[0]
    kept = tf.unsorted_segment_min(examples, places, size)
    return SparseValues(
        kept, pairs - width * kept, tf.reshape(tf.unsorted_segment_sum(values, places, size), [-1])
    )


_NAME = "ShardedMutableHashTable"
_WIDTH = 4  # the dual variable, the primal loss, the dual loss, and the weight of the example


class ExampleTable:
    """Stores four numbers for each example, keyed by a hash of its name. Checkpoints save them."""

    def __init__(self, num_shards: int) -> None:
        with tf.name_scope(_NAME):
            self._shards = [
                tf.lookup.experimental.DenseHashTable(
                    tf.int64,
                    tf.float32,
                    default_value=[0.0] * _WIDTH,
                    # No hash of SdcaFprint equals one of these keys.
                    empty_key=[0, 0],
                    deleted_key=[1, 1],
                    name=f"{_NAME}-{number}-of-{num_shards}",
                )
                for number in range(1, num_shards + 1)
            ]

    def size(self) -> Tensor:
        return tf.add_n([shard.size() for shard in self._shards])

    def sums(self) -> Tensor:
        sums: list[Tensor] = []
        for shard in self._shards:
            _, values = shard.export()
            # The sums run one after another, because each copies a table in double precision.
            with tf.control_dependencies(sums):
                sums.append(tf.reduce_sum(tf.cast(values, tf.float64), 0))
        return tf.add_n(sums)

    def lookup(self, keys: Tensor) -> Tensor:
        if len(self._shards) == 1:
            return self._shards[0].lookup(keys)
        places = self._places(keys)
        parts = tf.dynamic_partition(keys, places, len(self._shards))
        rows = tf.dynamic_partition(tf.range(tf.shape(keys)[0]), places, len(self._shards))
        numbers = [shard.lookup(part) for shard, part in zip(self._shards, parts, strict=True)]
        return tf.dynamic_stitch(rows, numbers)

    def insert(self, keys: Tensor, values: Tensor) -> Op:
        if len(self._shards) == 1:
            return self._shards[0].insert(keys, values)
        places = self._places(keys)
        split = (tf.dynamic_partition(each, places, len(self._shards)) for each in (keys, values))
        return tf.group(
            *(shard.insert(*part) for shard, *part in zip(self._shards, *split, strict=True))
        )

    def _places(self, keys: Tensor) -> Tensor:
        return tf.cast(tf.floormod(tf.abs(keys[:, 0]), len(self._shards)), tf.int32)


Parts = list[Variable]

_FEW = 1.0  # the method is not meant for an l2 below this


class Ascent:
    """Trains a linear model on one batch per step, by stochastic dual coordinate ascent.

    A step changes "unshrunk" copies of the weights. `update_weights` computes the model's weights
    by shrinking these copies by l1 / l2.
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
        examples, settings = self._examples, self._optimizer
        with tf.name_scope("sdca/minimize"):
            keys = tf.raw_ops.SdcaFprint(input=examples.names)
            uniques = [tf.unique(tf.cast(values.ids, tf.int32))[0] for values in examples.sparse]
            ids = [tf.cast(each, tf.int64) for each in uniques]
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
        """Computes a bound on how far the total loss is above its minimum; NaN without examples."""
        settings = self._optimizer
        with tf.name_scope("sdca/approximate_duality_gap"):
            sums = self._table.sums()
            primal, dual, importance = sums[1], sums[2], sums[3]
            with tf.name_scope("sdca/l1_loss"):
                l1 = settings.symmetric_l1_regularization * self._sum_of_weights(tf.abs)
            with tf.name_scope("sdca/l2_loss"):
                l2 = settings.symmetric_l2_regularization * self._sum_of_weights(tf.square) / 2.0
            # The l2 loss is part of the primal and of the dual problem.
            return (primal + dual + l1 + 2.0 * l2) / importance

    def _sum_of_weights(self, of_each: Callable[[Tensor], Tensor]) -> Tensor:
        weights = [tf.cast(tf.convert_to_tensor(each), tf.float64) for each in self._weights()]
        return tf.add_n([tf.reduce_sum(of_each(each)) for each in weights])

    def _weights(self) -> Iterator[Variable]:
        examples = self._examples
        return itertools.chain(*examples.sparse_weights, *examples.dense_weights)


class _UpdateWeightsHook(tf.train.SessionRunHook):
    def __init__(self, ascent: Ascent, train_op: Op) -> None:
        self._ascent, self._train_op = ascent, train_op
        self._update: Op = None

    def begin(self) -> None:
        self._update = self._ascent.update_weights(self._train_op)

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        return tf.train.SessionRunArgs(self._update)


def _check_regularization(optimizer: LinearSDCA) -> None:
    l1, l2 = optimizer.symmetric_l1_regularization, optimizer.symmetric_l2_regularization
    if l2 <= 0.0:
        raise errors.InvalidInput(
            f"symmetric_l2_regularization should be positive, got {l2}. Give LinearSDCA a larger "
            "value, such as 1."
        )
    if l1 < 0.0:
        raise errors.InvalidInput(
            f"symmetric_l1_regularization should be non-negative, got {l1}. Give LinearSDCA a "
            "value of 0 or more."
        )
    if l2 <= _FEW:
        log.warning(
            "LinearSDCA: symmetric_l2_regularization=%s is unusually small. It should be about the "
            "mean L2 norm of the examples.",
            l2,
        )


def _copies(parts: Sequence[Variable]) -> Parts:
    return [
        tf.compat.v2.Variable(tf.zeros(part.shape), name=f"{part.op.name}_unshrunk")
        for part in parts
    ]


def _whole(parts: Parts) -> Tensor:
    values = [tf.convert_to_tensor(part) for part in parts]
    return tf.concat(values, axis=0) if len(values) > 1 else values[0]


def _add_rows(parts: Parts, ids: Tensor, changes: Tensor) -> list[Op]:
    if len(parts) == 1:
        return [tf.scatter_add(parts[0], ids, changes)]
    updates, first = [], 0
    for part in parts:
        end = first + int(part.shape[0])
        rows = tf.where(tf.logical_and(ids >= first, ids < end))[:, 0]
        updates.append(tf.scatter_add(part, tf.gather(ids, rows) - first, tf.gather(changes, rows)))
        first = end
    return updates


def sdca_spec(
    optimizer: LinearSDCA,
    head: Object,
    feature_columns: Columns,
    features: Features,
    labels: Nest,
    mode: str,
) -> EstimatorSpec:
    loss_type = _loss_type(head)
    check_new_columns(feature_columns)
    name = V1_NAME if isinstance(head, GraphHead) else KERAS_NAME
    layer = LinearLayer(feature_columns, 1, "sum", name)
    logits = apply_layer(layer, features).logits
    if mode != ModeKeys.TRAIN:
        return head.create_estimator_spec(features, mode, logits, labels)
    examples = read_examples(
        optimizer, layer, feature_columns, features, labels, head.weight_column
    )
    ascent = Ascent(optimizer, examples, loss_type)
    train_op = ascent.minimize(tf.train.get_global_step())
    spec = head.create_estimator_spec(
        features, mode, logits, labels, train_op_fn=lambda _: train_op
    )
    hook = _UpdateWeightsHook(ascent, train_op)
    return spec._replace(training_chief_hooks=(*(spec.training_chief_hooks or ()), hook))


def _loss_type(head: Object) -> str:
    if isinstance(head, BinaryClassHead):
        return "logistic_loss"
    if isinstance(head, RegressionHead) and head.logits_dimension == 1:
        return "squared_loss"
    raise errors.InvalidInput(
        f"LinearSDCA: unsupported head type: {type(head).__name__}. Use a BinaryClassHead, or a "
        "RegressionHead with label_dimension=1."
    )
