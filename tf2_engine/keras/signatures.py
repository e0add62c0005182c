"""The signatures of an export: the inputs that clients send, and the outputs that they receive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from tf2_engine.types import Tensor

INPUTS = "inputs"
"""TensorFlow Serving's name for the Examples to classify or regress."""

Specs = Mapping[str, tf.TensorSpec]


class OfExamples(NamedTuple):
    """The outputs of a signature whose only input is serialized Examples, called "inputs"."""

    outputs: dict[str, Tensor]


Outputs = dict[str, Tensor] | OfExamples


def request_of(signature: Outputs, specs: Specs) -> Specs | None:
    """Maps a signature's input keys to specs; None if it cannot take the clients' inputs."""
    if not isinstance(signature, OfExamples):
        # Clients send inputs by key. The names of specs do not matter.
        return {key: tf.TensorSpec(each.shape, each.dtype, key) for key, each in specs.items()}
    (only, *others) = specs.values()
    if others or only.dtype != tf.string:
        return None
    return {INPUTS: tf.TensorSpec(only.shape, only.dtype, INPUTS)}


def outputs_of(signature: Outputs) -> dict[str, Tensor]:
    return signature.outputs if isinstance(signature, OfExamples) else signature
