"""Reads the layers that a model_fn creates and calls: their Keras classes and inputs."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator, Mapping

from estimator_bridge.migrate.keras_form import rules
from estimator_bridge.migrate.keras_form.program_text.source import Source, arguments, nodes_in


@dataclasses.dataclass(frozen=True)
class LayerCall:
    """A call that applies a layer to inputs. Arguments are pairs (keyword or "", node).

    Attributes:
        kind: the word in the legacy names of unnamed layers, such as "dense" in "dense_1".
        construction: the layer's class, and its arguments except the name.
        extra: text to append to `inputs`, the arguments with which the layer is called.
    """

    call: ast.Call
    kind: str
    construction: tuple[str, tuple[tuple[str, ast.expr], ...]]
    inputs: tuple[tuple[str, ast.expr], ...]
    name: ast.expr | None = None
    extra: str = ""
    options: str = ""

    @property
    def config(self) -> list[ast.expr]:
        nodes = [node for _, node in self.construction[1]]
        return nodes if self.name is None else [*nodes, self.name]


_COMMON = "activation use_bias kernel_initializer bias_initializer"
_FUNCTIONS: Mapping[str, tuple[str, str]] = {
    "dense": ("Dense", f"inputs units {_COMMON}"),
    "dropout": ("Dropout", "inputs rate noise_shape seed training"),
    "batch_normalization": (
        "BatchNormalization",
        "inputs axis momentum epsilon center scale beta_initializer gamma_initializer "
        "moving_mean_initializer moving_variance_initializer beta_regularizer gamma_regularizer "
        "beta_constraint gamma_constraint training",
    ),
    "flatten": ("Flatten", "inputs"),
    "conv1d": ("Conv1D", "inputs filters kernel_size strides padding"),
    "conv2d": ("Conv2D", "inputs filters kernel_size strides padding"),
    "max_pooling1d": ("MaxPooling1D", "inputs pool_size strides padding"),
    "max_pooling2d": ("MaxPooling2D", "inputs pool_size strides padding"),
    "average_pooling2d": ("AveragePooling2D", "inputs pool_size strides padding"),
}
"""For each function of `tf.layers`: the Keras class, and the function's arguments in order."""

_KEYWORDS = frozenset(
    f"{_COMMON} trainable data_format dilation_rate kernel_constraint bias_constraint "
    "kernel_regularizer bias_regularizer".split()
)

_OF_COLUMNS: Mapping[str, tuple[str, str]] = {
    "keras.layers.DenseFeatures": ("DenseFeatures", "dense_features"),
    "keras.experimental.SequenceFeatures": ("SequenceFeatures", "sequence_features"),
    "feature_column.input_layer": ("DenseFeatures", "input_layer"),
}

_KERAS = (
    *("Dense", "Dropout", "BatchNormalization", "LayerNormalization", "Activation", "Flatten"),
    *("Conv1D", "Conv2D", "LSTM", "GRU", "Embedding", "Bidirectional"),
)


def read(source: Source, node: ast.AST) -> LayerCall | None:
    if not isinstance(node, ast.Call):
        return None
    short = source.called(node)
    if short.startswith("layers."):
        return _of_function(source, node, short.removeprefix("layers."))
    if short == "nn.dynamic_rnn":
        return _dynamic_rnn(source, node)
    if short == "feature_column.input_layer":
        return _input_layer(source, node)
    return _of_layer(source, node, node.func) if isinstance(node.func, ast.Call) else None


def below(source: Source, node: ast.AST) -> Iterator[LayerCall]:
    return filter(None, (read(source, each) for each in nodes_in(node, ast.Call)))


def _input_layer(source: Source, call: ast.Call) -> LayerCall | None:
    by_name = rules.known_arguments(
        source, call, "features feature_columns", "features feature_columns"
    )
    layer_class = (source.need(rules.KERAS, "DenseFeatures"), (("", by_name["feature_columns"]),))
    return LayerCall(call, "input_layer", layer_class, (("", by_name["features"]),))


def _of_layer(source: Source, call: ast.Call, inner: ast.Call) -> LayerCall | None:
    """Reads a call such as `Dense(1)(net)`."""
    made_by = source.called(inner)
    short = made_by.rpartition(".")[2]
    if made_by in _OF_COLUMNS:
        new, kind = _OF_COLUMNS[made_by]
        source.need(rules.KERAS, new)
    elif made_by.startswith("keras.layers.") and short in _KERAS:
        new, kind = f"tf.keras.layers.{short}", rule_kind(short)
    else:
        return None
    config = tuple((key, value) for key, value in _written(inner) if key != "name")
    name = next((each.value for each in inner.keywords if each.arg == "name"), None)
    return LayerCall(call, kind, (new, config), _written(call), name)


def rule_kind(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _of_function(source: Source, call: ast.Call, name: str) -> LayerCall | None:
    if name not in _FUNCTIONS:
        return None
    new, order = _FUNCTIONS[name]
    by_name, others = arguments(call, order.split())
    positional = order.split()[: len(call.args)]
    config = [
        ("" if key in positional else key, value)
        for key, value in by_name.items()
        if key not in ("inputs", "training")
    ]
    layer_name = None
    for each in others:
        key = getattr(each, "arg", None)
        if key == "name":
            layer_name = each.value  # type: ignore[union-attr]
        elif key in _KEYWORDS:
            config.append((str(key), each.value))  # type: ignore[union-attr]
        else:
            why = f"its argument {key or 'without a name'} is not supported"
            source.problem(call, "keras-layer-argument", why, rules.WITHOUT_IT)
    inputs = [("", by_name["inputs"])] if "inputs" in by_name else []
    if "training" in by_name:
        inputs.append(("training", by_name["training"]))
    return LayerCall(
        *(call, name, (f"tf.keras.layers.{new}", tuple(config)), tuple(inputs), layer_name)
    )


def _written(call: ast.Call) -> tuple[tuple[str, ast.expr], ...]:
    keyed = ((str(each.arg), each.value) for each in call.keywords)
    return (*(("", each) for each in call.args), *keyed)


def _dynamic_rnn(source: Source, call: ast.Call) -> LayerCall | None:
    order = (
        "cell inputs sequence_length initial_state dtype parallel_iterations swap_memory "
        "time_major scope"
    )
    lost = "initial_state time_major scope"
    by_name = rules.known_arguments(source, call, order, unused="", lost=lost)
    if not {"cell", "inputs"} <= by_name.keys():
        return None
    inputs, extra = by_name["inputs"], ""
    if "sequence_length" in by_name:
        length = ast.unparse(by_name["sequence_length"])
        extra = f"mask=tf.sequence_mask({length}, tf.shape({ast.unparse(inputs)})[1])"
    layer_class = ("tf.keras.layers.RNN", (("", by_name["cell"]),))
    options = "return_sequences=True, return_state=True, zero_output_for_mask=True"
    return LayerCall(call, "rnn", layer_class, (("", inputs),), extra=extra, options=options)
