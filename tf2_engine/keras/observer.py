"""Lets `verify` look at the values of each training step of a `TableModel`."""

from __future__ import annotations

from typing import Protocol

from tf2_engine.types import Object, Tensor


class Observer(Protocol):
    """Sees values where a step is traced, and returns those that take their places."""

    def activation(self, key: str, value: Tensor) -> Tensor:
        """Returns the activations of a feature, [batch, dim] or [batch, positions, dim] float32."""

    def gradient(self, name: str, value: Object) -> Object:
        """Returns the gradient that an optimizer applies to a variable, by its checkpoint name."""
