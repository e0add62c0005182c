"""Estimators whose model is linear: the Linear classes of TensorFlow 1 and 2."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge.canned import optimizer_arguments, partitioners
from estimator_bridge.canned.heads.graph_heads import SUM, GraphRegressionHead, graph_class_head
from estimator_bridge.canned.heads.head_training import MEAN
from estimator_bridge.canned.heads.multi_class import class_head
from estimator_bridge.canned.heads.regression import RegressionHead
from estimator_bridge.canned.linear_model import keras_linear, v1_linear
from estimator_bridge.canned.model_checks import check_features
from estimator_bridge.canned.sdca.linear_sdca import LinearSDCA, check_sdca
from estimator_bridge.canned.sdca.sdca_spec import sdca_spec
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.runtime.estimator.base_estimator import Estimator, PathLike
from estimator_bridge.runtime.estimator.estimator_v2 import EstimatorV2
from estimator_bridge.runtime.program_types import ModelFn, ModelSpec
from tf2_engine import tf_compat
from tf2_engine.types import Nest, Object, Tensor

_RATE = 0.2


def linear_logit_fn_builder(
    units: int, feature_columns: Sequence[Object], sparse_combiner: str = "sum"
) -> Callable[[Mapping[str, Tensor]], Tensor]:
    """Returns a function of features that returns the logits of a linear model.

    Its variables are those of TensorFlow 1, in the variable scope that is open when it is called.

    Args:
        units: how many logits there are.

    The other arguments are those of `LinearClassifier`.
    """

    def linear_logit_fn(features: Mapping[str, Tensor]) -> Tensor:
        return v1_linear(feature_columns, units, sparse_combiner, features)

    return linear_logit_fn


def default_rate(largest: float, columns: Sequence[Object]) -> float:
    """Returns the learning rate of a linear model's own optimizer: less for many columns."""
    return min(largest, 1.0 / math.sqrt(len(columns)))


def _v1_model_fn(
    head: Object,
    columns: Sequence[Object],
    optimizer: Object,
    partitioner: Object,
    sparse_combiner: str,
) -> ModelFn:
    def model_fn(features: Nest, labels: Nest, mode: str, config: RunConfig) -> ModelSpec:
        check_features(features)
        with tf.variable_scope(
            "linear",
            values=tuple(features.values()),
            partitioner=partitioner or partitioners.of_inputs(config),
        ):
            if isinstance(optimizer, LinearSDCA):
                return sdca_spec(optimizer, head, columns, features, labels, mode)
            logits = v1_linear(columns, head.logits_dimension, sparse_combiner, features)
            chosen = optimizer or tf.train.FtrlOptimizer(default_rate(_RATE, columns))
            v1_optimizer = optimizer_arguments.v1_optimizer(chosen, _RATE)
            return head.create_estimator_spec(
                features, mode, logits, labels, optimizer=v1_optimizer
            )

    return model_fn


def _keras_model_fn(
    head: Object, columns: Sequence[Object], optimizer: Object, sparse_combiner: str
) -> ModelFn:
    def model_fn(features: Nest, labels: Nest, mode: str, config: RunConfig) -> ModelSpec:
        check_features(features)
        if isinstance(optimizer, LinearSDCA):
            return sdca_spec(optimizer, head, columns, features, labels, mode)
        result = keras_linear(columns, head.logits_dimension, sparse_combiner, features)
        keras_optimizer = optimizer
        if mode == ModeKeys.TRAIN:
            ftrl = tf_compat.keras2().optimizers.legacy.Ftrl
            chosen = optimizer or ftrl(learning_rate=default_rate(_RATE, columns))
            uncounted = optimizer_arguments.keras_optimizer(chosen, _RATE)
            keras_optimizer = optimizer_arguments.counting_steps(uncounted)
        return head.create_estimator_spec(
            features,
            mode,
            result.logits,
            labels,
            optimizer=keras_optimizer,
            trainable_variables=[*result.weights, *result.bias],
        )

    return model_fn


class LinearClassifier(Estimator):
    """Classifies by a linear model; of `tf.compat.v1.estimator`.

    Args:
        feature_columns: dense or categorical feature columns.
        model_dir, config, warm_start_from: those of `Estimator`.
        n_classes: how many classes there are; 2 has one logit.
        weight_column: a numeric column, or its key, with a weight for each example.
        label_vocabulary: the labels as strings, in the order of their ids; None: they are ids.
        optimizer: an optimizer of `tf.compat.v1.train`, a function that returns one, or one of
            'Adagrad', 'Adam', 'Ftrl', 'RMSProp' and 'SGD', with a learning rate of 0.2. None is
            Ftrl with min(0.2, 1 / sqrt(columns)). Or a LinearSDCA.
        partitioner: splits the variables; None makes parts of 64 MiB or more, at most one for each
            parameter server.
        loss_reduction: one of `tf.compat.v1.losses.Reduction`, but NONE.
        sparse_combiner: how the weights of an example's categories are combined, 'sum', 'mean' or
            'sqrtn'.

    Raises:
        InvalidInput: an argument is not possible.
    """

    def __init__(
        self,
        feature_columns: Sequence[Object],
        model_dir: PathLike | None = None,
        n_classes: int = 2,
        weight_column: Object = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Object = "Ftrl",
        config: RunConfig | None = None,
        partitioner: Object = None,
        warm_start_from: Object = None,
        loss_reduction: str = SUM,
        sparse_combiner: str = "sum",
    ) -> None:
        columns = tuple(feature_columns or ())
        check_sdca(optimizer, columns, sparse_combiner, n_classes, 2)
        head = graph_class_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        model_fn = _v1_model_fn(head, columns, optimizer, partitioner, sparse_combiner)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class LinearClassifierV2(EstimatorV2):
    """Classifies by a linear model; of `tf.estimator` in TensorFlow 2.

    Args:
        optimizer: an optimizer of `tf.keras.optimizers.legacy`, a function that returns one, or a
            name, None or a LinearSDCA as for `LinearClassifier`.
        loss_reduction: one of `tf.losses.Reduction`, but NONE.

    The other arguments are those of `LinearClassifier`. Columns are of `tf.feature_column`.
    """

    def __init__(
        self,
        feature_columns: Sequence[Object],
        model_dir: PathLike | None = None,
        n_classes: int = 2,
        weight_column: Object = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Object = "Ftrl",
        config: RunConfig | None = None,
        warm_start_from: Object = None,
        loss_reduction: str = MEAN,
        sparse_combiner: str = "sum",
    ) -> None:
        columns = tuple(feature_columns or ())
        check_sdca(optimizer, columns, sparse_combiner, n_classes, 2)
        head = class_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        model_fn = _keras_model_fn(head, columns, optimizer, sparse_combiner)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class LinearEstimator(Estimator):
    """A linear model with any head; of `tf.compat.v1.estimator`.

    Args:
        head: turns logits into loss, predictions, metrics and a train op, and takes optimizers of
            `tf.compat.v1.train`.

    The other arguments are those of `LinearClassifier`.
    """

    def __init__(
        self,
        head: Object,
        feature_columns: Sequence[Object],
        model_dir: PathLike | None = None,
        optimizer: Object = "Ftrl",
        config: RunConfig | None = None,
        partitioner: Object = None,
        sparse_combiner: str = "sum",
        warm_start_from: Object = None,
    ) -> None:
        columns = tuple(feature_columns or ())
        model_fn = _v1_model_fn(head, columns, optimizer, partitioner, sparse_combiner)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class LinearEstimatorV2(EstimatorV2):
    """A linear model with any head; of `tf.estimator` in TensorFlow 2.

    Args:
        head: a `Head`.

    The other arguments are those of `LinearClassifierV2`.
    """

    def __init__(
        self,
        head: Object,
        feature_columns: Sequence[Object],
        model_dir: PathLike | None = None,
        optimizer: Object = "Ftrl",
        config: RunConfig | None = None,
        sparse_combiner: str = "sum",
        warm_start_from: Object = None,
    ) -> None:
        columns = tuple(feature_columns or ())
        model_fn = _keras_model_fn(head, columns, optimizer, sparse_combiner)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class LinearRegressor(Estimator):
    """Predicts numbers by a linear model; of `tf.compat.v1.estimator`.

    Args:
        label_dimension: how many numbers an example has.
        weight_column: a numeric column, or its key, with a weight for each example or number.

    The other arguments are those of `LinearClassifier`.
    """

    def __init__(
        self,
        feature_columns: Sequence[Object],
        model_dir: PathLike | None = None,
        label_dimension: int = 1,
        weight_column: Object = None,
        optimizer: Object = "Ftrl",
        config: RunConfig | None = None,
        partitioner: Object = None,
        warm_start_from: Object = None,
        loss_reduction: str = SUM,
        sparse_combiner: str = "sum",
    ) -> None:
        columns = tuple(feature_columns or ())
        check_sdca(optimizer, columns, sparse_combiner, label_dimension, 1)
        head = GraphRegressionHead(label_dimension, weight_column, loss_reduction)
        model_fn = _v1_model_fn(head, columns, optimizer, partitioner, sparse_combiner)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class LinearRegressorV2(EstimatorV2):
    """Predicts numbers by a linear model; of `tf.estimator` in TensorFlow 2.

    Args:
        label_dimension, weight_column: those of `LinearRegressor`.

    The other arguments are those of `LinearClassifierV2`.
    """

    def __init__(
        self,
        feature_columns: Sequence[Object],
        model_dir: PathLike | None = None,
        label_dimension: int = 1,
        weight_column: Object = None,
        optimizer: Object = "Ftrl",
        config: RunConfig | None = None,
        warm_start_from: Object = None,
        loss_reduction: str = MEAN,
        sparse_combiner: str = "sum",
    ) -> None:
        columns = tuple(feature_columns or ())
        check_sdca(optimizer, columns, sparse_combiner, label_dimension, 1)
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        model_fn = _keras_model_fn(head, columns, optimizer, sparse_combiner)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)
