"""Recurrent cells of `tf.contrib.rnn`, and stacked bidirectional layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from tf2_engine.types import Nest, Object, Tensor


class LSTMBlockCell(tf.nn.rnn_cell.LSTMCell):
    """`LSTMCell` with the arguments of TensorFlow 1's `LSTMBlockCell`.

    Formulas and variable names are the same. A positive `cell_clip` raises Unsupported, because
    TensorFlow 1's gradient ignored the clipping.
    """

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        cell_clip: float | None = None,
        use_peephole: bool = False,
        dtype: Object = None,
        reuse: bool | None = None,
        name: str = "lstm_cell",
    ) -> None:
        if cell_clip is not None and cell_clip > 0:
            raise errors.Unsupported(
                f"LSTMBlockCell: cell_clip={cell_clip} is not supported. Use "
                "tf.nn.rnn_cell.LSTMCell, which also clips, but with a gradient of zero where it "
                "clips."
            )
        settings = {"forget_bias": forget_bias, "reuse": reuse, "name": name, "dtype": dtype}
        super().__init__(num_units, use_peepholes=use_peephole, **settings)


class CudnnCompatibleLSTMCell(LSTMBlockCell):
    """Runs the weights of a `CudnnLSTM` on a CPU. Unlike `LSTMCell`, it adds no forget bias."""

    def __init__(self, num_units: int, reuse: bool | None = None) -> None:
        super().__init__(num_units, 0.0, reuse=reuse, name="cudnn_compatible_lstm_cell")


class LayerNormBasicLSTMCell(tf.nn.rnn_cell.RNNCell):
    """An LSTM cell with layer normalization of gates and state, and dropout of the new content.

        i, j, f, o = the norms of the four parts of [x, h] W
        c <- norm(sigmoid(f + forget_bias) c + sigmoid(i) dropout(activation(j)))
        h <- sigmoid(o) activation(c)

    Without `layer_norm` there are no norms, and W has a bias. References: Ba et al., 2016;
    Semeniuta et al., 2016.
    """

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        input_size: object = None,
        activation: Callable[[Tensor], Tensor] = tf.tanh,
        layer_norm: bool = True,
        norm_gain: float = 1.0,
        norm_shift: float = 0.0,
        dropout_keep_prob: float | Tensor = 1.0,
        dropout_prob_seed: int | None = None,
        reuse: bool | None = None,
    ) -> None:
        super().__init__(_reuse=reuse)
        self._units, self._forget_bias, self._activation = num_units, forget_bias, activation
        self._has_norm, self._gain, self._shift = layer_norm, norm_gain, norm_shift
        self._keep_prob, self._dropout_seed = dropout_keep_prob, dropout_prob_seed

    @property
    def state_size(self) -> tf.nn.rnn_cell.LSTMStateTuple:
        return tf.nn.rnn_cell.LSTMStateTuple(self._units, self._units)

    @property
    def output_size(self) -> int:
        return self._units

    def call(self, inputs: Tensor, state: tuple[Tensor, Tensor]) -> Nest:
        c, h = state
        joined = tf.concat([inputs, h], 1)
        size = 4 * self._units
        kernel = tf.get_variable("kernel", [joined.shape[-1], size], dtype=joined.dtype)
        product = tf.matmul(joined, kernel)
        if not self._has_norm:
            bias = tf.get_variable("bias", [size], dtype=joined.dtype)
            product = tf.nn.bias_add(product, bias)
        gates = zip(
            tf.split(product, 4, 1), ("input", "transform", "forget", "output"), strict=True
        )
        i, j, f, o = (self._normalized(gate, name) for gate, name in gates)
        content = self._activation(j)
        if not isinstance(self._keep_prob, float) or self._keep_prob < 1:
            rate = 1 - self._keep_prob
            content = tf.nn.dropout(content, rate=rate, seed=self._dropout_seed)
        c = c * tf.sigmoid(f + self._forget_bias) + tf.sigmoid(i) * content
        c = self._normalized(c, "state")
        h = self._activation(c) * tf.sigmoid(o)
        return h, tf.nn.rnn_cell.LSTMStateTuple(c, h)

    def _normalized(self, values: Tensor, scope: str) -> Tensor:
        if not self._has_norm:
            return values
        with tf.variable_scope(scope):
            gamma, beta = (
                tf.get_variable(name, [self._units], values.dtype, tf.constant_initializer(start))
                for name, start in (("gamma", self._gain), ("beta", self._shift))
            )
        mean, variance = tf.nn.moments(values, [1], keepdims=True)
        # 1e-12 is zero in float16.
        epsilon = 1e-3 if values.dtype == tf.float16 else 1e-12
        return tf.nn.batch_normalization(values, mean, variance, beta, gamma, epsilon)


def stack_bidirectional_dynamic_rnn(
    cells_fw: Sequence[tf.nn.rnn_cell.RNNCell],
    cells_bw: Sequence[tf.nn.rnn_cell.RNNCell],
    inputs: Tensor,
    initial_states_fw: Sequence[Nest] | None = None,
    initial_states_bw: Sequence[Nest] | None = None,
    dtype: Object = None,
    sequence_length: Tensor | None = None,
    parallel_iterations: int | None = None,
    time_major: bool = False,
    scope: Object = None,
    swap_memory: bool = False,
) -> tuple[Tensor, tuple[Nest, ...], tuple[Nest, ...]]:
    """Stacks layers of `bidirectional_dynamic_rnn`. Each reads both outputs of the previous layer.

    Returns the last layer's outputs, concatenated, and each layer's forward and backward states.
    """
    none = [None] * len(cells_fw)
    layers = zip(
        *(cells_fw, cells_bw, initial_states_fw or none, initial_states_bw or none), strict=True
    )
    states = []
    with tf.variable_scope(scope or "stack_bidirectional_rnn"):
        for number, (forward, backward, start_fw, start_bw) in enumerate(layers):
            with tf.variable_scope(f"cell_{number}"):
                outputs, ends = tf.nn.bidirectional_dynamic_rnn(
                    *(forward, backward, inputs, sequence_length, start_fw, start_bw, dtype),
                    *(parallel_iterations, swap_memory, time_major),
                )
                inputs = tf.concat(outputs, 2)
                states.append(ends)
    forward_states, backward_states = zip(*states, strict=True)
    return inputs, forward_states, backward_states
