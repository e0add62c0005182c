"""The canned estimators that become Keras models: their arguments, under names that all share."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import NamedTuple

from estimator_bridge.migrate.keras_form.program_text.source import Source

_CLASSIFIER = "n_classes weight_column label_vocabulary"
_REGRESSOR = "label_dimension weight_column"

_DNN = (
    "optimizer activation_fn dropout input_layer_partitioner config warm_start_from "
    "loss_reduction batch_norm"
)
_LINEAR = "optimizer config partitioner warm_start_from loss_reduction sparse_combiner"
_COMBINED = (
    "model_dir linear_feature_columns linear_optimizer dnn_feature_columns dnn_optimizer "
    "dnn_hidden_units dnn_activation_fn dnn_dropout"
)
_OF_COMBINED = (
    "input_layer_partitioner config warm_start_from loss_reduction batch_norm "
    "linear_sparse_combiner"
)

_RECURRENT = (
    "sequence_feature_columns context_feature_columns units cell_type rnn_cell_fn return_sequences"
)

CLASSES: Mapping[str, str] = {
    "DNNClassifier": f"hidden_units feature_columns model_dir {_CLASSIFIER} {_DNN}",
    "DNNRegressor": f"hidden_units feature_columns model_dir {_REGRESSOR} {_DNN}",
    "LinearClassifier": f"feature_columns model_dir {_CLASSIFIER} {_LINEAR}",
    "LinearRegressor": f"feature_columns model_dir {_REGRESSOR} {_LINEAR}",
    "DNNLinearCombinedClassifier": f"{_COMBINED} {_CLASSIFIER} {_OF_COMBINED}",
    "DNNLinearCombinedRegressor": f"{_COMBINED} {_REGRESSOR} {_OF_COMBINED}",
    "DNNEstimator": (
        "head hidden_units feature_columns model_dir optimizer activation_fn dropout config "
        "warm_start_from batch_norm"
    ),
    "LinearEstimator": (
        "head feature_columns model_dir optimizer config sparse_combiner warm_start_from"
    ),
    "DNNLinearCombinedEstimator": (f"head {_COMBINED} config batch_norm linear_sparse_combiner"),
    "BaselineClassifier": f"model_dir {_CLASSIFIER} optimizer config loss_reduction",
    "BaselineRegressor": f"model_dir {_REGRESSOR} optimizer config loss_reduction",
    "BaselineEstimator": "head model_dir optimizer config",
    "RNNClassifier": (
        f"{_RECURRENT} model_dir {_CLASSIFIER} optimizer loss_reduction sequence_mask config"
    ),
    "RNNEstimator": f"head {_RECURRENT} model_dir optimizer config",
}
"""The arguments in order, by class; those of TensorFlow 2 lack the partitioners."""

_PARTITIONERS = ("input_layer_partitioner", "partitioner")

NOT_CARRIED = ("KMeans",)
"""Canned estimators whose model is not carried."""

_PARTS: Mapping[str, tuple[str, ...]] = {
    "DNNLinear": ("dnn", "linear"),
    "DNN": ("dnn",),
    "Linear": ("linear",),
    "Baseline": ("baseline",),
    "RNN": ("rnn",),
}
"""The parts of a model by the beginning of its class, of which the first one counts."""

_OF_PART: Mapping[str, str] = {
    "dnn": "feature_columns optimizer hidden_units activation_fn dropout",
    "linear": "feature_columns optimizer sparse_combiner",
    "baseline": "optimizer",
    "rnn": "optimizer",
}
"""The arguments of a part, whose name they begin with in a combined estimator."""


_RATES = {"baseline": "0.3", "rnn": "0.05"}
"""The rates of parts that no other API, and no combined estimator, has otherwise."""

CLIP_NORM = "5.0"
"""To which a recurrent network clips gradients, if its optimizer is given by its name."""


class Canned(NamedTuple):
    """A class of canned estimators.

    Attributes:
        name: such as "DNNClassifier".
        is_v1: whether it is of `tf.compat.v1.estimator`.
    """

    name: str
    is_v1: bool

    @property
    def order(self) -> list[str]:
        """The arguments in order."""
        names = CLASSES[self.name].split()
        return names if self.is_v1 else [each for each in names if each not in _PARTITIONERS]

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that the model may have: "dnn", "linear", "baseline" and "rnn"."""
        return next(parts for name, parts in _PARTS.items() if self.name.startswith(name))

    @property
    def is_combined(self) -> bool:
        """Whether the model may have a linear part and a network."""
        return len(self.parts) > 1

    def shared_name(self, argument: str) -> str:
        """Returns the name of an argument as a combined estimator has it."""
        part, *others = self.parts
        is_of_part = not others and argument in _OF_PART[part].split()
        return f"{part}_{argument}" if is_of_part else argument

    def rate(self, part: str) -> str:
        """Returns the rate of an optimizer that is given by its name; "" is Keras's default.

        Args:
            part: one of `parts`.
        """
        if part in _RATES:
            return _RATES[part]
        if self.is_combined:
            # Of more than 40,000 columns the linear model's would be less.
            return "0.005" if part == "linear" else "0.001"
        if part == "linear":
            return "0.2"
        return "0.05" if self.is_v1 else ""


def canned(source: Source, node: ast.AST) -> Canned | None:
    """Returns the class of a canned estimator that a node makes; None of other nodes."""
    name = class_name(source, node)
    if name not in CLASSES:
        return None
    assert isinstance(node, ast.Call)
    full = source.full(node.func)
    is_v1 = "compat.v1" in full or full.startswith("tensorflow_estimator")
    return Canned(name, is_v1 and not name.startswith("RNN"))  # which TensorFlow 1 has not


def class_name(source: Source, node: ast.AST) -> str:
    """Returns the class of stock's estimators that a node makes; "" of other nodes."""
    short = source.called(node)
    return short.rpartition(".")[2] if short.startswith("estimator.") else ""
