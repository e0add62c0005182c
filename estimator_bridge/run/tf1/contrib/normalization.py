"""Normalization of activations: over each sample, each of its channels, or the batch."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.run.tf1.contrib.arg_scopes import add_arg_scope
from estimator_bridge.run.tf1.contrib.layer_variables import Activation, Layer, layer_of
from tf2_engine.types import Nest, Object, Tensor, TensorLike, Variable


@add_arg_scope
def layer_norm(
    inputs: TensorLike,
    center: bool = True,
    scale: bool = True,
    activation_fn: Activation | None = None,
    reuse: bool | None = None,
    variables_collections: Nest = None,
    outputs_collections: str | None = None,
    trainable: bool = True,
    begin_norm_axis: int = 1,
    begin_params_axis: int = -1,
    scope: Object = None,
) -> Tensor:
    """Normalizes each sample: (x - mean) / sqrt(variance + 1e-12) * gamma + beta.

    Reference: Ba et al., 2016. The variables are `LayerNorm/beta` and `LayerNorm/gamma`.

    Args:
        inputs: [batch, ...]; the rank is known.
        center, scale: whether there is a beta, a gamma.
        activation_fn: applied to the result.
        begin_norm_axis: mean and variance are over this axis and all after it.
        begin_params_axis: beta and gamma have the shape from this axis on.
        scope: of the variables; None is "LayerNorm", with a number if it is taken.

    Raises:
        InvalidInput: the rank is not known, or has no such axis; or the size of an axis that beta
            and gamma have is not known.
    """
    with layer_of(locals(), "LayerNorm") as layer:
        inputs, rank = layer.inputs, layer.inputs.shape.rank
        if rank is None:
            raise errors.InvalidInput(f"layer_norm: Inputs {inputs.name} has undefined rank.")
        if begin_norm_axis < 0:
            begin_norm_axis += rank
        if begin_params_axis >= rank or begin_norm_axis >= rank:
            raise errors.InvalidInput(
                f"layer_norm: begin_params_axis ({begin_params_axis}) and begin_norm_axis "
                f"({begin_norm_axis}) must be < rank(inputs) ({rank})."
            )
        shape = inputs.shape[begin_params_axis:]
        if not shape.is_fully_defined():
            raise errors.InvalidInput(
                f"layer_norm: Inputs {inputs.name}: shape(inputs)[{begin_params_axis}:] is not "
                f"fully defined: {inputs.shape}."
            )
        beta = layer.variable("beta", shape, tf.zeros_initializer()) if center else None
        gamma = layer.variable("gamma", shape, tf.ones_initializer()) if scale else None
        axes = list(range(begin_norm_axis, rank))
        # float16 has no 1e-12.
        epsilon = 1e-3 if layer.dtype == tf.float16 else 1e-12
        return _by_own_moments(layer, axes, beta, gamma, epsilon)


@add_arg_scope
def instance_norm(
    inputs: TensorLike,
    center: bool = True,
    scale: bool = True,
    epsilon: float = 1e-6,
    activation_fn: Activation | None = None,
    param_initializers: Mapping[str, Object] | None = None,
    reuse: bool | None = None,
    variables_collections: Nest = None,
    outputs_collections: str | None = None,
    trainable: bool = True,
    data_format: str = "NHWC",
    scope: Object = None,
) -> Tensor:
    """Normalizes each channel of each sample: (x - mean) / sqrt(variance + epsilon) * gamma + beta.

    Reference: Ulyanov et al., 2016. The variables are `InstanceNorm/beta` and
    `InstanceNorm/gamma`, [channels].

    Args:
        inputs: [batch, ..., channels], or with data_format="NCHW" [batch, channels, ...].

    Raises:
        InvalidInput: the rank is not known, or the number of channels.
    """
    with layer_of(locals(), "InstanceNorm") as layer:
        inputs, rank = layer.inputs, layer.inputs.shape.rank
        axis = 1 if data_format.startswith("NC") else (rank or 0) - 1
        if rank is None or inputs.shape[axis] is None:
            raise errors.InvalidInput(
                f"instance_norm: the rank and the channels of {inputs.name} must be known; its "
                f"shape is {inputs.shape}."
            )
        channels = int(inputs.shape[axis])
        shape = [channels if each == axis else 1 for each in range(rank)]

        def parameter(name: str, default: Object) -> Tensor:
            initializer = (param_initializers or {}).get(name, default)
            return tf.reshape(layer.variable(name, [channels], initializer), shape)

        beta = parameter("beta", tf.zeros_initializer()) if center else None
        gamma = parameter("gamma", tf.ones_initializer()) if scale else None
        axes = [each for each in range(1, rank) if each != axis]
        return _by_own_moments(layer, axes, beta, gamma, epsilon)


def _by_own_moments(
    layer: Layer, axes: Sequence[int], beta: Tensor | None, gamma: Tensor | None, epsilon: float
) -> Tensor:
    """Returns the outputs of a layer that normalizes by mean and variance over some axes."""
    inputs = layer.inputs
    mean, variance = tf.nn.moments(inputs, axes, keep_dims=True)
    outputs = tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, epsilon)
    outputs.set_shape(inputs.shape)
    return layer.finished(outputs)


@add_arg_scope
def batch_norm(
    inputs: TensorLike,
    decay: float = 0.999,
    center: bool = True,
    scale: bool = False,
    epsilon: float = 0.001,
    activation_fn: Activation | None = None,
    param_initializers: Mapping[str, Object] | None = None,
    param_regularizers: Mapping[str, Object] | None = None,
    updates_collections: str | None = tf.GraphKeys.UPDATE_OPS,
    is_training: Object = True,
    reuse: bool | None = None,
    variables_collections: Nest = None,
    outputs_collections: str | None = None,
    trainable: bool = True,
    batch_weights: Object = None,
    fused: bool | None = None,
    data_format: str = "NHWC",
    zero_debias_moving_mean: bool = False,
    scope: Object = None,
    renorm: bool = False,
    renorm_clipping: Object = None,
    renorm_decay: float = 0.99,
    adjustment: Object = None,
) -> Tensor:
    """Normalizes by the batch in training, and by moving averages otherwise.

        training:  (x - mean) / sqrt(variance + epsilon) * gamma + beta
                   moving <- moving - (1 - decay) * (moving - that of the batch)

    Reference: Ioffe and Szegedy, 2015. With rank 2 and 4 the moving variance is that of a sample,
    n / (n - 1), as TensorFlow's fused op has it. The variables are `BatchNorm/beta`, `gamma`,
    `moving_mean` and `moving_variance`, of float32.

    Args:
        inputs: [batch, ..., channels], or [batch, channels, ...] for data_format "NCHW".
        updates_collections: gets the ops that update the averages, which the train_op has to run;
            None runs them before the outputs are there.
        is_training: a bool, or a tensor of one.
        fused: whether TensorFlow's fused op computes ranks 2 and 4; None is True.
        scope: of the variables; None is "BatchNorm", with a number if it is taken.

    Raises:
        InvalidInput: `batch_weights`, `renorm`, `adjustment` or `zero_debias_moving_mean` is set,
            which are not supported; or rank or channels are not known.
    """
    _check_supported(
        batch_weights=batch_weights,
        renorm=renorm,
        adjustment=adjustment,
        zero_debias_moving_mean=zero_debias_moving_mean,
    )
    if data_format not in ("NCHW", "NHWC"):
        raise errors.InvalidInput(
            f"batch_norm: `data_format`={data_format!r}; data_format has to be either NCHW or NHWC."
        )
    with layer_of(locals(), "BatchNorm") as layer:
        inputs, rank = layer.inputs, layer.inputs.shape.rank
        axis = 1 if data_format == "NCHW" else -1
        channels = None if rank is None else inputs.shape.as_list()[axis]
        if channels is None:
            raise errors.InvalidInput(
                f"batch_norm: rank and channels of the inputs must be known, got {inputs.shape}."
            )
        initializers, regularizers = param_initializers or {}, param_regularizers or {}

        def parameter(name: str, default: Object, learned: bool = True) -> Variable:
            initializer, regularizer = initializers.get(name, default), regularizers.get(name)
            return layer.variable(name, [channels], initializer, regularizer, tf.float32, learned)

        zeros, ones = tf.zeros_initializer(), tf.ones_initializer()
        beta = parameter("beta", zeros) if center else tf.zeros([channels])
        gamma = parameter("gamma", ones) if scale else tf.ones([channels])
        averages = (
            parameter("moving_mean", zeros, learned=False),
            parameter("moving_variance", ones, learned=False),
        )
        function = _fused if fused in (None, True) and rank in (2, 4) else _by_moments
        normalize = functools.partial(function, inputs, gamma, beta, averages, epsilon, data_format)
        known = tf.get_static_value(tf.convert_to_tensor(is_training))
        if known is None:
            outputs, *statistics = tf.cond(
                is_training, lambda: normalize(True), lambda: normalize(False)
            )
            # Without training the statistics are the averages, which stay as they are.
            rate = tf.where(is_training, 1.0 - decay, 0.0)
        else:
            outputs, *statistics = normalize(bool(known))
            rate = 1.0 - decay
        if known is None or known:
            outputs = _with_updates(outputs, averages, statistics, rate, updates_collections)
        outputs.set_shape(inputs.shape)
        return layer.finished(outputs)


def _with_updates(
    outputs: Tensor,
    averages: Sequence[Variable],
    statistics: Sequence[Tensor],
    rate: TensorLike,
    collections: str | None,
) -> Tensor:
    """Moves the averages towards the statistics of the batch, or collects the ops that do."""
    updates = [
        average.assign_sub((average - statistic) * rate)
        for average, statistic in zip(averages, statistics, strict=True)
    ]
    if collections is None:
        with tf.control_dependencies(updates):
            return tf.identity(outputs)
    for update in updates:
        tf.add_to_collections(collections, update)
    return outputs


def _check_supported(**settings: Object) -> None:
    for name, value in settings.items():
        if value is not None and value is not False:
            raise errors.InvalidInput(
                f"batch_norm: `{name}`={value!r} is not supported. Leave it out, or use "
                "tf.layers.batch_normalization."
            )


def _fused(
    inputs: Tensor,
    gamma: Tensor,
    beta: Tensor,
    averages: Sequence[Tensor],
    epsilon: float,
    data_format: str,
    training: bool,
) -> list[Tensor]:
    """Returns outputs, mean and variance by TensorFlow's fused op, which takes images alone."""
    images = inputs
    if inputs.shape.rank == 2:
        sizes = inputs.shape.as_list()
        images = tf.reshape(inputs, [-1, 1, 1, sizes[1]])
        data_format = "NHWC"
    mean, variance = (None, None) if training else averages
    outputs, mean, variance = tf.nn.fused_batch_norm(
        images,
        gamma,
        beta,
        mean=mean,
        variance=variance,
        epsilon=epsilon,
        data_format=data_format,
        is_training=training,
    )
    return [tf.reshape(outputs, tf.shape(inputs)), mean, variance]


def _by_moments(
    inputs: Tensor,
    gamma: Tensor,
    beta: Tensor,
    averages: Sequence[Tensor],
    epsilon: float,
    data_format: str,
    training: bool,
) -> list[Tensor]:
    """Returns outputs, mean and variance of inputs of any rank."""
    rank = inputs.shape.rank
    axis = 1 if data_format == "NCHW" else rank - 1
    mean, variance = averages
    if training:
        axes = [each for each in range(rank) if each != axis]
        mean, variance = tf.nn.moments(tf.cast(inputs, tf.float32), axes)
    shape = [-1 if each == axis else 1 for each in range(rank)]
    parts = [
        tf.cast(tf.reshape(each, shape), inputs.dtype) for each in (mean, variance, beta, gamma)
    ]
    outputs = tf.nn.batch_normalization(inputs, *parts, epsilon)
    return [outputs, tf.convert_to_tensor(mean), tf.convert_to_tensor(variance)]
