"""Lets `verify` observe and replace the values of each training step of a `TableModel`."""

from __future__ import annotations

from typing import Protocol

from tf2_engine.types import Object, Tensor


class Observer(Protocol):
    """Receives tensors while a step is traced, and returns tensors that the step uses instead."""

    def activation(self, key: str, value: Tensor) -> Tensor:
        """Receives a feature's activations, [batch, dim] or [batch, positions, dim] float32."""

    def gradient(self, name: str, value: Object) -> Object:
        """Receives the gradient that an optimizer applies to the variable `name` of checkpoints."""
