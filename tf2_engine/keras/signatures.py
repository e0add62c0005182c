"""The signatures of an export: the inputs that servers send, and the outputs that they get."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from tf2_engine.types import Tensor

INPUTS = "inputs"
"""The name that TensorFlow Serving gives the Examples that it classifies or regresses."""

Specs = Mapping[str, tf.TensorSpec]


class OfExamples(NamedTuple):
    """The outputs of a signature that takes serialized Examples alone, under the key "inputs"."""

    outputs: dict[str, Tensor]


Outputs = dict[str, Tensor] | OfExamples


def request_of(signature: Outputs, specs: Specs) -> Specs | None:
    """Returns the inputs of a signature by key; None if it cannot take those of servers.

    Args:
        specs: what servers send, by key.
    """
    if not isinstance(signature, OfExamples):
        # Servers send inputs by their keys, whatever the names of the specs.
        return {key: tf.TensorSpec(each.shape, each.dtype, key) for key, each in specs.items()}
    (only, *others) = specs.values()
    if others or only.dtype != tf.string:
        return None
    return {INPUTS: tf.TensorSpec(only.shape, only.dtype, INPUTS)}


def outputs_of(signature: Outputs) -> dict[str, Tensor]:
    """Returns the outputs of a signature by key."""
    return signature.outputs if isinstance(signature, OfExamples) else signature
