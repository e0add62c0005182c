"""Makes the variables of layers, and collects their outputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge.run.tf1.contrib.variables import model_variable
from tf2_engine.types import Object, Tensor, Variable

Activation = Callable[[Tensor], Tensor]
Sizes = int | Sequence[int]


class Layer:
    """A layer that is being made in its scope.

    Attributes:
        inputs: as a tensor.
        dtype: of the inputs, and of the variables.
    """

    def __init__(self, arguments: Mapping[str, Object], scope: tf.VariableScope) -> None:
        self.inputs = tf.convert_to_tensor(arguments["inputs"])
        self.dtype = self.inputs.dtype.base_dtype
        self._arguments, self._scope = arguments, scope

    def variable(
        self,
        name: str,
        shape: Object,
        initializer: Object,
        regularizer: Object = None,
        dtype: Object = None,
        learned: bool = True,
    ) -> Variable:
        """Makes a model variable; `variables_collections` are all variables', or by name."""
        collections = self._arguments["variables_collections"]
        if isinstance(collections, Mapping):
            collections = collections.get(name)
        return model_variable(
            name,
            shape=shape,
            dtype=dtype or self.dtype,
            initializer=initializer,
            regularizer=regularizer,
            trainable=self._arguments["trainable"] and learned,
            collections=collections,
        )

    def with_biases(self, outputs: Tensor, channels: int, data_format: str = "NHWC") -> Tensor:
        """Returns the outputs after the normalizer, or else biases, and the activation."""
        arguments = self._arguments
        if arguments["normalizer_fn"] is not None:
            outputs = arguments["normalizer_fn"](outputs, **(arguments["normalizer_params"] or {}))
        elif arguments["biases_initializer"] is not None:
            biases = self.variable(
                "biases",
                [channels],
                arguments["biases_initializer"],
                arguments["biases_regularizer"],
            )
            outputs = tf.nn.bias_add(outputs, biases, data_format=data_format)
        return self.finished(outputs)

    def finished(self, outputs: Tensor) -> Tensor:
        """Returns the outputs after the activation, and adds them to the collections."""
        if self._arguments["activation_fn"] is not None:
            outputs = self._arguments["activation_fn"](outputs)
        collections = self._arguments["outputs_collections"]
        return collect_named_outputs(collections, self._scope.original_name_scope, outputs)


@contextlib.contextmanager
def layer_of(arguments: Mapping[str, Object], default_name: str) -> Iterator[Layer]:
    """Opens the scope of a layer.

    Args:
        arguments: of the layer's function, by name: `inputs`, `scope`, `reuse`, `trainable`, those
            of collections, and those of the ops at the end, which the methods of `Layer` read.
        default_name: of the scope, with a number if it is taken.
    """
    inputs, scope, reuse = (arguments[name] for name in ("inputs", "scope", "reuse"))
    with tf.variable_scope(scope, default_name, [inputs], reuse=reuse) as opened:
        yield Layer(arguments, opened)


def collect_named_outputs(collections: str | None, alias: str, outputs: Tensor) -> Tensor:
    """Adds outputs to collections, in which they are found by `alias`; returns them."""
    if collections:
        vars(outputs).setdefault("aliases", []).append(alias.removesuffix("/"))
        tf.add_to_collections(collections, outputs)
    return outputs
