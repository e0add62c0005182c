"""Converts serving receivers of TensorFlow 1 into functions that a Keras model exports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.keras.saved_model import resources_of
from tf2_engine.types import Function, Nest, Object, Tensor


class ServingInputReceiver(NamedTuple):
    """The result of a receiver function: features, and the placeholders that servers feed.

    Attributes:
        features: a dict of tensors. The key of a single tensor is "feature".
        receiver_tensors: a dict of placeholders. The key of a single placeholder is "input".
    """

    features: Nest
    receiver_tensors: Tensor | Mapping[str, Tensor]


class TensorServingInputReceiver(ServingInputReceiver):
    """A `ServingInputReceiver` for a model that takes one tensor instead of a dict."""


def graph_receiver(
    serving_input_receiver_fn: Callable[[], ServingInputReceiver],
) -> tuple[Object, ...]:
    """Converts a receiver function to input specs and a function that computes features.

        model.export_saved_model("served", *graph_receiver(serving_input_receiver_fn))

    Args:
        serving_input_receiver_fn: creates placeholders of TensorFlow 1, and computes features from
            them with any ops. The function runs once, in a separate graph. Servers send a sparse
            placeholder as three tensors, NAME_indices, NAME_values and NAME_dense_shape. The
            function that `parsing_receiver` creates is accepted too.

    Raises:
        WrongType: the function does not return a `ServingInputReceiver`, or receives other tensors
            than dense and sparse placeholders.
    """
    receivers: list[ServingInputReceiver] = []

    def receive() -> None:
        receivers.append(serving_input_receiver_fn())

    graph = tf.compat.v1.wrap_function(receive, [])
    (receiver,) = receivers
    if isinstance(receiver, tuple) and len(receiver) == 2 and callable(receiver[1]):
        return receiver
    if not isinstance(receiver, ServingInputReceiver):
        raise errors.WrongType(
            "serving_input_receiver_fn must return a ServingInputReceiver, of features and "
            f"receiver_tensors; it returned {receiver!r}."
        )
    received = receiver.receiver_tensors
    named = _dense(dict(received) if isinstance(received, Mapping) else {"input": received})
    features: Nest = receiver.features
    if isinstance(features, tf.Tensor) and not isinstance(receiver, TensorServingInputReceiver):
        features = {"feature": features}
    from_feeds = graph.prune([*named.values()], features)
    specs = {key: tf.TensorSpec(each.shape, each.dtype, key) for key, each in named.items()}
    return (
        specs,
        lambda request: from_feeds(*(request[key] for key in named)),
        *resources_of(serving_input_receiver_fn),
    )


def _dense(received: Mapping[str, Object]) -> dict[str, Tensor]:
    dense: dict[str, Tensor] = {}
    for name, each in received.items():
        if isinstance(each, tf.SparseTensor):
            parts = ("indices", "values", "dense_shape")
            dense.update({f"{name}_{part}": getattr(each, part) for part in parts})
        elif isinstance(each, tf.Tensor):
            dense[name] = each
        else:
            raise errors.WrongType(
                f"Receiver tensor {name!r} is {each!r}. Make the placeholder dense or sparse, and "
                "convert it to a ragged tensor in serving_input_receiver_fn."
            )
    return dense


def raw_receiver(
    features: Mapping[str, Object], default_batch_size: int | None = None
) -> Callable[[], tuple[dict[str, tf.TensorSpec], Function]]:
    """Creates a receiver of features without parsing, for `TableModel.export_saved_model`.

    Args:
        features: `tf.TensorSpec`s or tensors whose first dimension is the batch.
        default_batch_size: None allows any batch size.
    """
    specs = {
        key: tf.TensorSpec([default_batch_size, *each.shape[1:]], each.dtype, key)
        for key, each in features.items()
    }
    return lambda: (specs, lambda request: request)
