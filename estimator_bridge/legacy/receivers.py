"""The inputs of exported models: receivers, functions that build them, and specs for parsing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.legacy.requirements import checked, class_names
from tf2_engine.types import DType, Nest, Object, Tensor

# Default keys for a single tensor; serving looks for these names.
_DEFAULT_KEYS = {
    "feature": "feature",
    "label": "label",
    "receiver_tensor": "input",
    "receiver_tensors_alternative": "input",
}
_TENSORS = (tf.Tensor, tf.SparseTensor, tf.RaggedTensor)

TensorDict: TypeAlias = dict[str | int, Nest]
"""Maps keys to dense, sparse or ragged tensors."""


@checked
class _ServingInputReceiver(NamedTuple):
    features: Nest
    receiver_tensors: Nest
    receiver_tensors_alternatives: Mapping[str, Nest] | None = None

    def _checked(self) -> Object:
        return self._replace(
            features=self._checked_features(),
            receiver_tensors=_tensors("receiver_tensor", self.receiver_tensors),
            receiver_tensors_alternatives=_alternatives(self.receiver_tensors_alternatives),
        )

    def _checked_features(self) -> Nest:
        return _tensors("feature", self.features, int)


class ServingInputReceiver(_ServingInputReceiver):
    """The inputs of a served model, and the features computed from them.

    Attributes:
        features: maps keys (str or int) to tensors; a single tensor gets the key "feature".
        receiver_tensors: maps names to the placeholders to feed; a single placeholder gets the name
            "input".
        receiver_tensors_alternatives: maps names to alternative sets of placeholders to feed; may
            be None. The export has signatures for each set.

    Raises:
        InvalidInput: an argument is missing, has a key of the wrong type, or is not a tensor.
    """


class TensorServingInputReceiver(_ServingInputReceiver):
    """A `ServingInputReceiver` for a model_fn that takes one tensor as `features`, not a dict."""

    def _checked_features(self) -> Nest:
        _check_given("feature", self.features)
        _check_tensor("feature", self.features)
        return self.features


@checked
class SupervisedInputReceiver(NamedTuple):
    """The inputs of a model that is exported for training or evaluation, with labels."""

    features: Nest
    labels: Nest
    receiver_tensors: Nest

    def _checked(self) -> SupervisedInputReceiver:
        for name, value in (("feature", self.features), ("label", self.labels)):
            _tensors(name, value, int)
        tensors = _tensors("receiver_tensor", self.receiver_tensors)
        return self._replace(receiver_tensors=tensors)


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Object], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Makes a function that builds a receiver of serialized tf.train.Examples, named "examples".

    `feature_spec` is the argument `features` of `tf.io.parse_example`.
    """

    def serving_input_receiver_fn() -> ServingInputReceiver:
        examples = tf.compat.v1.placeholder(
            tf.string, [default_batch_size], name="input_example_tensor"
        )
        features = tf.compat.v1.io.parse_example(examples, feature_spec)
        return ServingInputReceiver(features, {"examples": examples})

    return serving_input_receiver_fn


def build_raw_serving_input_receiver_fn(
    features: Mapping[str, Tensor], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Makes a function that builds a receiver with one placeholder per feature.

    A placeholder has the dtype and shape of its feature, but its batch size is
    `default_batch_size`; None means unknown.
    """

    def serving_input_receiver_fn() -> ServingInputReceiver:
        placeholders = _placeholders(features, default_batch_size)
        return ServingInputReceiver(placeholders, placeholders)

    return serving_input_receiver_fn


def build_raw_supervised_input_receiver_fn(
    features: Nest, labels: Nest, default_batch_size: int | None = None
) -> Callable[[], SupervisedInputReceiver]:
    """Makes a function that builds a receiver with one placeholder per feature and label.

    Raises:
        InvalidInput: features and labels share a key.
    """
    keyed_features = features if isinstance(features, dict) else {"input": features}
    keyed_labels = labels if isinstance(labels, dict) else {"label": labels}
    shared = sorted(set(keyed_features) & set(keyed_labels))
    if shared:
        raise errors.InvalidInput(
            "Features and labels must have distinct keys, because they are fed by key, but both "
            f"have {', '.join(map(repr, shared))}. Rename the keys of the labels."
        )

    def supervised_input_receiver_fn() -> SupervisedInputReceiver:
        fed_features = _placeholders(keyed_features, default_batch_size)
        fed_labels = _placeholders(keyed_labels, default_batch_size)
        return SupervisedInputReceiver(
            fed_features if isinstance(features, dict) else fed_features["input"],
            fed_labels if isinstance(labels, dict) else fed_labels["label"],
            {**fed_features, **fed_labels},
        )

    return supervised_input_receiver_fn


def _placeholders(like: Mapping[str, Tensor], batch_size: int | None) -> TensorDict:
    placeholders: TensorDict = {}
    for key, tensor in like.items():
        shape = tf.TensorShape([batch_size]).concatenate(tensor.shape[1:])
        # An eager tensor has no op with a name.
        name = None if hasattr(tensor, "numpy") else tensor.op.name
        placeholders[key] = tf.compat.v1.placeholder(tensor.dtype, shape, name=name)
    return placeholders


def _alternatives(alternatives: Mapping[str, Nest] | None) -> dict[str, TensorDict] | None:
    if alternatives is None:
        return None
    if not isinstance(alternatives, dict):
        raise errors.InvalidInput(
            "receiver_tensors_alternatives must be a dict of receiver tensors, got "
            f"{alternatives!r}."
        )
    return {
        key: _tensors("receiver_tensors_alternative", tensors)
        for key, tensors in alternatives.items()
    }


def _tensors(what: str, tensors: Nest, *more_key_types: type) -> TensorDict:
    _check_given(what, tensors)
    keyed = tensors if isinstance(tensors, dict) else {_DEFAULT_KEYS[what]: tensors}
    for key, value in keyed.items():
        if not isinstance(key, (str, *more_key_types)):
            kinds = "strings or ints" if more_key_types else "strings"
            raise errors.InvalidInput(f"{what} keys must be {kinds}, got {key!r}.")
        _check_tensor(f"{what} {key}" if keyed is tensors else what, value)
    return keyed


def _check_given(what: str, value: Object) -> None:
    if value is None:
        raise errors.InvalidInput(f"{what}s must be defined, got None.")


def _check_tensor(what: str, value: Object) -> None:
    # As in stock, any object that wraps a tensor passes if TensorFlow can convert it.
    if not isinstance(value, _TENSORS) and not (hasattr(value, "tensor") and _converts(value)):
        raise errors.InvalidInput(
            f"{what} must be a Tensor, SparseTensor, or RaggedTensor, got {value!r}."
        )


def _converts(value: Object) -> bool:
    try:
        tf.convert_to_tensor(value)
    except TypeError:
        return False
    return True


ParsingSpec = dict[str, Object]


def classifier_parse_example_spec(
    feature_columns: Iterable[Object],
    label_key: str,
    label_dtype: DType = tf.int64,
    label_default: Object = None,
    weight_column: Object = None,
) -> ParsingSpec:
    """Makes the `tf.io.parse_example` spec for feature columns and a class label of shape [1].

    Args:
        label_default: the label of Examples without a label. If None, parsing such Examples fails.
        weight_column: a numeric column, or its key.

    Raises:
        InvalidSpec: label or weight is also a feature, or the weight is not a numeric column.
    """
    spec = tf.compat.v1.feature_column.make_parse_example_spec(feature_columns)
    label = tf.io.FixedLenFeature((1,), label_dtype, label_default)
    return _with_label(spec, label_key, label, weight_column)


def classifier_parse_example_spec_v2(
    feature_columns: Iterable[Object],
    label_key: str,
    label_dtype: DType = tf.int64,
    label_default: Object = None,
    weight_column: Object = None,
) -> ParsingSpec:
    spec = tf.feature_column.make_parse_example_spec(feature_columns)
    label = tf.io.FixedLenFeature((1,), label_dtype, label_default)
    return _with_label(spec, label_key, label, weight_column)


def regressor_parse_example_spec(
    feature_columns: Iterable[Object],
    label_key: str,
    label_dtype: DType = tf.float32,
    label_default: Object = None,
    label_dimension: int = 1,
    weight_column: Object = None,
) -> ParsingSpec:
    """Makes the parsing spec for feature columns and a label of shape [label_dimension]."""
    spec = tf.compat.v1.feature_column.make_parse_example_spec(feature_columns)
    label = tf.io.FixedLenFeature((label_dimension,), label_dtype, label_default)
    return _with_label(spec, label_key, label, weight_column)


def regressor_parse_example_spec_v2(
    feature_columns: Iterable[Object],
    label_key: str,
    label_dtype: DType = tf.float32,
    label_default: Object = None,
    label_dimension: int = 1,
    weight_column: Object = None,
) -> ParsingSpec:
    spec = tf.feature_column.make_parse_example_spec(feature_columns)
    label = tf.io.FixedLenFeature((label_dimension,), label_dtype, label_default)
    return _with_label(spec, label_key, label, weight_column)


def _with_label(
    spec: ParsingSpec, label_key: str, label: Object, weight_column: Object
) -> ParsingSpec:
    _check_no_feature("label", label_key, spec)
    spec[label_key] = label
    if weight_column is None:
        return spec
    if isinstance(weight_column, str):
        weight_column = tf.feature_column.numeric_column(weight_column)
    if "NumericColumn" not in class_names(weight_column):
        raise errors.InvalidSpec(
            f"`weight_column` must be a numeric column or its key, got {weight_column!r}."
        )
    _check_no_feature("weight", weight_column.key, spec)
    return {**spec, **weight_column.parse_example_spec}


def _check_no_feature(what: str, key: str, spec: ParsingSpec) -> None:
    if key in spec:
        raise errors.InvalidSpec(
            f"The {what} {key!r} must not be a feature as well; features are "
            f"{', '.join(sorted(spec))}. Rename this key."
        )
