"""Makes the constructors of canned estimators from argument names, and checks the arguments."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned.heads.classifier_heads import BinaryClassHead, MultiClassHead
from estimator_bridge.canned.heads.graph_heads import (
    SUM,
    GraphBinaryClassHead,
    GraphMultiClassHead,
    GraphRegressionHead,
)
from estimator_bridge.canned.heads.head import MEAN
from estimator_bridge.canned.heads.regression import RegressionHead
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.runtime.estimator.base_estimator import Estimator
from estimator_bridge.runtime.program_types import Columns, ModelFn, ModelSpec
from estimator_bridge.settings import render
from estimator_bridge.settings.row import TRAINING
from tf2_engine import log, tf_compat
from tf2_engine.types import Nest, Object


class Version(NamedTuple):
    """The heads and the default loss reduction of TensorFlow 1's or 2's estimators."""

    binary_head: Callable[..., Object]
    multi_class_head: Callable[..., Object]
    number_head: Callable[..., Object]
    loss_reduction: str


V1 = Version(GraphBinaryClassHead, GraphMultiClassHead, GraphRegressionHead, SUM)
V2 = Version(BinaryClassHead, MultiClassHead, RegressionHead, MEAN)

CLASSIFIER = "n_classes weight_column label_vocabulary"
REGRESSOR = "label_dimension weight_column"
"""The arguments that describe the labels of a classifier or a regressor."""

_BY_NAME_OR_PLACE = inspect.Parameter.POSITIONAL_OR_KEYWORD
_PARTITIONERS = ("input_layer_partitioner", "partitioner")
_DEFAULTS: Mapping[str, Object] = {
    **dict.fromkeys(
        ("self", "head", "hidden_units", "feature_columns", "sequence_feature_columns"),
        inspect.Parameter.empty,
    ),
    "n_classes": 2,
    "label_dimension": 1,
    **dict.fromkeys(("activation_fn", "dnn_activation_fn"), tf.nn.relu),
    "linear_optimizer": "Ftrl",
    "dnn_optimizer": "Adagrad",
    **dict.fromkeys(("batch_norm", "return_sequences"), False),
    **dict.fromkeys(("sparse_combiner", "linear_sparse_combiner"), "sum"),
    "sequence_mask": "sequence_mask",
}
"""The defaults that are the same in all estimators. The default of any other argument is None."""

_OPTIMIZERS = {
    "Adagrad": ("AdagradOptimizer", "Adagrad"),
    "Adam": ("AdamOptimizer", "Adam"),
    "Ftrl": ("FtrlOptimizer", "Ftrl"),
    "RMSProp": ("RMSPropOptimizer", "RMSprop"),
    "SGD": ("GradientDescentOptimizer", "SGD"),
}
"""Maps an optimizer's name to its class in `tf.compat.v1.train` and its class in Keras."""

_LARGE_SLICE = 64 << 20  # bytes

Arguments = types.SimpleNamespace
_Class = TypeVar("_Class", bound=type)


def constructor(
    version: Version,
    model_fn_of: Callable[[Object, Arguments], ModelFn],
    names: str,
    *,
    trains_all: bool | None = None,
    **own_defaults: Object,
) -> Callable[[_Class], _Class]:
    """Returns a decorator that gives a canned estimator its constructor.

    Args:
        names: the names of the arguments, in order. Estimators that take no `head` make a head
            from the arguments in `CLASSIFIER` or `REGRESSOR`.
        trains_all: whether the estimator also trains variables that an input_fn creates. None means
            True for TensorFlow 1's estimators, and False for TensorFlow 2's.
    """
    defaults = {**_DEFAULTS, "loss_reduction": version.loss_reduction, **own_defaults}
    signature = inspect.Signature(
        [
            inspect.Parameter(name, _BY_NAME_OR_PLACE, default=defaults.get(name))
            for name in ("self", *names.split())
            if version is V1 or name not in _PARTITIONERS
        ]
    )

    def decorate(kind: _Class) -> _Class:
        def construct(self: Object, *values: Object, **by_name: Object) -> None:
            try:
                bound = signature.bind(self, *values, **by_name)
            except TypeError as error:
                raise TypeError(f"{kind.__name__}: {error}.") from None
            bound.apply_defaults()
            arguments = Arguments(**bound.arguments)
            model_fn = model_fn_of(_head(version, arguments), arguments)
            warns = version is V2 if trains_all is None else not trains_all
            Estimator.__init__(
                self,
                _checked(model_fn, warns),
                arguments.model_dir,
                arguments.config,
                warm_start_from=getattr(arguments, "warm_start_from", None),
            )

        construct.__name__ = "__init__"
        construct.__signature__ = signature  # type: ignore[attr-defined]
        kind.__init__ = construct  # type: ignore[misc]
        return kind

    return decorate


def _checked(model_fn: ModelFn, warns: bool) -> ModelFn:
    @functools.wraps(model_fn)
    def checked(features: Nest, labels: Nest, mode: str, config: RunConfig) -> ModelSpec:
        check_features(features)
        names = ", ".join(each.op.name for each in tf.trainable_variables())
        if warns and names and mode == ModeKeys.TRAIN:
            log.warning("%s", render.warning("canned_outside", TRAINING, value=names))
        return model_fn(features, labels, mode, config)

    return checked


def _head(version: Version, arguments: Arguments) -> Object:
    if hasattr(arguments, "head"):
        return arguments.head
    weights, reduction = arguments.weight_column, arguments.loss_reduction
    if hasattr(arguments, "label_dimension"):
        return version.number_head(arguments.label_dimension, weights, reduction)
    vocabulary = arguments.label_vocabulary
    if arguments.n_classes != 2:
        return version.multi_class_head(arguments.n_classes, weights, vocabulary, reduction)
    if version is V1 and vocabulary is not None and not isinstance(vocabulary, (list, tuple)):
        raise errors.WrongType(
            f"label_vocabulary should be a list or tuple. Given type: {type(vocabulary)}."
        )
    return version.binary_head(weights, None, vocabulary, reduction)


def v1_optimizer(opt: Object, learning_rate: float | None = None) -> tf.train.Optimizer:
    if isinstance(opt, str):
        v1_class = getattr(tf.train, _classes_of(opt)[0])
        if not learning_rate:
            raise errors.InvalidInput(
                f"learning_rate must be specified when opt is string. Give one for {opt!r}."
            )
        return v1_class(learning_rate=learning_rate)
    optimizer = opt() if callable(opt) else opt
    if not isinstance(optimizer, tf.train.Optimizer):
        raise errors.InvalidInput(
            f"The given object is not an Optimizer instance. Given: {optimizer}. Estimators of "
            "tf.compat.v1 need an optimizer from tf.compat.v1.train."
        )
    return optimizer


def keras_optimizer(opt: Object, learning_rate: float | None = None) -> Object:
    optimizers = tf_compat.keras2().optimizers
    if isinstance(opt, str):
        settings = {"learning_rate": learning_rate} if learning_rate else {}
        return getattr(optimizers.legacy, _classes_of(opt)[1])(**settings)
    optimizer = opt() if callable(opt) else opt
    if isinstance(optimizer, optimizers.experimental.Optimizer):
        name = type(optimizer).__name__
        raise errors.InvalidInput(
            f"Estimators train in a graph, in which tf.keras.optimizers.{name} does not work. "
            "Please set your optimizer as an instance of `tf.keras.optimizers.legacy.Optimizer`, "
            f"e.g., `tf.keras.optimizers.legacy.{name}`."
        )
    if not isinstance(optimizer, optimizers.legacy.Optimizer):
        raise errors.InvalidInput(
            "The given object is not a tf.keras.optimizers.Optimizer instance. Given: "
            f"{optimizer}. TensorFlow 2's estimators need one from tf.keras.optimizers.legacy."
        )
    return optimizer


# Stock's names, which programs use.
get_optimizer_instance, get_optimizer_instance_v2 = v1_optimizer, keras_optimizer


def counting_steps(optimizer: Object) -> Object:
    optimizer.iterations = tf.train.get_or_create_global_step()
    return optimizer


def _classes_of(name: str) -> tuple[str, str]:
    if name not in _OPTIMIZERS:
        raise errors.InvalidInput(
            f"Unsupported optimizer name: {name}. Supported names are: "
            f"{tuple(sorted(_OPTIMIZERS))}."
        )
    return _OPTIMIZERS[name]


def layer_partitioner(config: RunConfig | None, **limits: int) -> Object:
    most = config.num_ps_replicas if config else 0
    return tf.min_max_variable_partitioner(max_partitions=most, **limits)


def input_partitioner(config: RunConfig | None) -> Object:
    return layer_partitioner(config, min_slice_size=_LARGE_SLICE)


def check_features(features: Nest) -> None:
    if not isinstance(features, dict):
        raise errors.InvalidInput(
            "features should be a dictionary of `Tensor`s. Given type: "
            f"{type(features)}. The input_fn must return a dict keyed by the feature keys of the "
            "columns."
        )


def check_new_columns(columns: Columns) -> None:
    if not tf_compat.is_new_column(columns):
        raise errors.InvalidInput(
            "Received a feature column from TensorFlow v1, but this is a TensorFlow v2 Estimator. "
            f"The columns are {', '.join(str(getattr(each, 'name', each)) for each in columns)}. "
            "Use columns from tf.feature_column, or an estimator from tf.compat.v1.estimator."
        )
