"""Lets `verify` see the values of each training step of a `TableModel`."""

from __future__ import annotations

from typing import Protocol

from tf2_engine.types import Object, Tensor


class Observer(Protocol):
    """Gets tensors while a step is traced, and returns the tensors that the step uses instead."""

    def activation(self, key: str, value: Tensor) -> Tensor:
        """Takes the activations of a feature, [batch, dim] or [batch, positions, dim] float32."""

    def gradient(self, name: str, value: Object) -> Object:
        """Takes the gradient that an optimizer applies to a variable, by its checkpoint name."""
