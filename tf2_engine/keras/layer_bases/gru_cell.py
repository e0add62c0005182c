"""The GRU cell of `tf.compat.v1.nn.rnn_cell` as a cell for `tf.keras.layers.RNN`."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf2_engine.keras.layer_settings import Arguments, Configurable
from tf2_engine.types import Tensor


class GRUCellBase(Configurable):
    """A GRU with the variables of `tf.compat.v1.nn.rnn_cell.GRUCell`.

        layer = tf.keras.layers.RNN(GRUCell(24), name="rnn")

    With reset gate r and update gate u = sigmoid([x, h] gates), and the candidate c = tanh([x, r h]
    candidate), the state becomes u h + (1 - u) c (Cho et al., 2014). This equals
    `tf.keras.layers.GRUCell` with `reset_after=False`, except for the layout of the variables and
    the initial bias of the gates, which is 1.
    """

    def __init__(self, units: int, name: str = "gru_cell", **options: object) -> None:
        super().__init__(name=name, **options)  # type: ignore[call-arg]
        self._arguments = Arguments({"units": units})
        self.units = self.state_size = self.output_size = units
        dense = self._dense_class  # type: ignore[attr-defined]
        self.gates = dense(2 * units, "sigmoid", bias_initializer="ones", name="gates")
        self.candidate = dense(units, "tanh", name="candidate")

    def build(self, shape: Sequence[int]) -> None:
        for layer in (self.gates, self.candidate):
            with tf.name_scope(layer.name):
                layer.build((None, shape[-1] + self.units))
        self.built = True

    def call(
        self, inputs: Tensor, states: list[Tensor], training: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Returns the output, [batch, units], and the new state, which is the same."""
        state = states[0]
        reset, update = tf.split(self.gates(tf.concat([inputs, state], 1)), 2, 1)
        candidate = self.candidate(tf.concat([inputs, reset * state], 1))
        new = update * state + (1 - update) * candidate
        return new, [new]
