"""The inputs of exported models: `ServingInputReceiver`, and functions that build receivers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.legacy.requirements import checked
from tf2_engine.types import Nest, Object, Tensor

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
        receiver_tensors_alternatives: maps names to other sets of placeholders that may be fed
            instead, or None. The export has signatures for each set.

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

    `feature_spec` has the form of `tf.io.parse_example`.
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

    A placeholder has the dtype and shape of its feature, except for the batch size:
    `default_batch_size`, or unknown if that is None.
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
            "Features and labels must have distinct keys, by which they are fed, but share "
            f"{', '.join(map(repr, shared))}. Rename the keys of the labels."
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
