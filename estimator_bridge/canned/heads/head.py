"""The base classes of heads: `Head`, and `SingleHead` for one kind of labels."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned.heads import head_checks
from estimator_bridge.canned.result_names import MetricKeys
from estimator_bridge.legacy.estimator_spec import EstimatorSpec, ModeKeys, TPUEstimatorSpec
from estimator_bridge.legacy.host_calls import HostCall
from estimator_bridge.runtime.program_types import Features
from tf2_engine import tf_compat
from tf2_engine.types import Nest, Object, Op, Tensor, Variable

Predictions = dict[Object, Tensor]

KerasMetrics = dict[str, Object]


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

    Subclasses also define `create_estimator_spec` or `_create_tpu_estimator_spec`.
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
        """The member of `tf.losses.Reduction` that combines losses into the loss of a batch."""

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
    def metrics(self, regularization_losses: Sequence[Tensor] | None = None) -> KerasMetrics: ...

    @abc.abstractmethod
    def update_metrics(
        self,
        eval_metrics: KerasMetrics,
        features: Features,
        logits: Nest,
        labels: Nest,
        regularization_losses: Sequence[Tensor] | None = None,
    ) -> KerasMetrics:
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
            features: the features of the batch, among them any weights.
            logits: [..., logits_dimension]; for `MultiHead` also a dict keyed by head name.
            labels: None in prediction.
            optimizer: a Keras optimizer; training needs either this or `train_op_fn`.
            train_op_fn: takes the loss and returns the train op.
            update_ops: ops to run with the train op, such as those of batch normalization.
            regularization_losses: scalars that are added to the loss.

        Raises:
            InvalidInput: labels, logits or weights have the wrong shape or type; or training is
                given both or neither of `optimizer` and `train_op_fn`.
        """
        rest = (optimizer, trainable_variables, train_op_fn, update_ops, regularization_losses)
        return self._estimator_spec(HeadCall(features, mode, logits, labels, *rest))

    def _estimator_spec(self, call: HeadCall) -> EstimatorSpec:
        return spec_without_tpu("Head", self, **call._asdict())

    def _create_tpu_estimator_spec(self, *arguments: Object, **by_name: Object) -> TPUEstimatorSpec:
        raise NotImplementedError("TPUEstimatorSpec not available for this model head.")

    def _summary_key(self, key: str) -> str:
        return f"{key}/{self.name}" if self.name else key


def spec_without_tpu(
    base: str, head: Object, *arguments: Object, **by_name: Object
) -> EstimatorSpec:
    try:
        spec = head._create_tpu_estimator_spec(*arguments, **by_name)
    except NotImplementedError:
        raise NotImplementedError(
            f"Subclasses of {base} must implement `create_estimator_spec()` or "
            f"_create_tpu_estimator_spec(). {type(head).__name__} has neither."
        ) from None
    return spec.as_estimator_spec()


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
            _check_keras_optimizer(call.optimizer)
            head_checks.check_trainable(call.trainable_variables)
            of_replica = per_replica(loss, reduction)
            train_op = call.optimizer.get_updates(of_replica, call.trainable_variables)[0]
        return train_op if call.update_ops is None else tf.group(train_op, *call.update_ops)


def _check_keras_optimizer(optimizer: Object) -> None:
    optimizers = keras.optimizers
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


LossFn = Callable[..., Tensor]

Makers = Mapping[str, Callable[[], Tensor]]
"""Maps the name of each prediction to the function that computes it."""

CLASSIFY, REGRESS, PREDICT = "classification", "regression", "predict"
DEFAULT = tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY

keras = tf_compat.keras2()


class Losses(NamedTuple):
    """The losses and weights of a batch: [..., 1], or with one value for each logit.

    Without a weight column, `weights` is 1.0. The labels have the form that the loss needs.
    """

    of_examples: Tensor
    weights: Tensor | float
    labels: Tensor


def predictions_of(
    makers: Makers, keys: Sequence[str] | None, first: Collection[str] = ()
) -> Predictions:
    for key in keys or ():
        if key not in makers:
            raise errors.InvalidInput(
                f"Prediction key must be in PredictionKeys, given: {key}. This head has "
                f"{', '.join(makers)}."
            )
    chosen = [key for key in makers if key in (keys or makers)]
    # The order of ops decides their names, which appear in export signatures.
    predictions = {key: makers[key]() for key in sorted(chosen, key=lambda key: key not in first)}
    return {key: predictions[key] for key in chosen}


class SingleHead(Head):
    """Base class of heads with one kind of labels; subclasses define losses and predictions."""

    _per_logit = False  # whether each logit has a loss, and may have a weight
    _numeric_weights = True
    _range_scope = "check_label_range"
    _shapes_first = False  # order of label checks; see `head_checks.checked_labels`
    _compared_predictions: Sequence[str] | None = None  # those that metrics use; None means all
    _reductions: Sequence[str] = REDUCTIONS

    def __init__(
        self,
        logits_dimension: int,
        weight_column: Object,
        loss_reduction: str,
        loss_fn: LossFn | None = None,
        name: str | None = None,
    ) -> None:
        head_checks.check_reduction(loss_reduction, self._reductions)
        head_checks.check_loss_fn(loss_fn)
        self._logits_dimension = logits_dimension
        self._weight_column = weight_column
        self._loss_reduction = loss_reduction
        self._loss_fn = loss_fn
        self._name = name

    @property
    def name(self) -> str | None:
        return self._name

    @property
    def logits_dimension(self) -> int:
        return self._logits_dimension

    @property
    def loss_reduction(self) -> str:
        return self._loss_reduction

    @property
    def weight_column(self) -> Object:
        return self._weight_column

    def loss(
        self,
        labels: Nest,
        logits: Tensor,
        features: Features | None = None,
        mode: str | None = None,
        regularization_losses: Sequence[Tensor] | None = None,
    ) -> Tensor:
        # SUM_OVER_BATCH_SIZE divides by the number of losses, not by the sum of the weights.
        with tf.name_scope("losses"):
            logits = head_checks.checked_logits(logits, self.logits_dimension)
            loss = self._reduced(self._losses(logits, labels, features or {}))
            if regularization_losses is not None:
                loss += tf.add_n(regularization_losses)
        return loss

    def predictions(
        self, logits: Tensor, keys: Sequence[str] | None = None
    ) -> dict[Object, Tensor]:
        logits = head_checks.checked_logits(logits, self.logits_dimension)
        with tf.name_scope(None, "predictions", (logits,)):
            return self._predictions(logits, keys)

    def metrics(self, regularization_losses: Sequence[Tensor] | None = None) -> KerasMetrics:
        with tf.name_scope("metrics"):
            key = MetricKeys.LOSS_MEAN
            metrics = {key: keras.metrics.Mean(name=key), **self._metrics()}
            if regularization_losses is not None:
                key = MetricKeys.LOSS_REGULARIZATION
                metrics[key] = keras.metrics.Mean(name=key)
            metrics.update(self._later_metrics())
        return {self._summary_key(key): metric for key, metric in metrics.items()}

    def update_metrics(
        self,
        eval_metrics: KerasMetrics,
        features: Features,
        logits: Tensor,
        labels: Nest,
        regularization_losses: Sequence[Tensor] | None = None,
    ) -> KerasMetrics:
        # As in stock, ops `predictions/...` outside the head's scope compute predictions again.
        predictions = self.predictions(logits, self._compared_predictions)
        logits = head_checks.checked_logits(logits, self.logits_dimension)
        losses = self._losses(logits, labels, features or {})
        self._metric(eval_metrics, MetricKeys.LOSS_MEAN).update_state(
            values=losses.of_examples, sample_weight=losses.weights
        )
        self._update(eval_metrics, predictions, labels, losses)
        if regularization_losses is not None:
            self._metric(eval_metrics, MetricKeys.LOSS_REGULARIZATION).update_state(
                values=tf.add_n(regularization_losses)
            )
        self._update_later(eval_metrics, predictions, losses)
        return eval_metrics

    def _create_tpu_estimator_spec(self, *arguments: Object, **by_name: Object) -> TPUEstimatorSpec:
        call = HeadCall(*arguments, **by_name)
        mode, regularization_losses = call.mode, call.regularization_losses
        with tf.name_scope(self._name, "head"):
            predictions = self.predictions(call.logits)
            if mode == ModeKeys.PREDICT:
                return self._predict_spec(predictions)
            loss = self.loss(call.labels, call.logits, call.features, mode, regularization_losses)
            if mode == ModeKeys.EVAL:
                metrics = self._eval_metrics(call)
                return TPUEstimatorSpec(mode, predictions, loss, eval_metrics=metrics)
            train_op = make_train_op(loss, self.loss_reduction, call)
        add_loss_summaries(loss, regularization_losses, self._summary_key)
        return TPUEstimatorSpec(ModeKeys.TRAIN, predictions, loss, train_op)

    def _predict_spec(self, predictions: Predictions) -> TPUEstimatorSpec:
        own = self._own_outputs(predictions)
        predict = tf_compat.export_output_classes()["PredictOutput"](predictions)
        outputs = {DEFAULT: next(iter(own.values())), **own, PREDICT: predict}
        return TPUEstimatorSpec(ModeKeys.PREDICT, predictions, export_outputs=outputs)

    def _eval_metrics(self, call: HeadCall) -> HostCall:
        metrics = self.metrics(call.regularization_losses)

        def update(logits: Tensor, labels: Nest = call.labels) -> KerasMetrics:
            return self.update_metrics(
                metrics, call.features, logits, labels, call.regularization_losses
            )

        tensors = {"logits": call.logits}
        if tf.is_tensor(call.labels):
            tensors["labels"] = call.labels
        return update, tensors

    def _reduced(self, losses: Losses) -> Tensor:
        return keras.__internal__.losses.compute_weighted_loss(
            losses.of_examples, sample_weight=losses.weights, reduction=self._loss_reduction
        )

    def _losses(self, logits: Tensor, labels: Nest, features: Features) -> Losses:
        labels = self._checked_labels(logits, labels)
        if self._loss_fn is None:
            losses = self._losses_of_examples(labels, logits)
        else:
            width = self.logits_dimension if self._per_logit else 1
            losses = head_checks.checked_losses(self._loss_fn, labels, logits, features, width)
        weights = head_checks.checked_weights(
            features,
            self._weight_column,
            logits,
            per_logit=self._per_logit,
            numeric=self._numeric_weights,
        )
        return Losses(losses, weights, labels)

    def _dense_labels(self, labels: Nest, logits: Tensor, width: int) -> Tensor:
        return head_checks.checked_labels(labels, logits, width, shapes_first=self._shapes_first)

    def _metric(self, metrics: KerasMetrics, key: str) -> Object:
        return metrics[self._summary_key(key)]

    def _update_mean(
        self, metrics: KerasMetrics, key: str, values: Tensor, weights: Tensor | float
    ) -> None:
        values = tf.cast(values, tf.float32)
        spread = tf_compat.broadcast_weights(weights, values)
        self._metric(metrics, key).update_state(values=values, sample_weight=spread)

    def _update_all(
        self, metrics: KerasMetrics, keys: Iterable[str], losses: Losses, predictions: Tensor
    ) -> None:
        _, weights, labels = losses
        for key in keys:
            self._metric(metrics, key).update_state(labels, predictions, sample_weight=weights)

    @abc.abstractmethod
    def _checked_labels(self, logits: Tensor, labels: Nest) -> Tensor: ...

    @abc.abstractmethod
    def _losses_of_examples(self, labels: Tensor, logits: Tensor) -> Tensor: ...

    @abc.abstractmethod
    def _predictions(self, logits: Tensor, keys: Sequence[str] | None) -> Predictions:
        pass

    @abc.abstractmethod
    def _own_outputs(self, predictions: Predictions) -> dict[str, Object]:
        """Makes the export outputs; the first is the default. The caller adds "predict"."""

    @abc.abstractmethod
    def _metrics(self) -> KerasMetrics:
        pass

    def _later_metrics(self) -> KerasMetrics:
        return {}

    @abc.abstractmethod
    def _update(
        self, metrics: KerasMetrics, predictions: Predictions, labels: Nest, losses: Losses
    ) -> None: ...

    def _update_later(
        self, metrics: KerasMetrics, predictions: Predictions, losses: Losses
    ) -> None: ...
