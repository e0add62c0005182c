"""Defines `Head`, the base class of all heads, and how heads train with Keras optimizers."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned.heads import head_checks
from estimator_bridge.canned.result_names import MetricKeys
from estimator_bridge.legacy.estimator_spec import EstimatorSpec, TPUEstimatorSpec
from estimator_bridge.runtime.program_types import Features
from tf2_engine import tf_compat
from tf2_engine.types import Nest, Object, Op, Tensor, Variable

Predictions = dict[Object, Tensor]

Metrics = dict[str, Object]


class HeadCall(NamedTuple):
    """The arguments of `Head.create_estimator_spec`."""

    features: Features
    mode: str
    logits: Nest
    labels: Nest = None
    optimizer: Object = None
    trainable_variables: Sequence[Variable] | None = None
    train_op_fn: Callable[[Tensor], Op] | None = None
    update_ops: Sequence[Op] | None = None
    regularization_losses: Sequence[Tensor] | None = None


class Head(abc.ABC):
    """Computes loss, predictions, metrics and a train op from the logits of a model.

    A subclass overrides the abstract members, and either `create_estimator_spec` or
    `_create_tpu_estimator_spec`.
    """

    @property
    @abc.abstractmethod
    def name(self) -> str | None:
        """The head's name, a part of the names of metrics and summaries; may be None."""

    @property
    @abc.abstractmethod
    def logits_dimension(self) -> int:
        """The size of the last axis of the logits."""

    @property
    @abc.abstractmethod
    def loss_reduction(self) -> str:
        """The member of `tf.losses.Reduction` by which losses become the loss of a batch."""

    @abc.abstractmethod
    def loss(
        self,
        labels: Nest,
        logits: Nest,
        features: Features | None = None,
        mode: str | None = None,
        regularization_losses: Sequence[Tensor] | None = None,
    ) -> Tensor:
        """Computes the loss of a batch, a scalar."""

    @abc.abstractmethod
    def predictions(self, logits: Nest, keys: Sequence[str] | None = None) -> dict[Object, Tensor]:
        """Computes a dict of predictions; `keys` selects some of them."""

    @abc.abstractmethod
    def metrics(self, regularization_losses: Sequence[Tensor] | None = None) -> Metrics: ...

    @abc.abstractmethod
    def update_metrics(
        self,
        eval_metrics: Metrics,
        features: Features,
        logits: Nest,
        labels: Nest,
        regularization_losses: Sequence[Tensor] | None = None,
    ) -> Metrics:
        """Adds a batch to the metrics that `metrics` has created, and returns the metrics."""

    def create_estimator_spec(
        self,
        features: Features,
        mode: str,
        logits: Nest,
        labels: Nest = None,
        optimizer: Object = None,
        trainable_variables: Sequence[Variable] | None = None,
        train_op_fn: Callable[[Tensor], Op] | None = None,
        update_ops: Sequence[Op] | None = None,
        regularization_losses: Sequence[Tensor] | None = None,
    ) -> EstimatorSpec:
        """Makes the EstimatorSpec of a model_fn.

        Args:
            features: the features of the batch, among them the weights, if there are any.
            mode: one of `ModeKeys`.
            logits: [..., logits_dimension]; for `MultiHead` also a dict by head name.
            labels: the expected results; None in prediction.
            optimizer: a Keras optimizer; training needs either this or `train_op_fn`.
            trainable_variables: the variables that the optimizer updates.
            train_op_fn: takes the loss and returns the train op.
            update_ops: ops to run with the train op, such as those of batch normalization.
            regularization_losses: scalars that are added to the loss.

        Raises:
            InvalidInput: labels, logits or weights have the wrong shape or type; or both or neither
                of optimizer and train_op_fn are given for training.
        """
        rest = (optimizer, trainable_variables, train_op_fn, update_ops, regularization_losses)
        return self._estimator_spec(HeadCall(features, mode, logits, labels, *rest))

    def _estimator_spec(self, call: HeadCall) -> EstimatorSpec:
        try:
            spec = self._create_tpu_estimator_spec(**call._asdict())
        except NotImplementedError:
            raise NotImplementedError(
                "Subclasses of Head must implement `create_estimator_spec()` or "
                f"_create_tpu_estimator_spec(). {type(self).__name__} has neither."
            ) from None
        return spec.as_estimator_spec()

    def _create_tpu_estimator_spec(self, *arguments: Object, **by_name: Object) -> TPUEstimatorSpec:
        raise NotImplementedError("TPUEstimatorSpec not available for this model head.")

    def _summary_key(self, key: str) -> str:
        return f"{key}/{self.name}" if self.name else key


MEAN = "sum_over_batch_size"
"""Keras's name for the reduction that divides the sum of the losses by the number of losses."""

REDUCTIONS = ("auto", "sum", MEAN)
"""The reductions of `tf.losses.Reduction` whose result is a single loss."""


def check_one_way_to_train(call: HeadCall) -> None:
    if (call.optimizer is None) == (call.train_op_fn is None):
        count = "None" if call.optimizer is None else "set"
        raise errors.InvalidInput(
            f"train_op_fn and optimizer cannot both be {count}. Give one of them for training."
        )


def per_replica(loss: Tensor, reduction: str) -> Tensor:
    """Scales the loss of a replica so that the sum over all replicas is the mean loss."""
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if reduction == MEAN and replicas > 1:
        loss *= 1.0 / replicas
    return loss


def make_train_op(loss: Tensor, reduction: str, call: HeadCall) -> Op:
    head_checks.check_list("update_ops", call.update_ops)
    check_one_way_to_train(call)
    # The names of the optimizer's slots begin with this scope.
    with tf.name_scope(""), tf.name_scope("training"):
        if call.train_op_fn is not None:
            train_op = call.train_op_fn(loss)
        else:
            check_keras_optimizer(call.optimizer)
            head_checks.check_trainable(call.trainable_variables)
            of_replica = per_replica(loss, reduction)
            train_op = call.optimizer.get_updates(of_replica, call.trainable_variables)[0]
        return train_op if call.update_ops is None else tf.group(train_op, *call.update_ops)


def check_keras_optimizer(optimizer: Object) -> None:
    optimizers = tf_compat.keras2().optimizers
    if not isinstance(optimizer, (optimizers.Optimizer, optimizers.legacy.Optimizer)):
        raise errors.InvalidInput(
            "The given optimizer is not a tf.keras.optimizers.Optimizer instance. Received "
            f"optimizer of type {type(optimizer)}. Use one of tf.keras.optimizers.legacy."
        )


def add_loss_summaries(
    loss: Tensor, regularization_losses: Sequence[Tensor] | None, key_of: Callable[[str], str] = str
) -> None:
    with tf.name_scope(""):
        tf.summary.scalar(key_of(MetricKeys.LOSS), loss)
        if regularization_losses is not None:
            tf.summary.scalar(
                key_of(MetricKeys.LOSS_REGULARIZATION), tf.add_n(regularization_losses)
            )
