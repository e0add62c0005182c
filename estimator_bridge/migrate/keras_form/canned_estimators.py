"""Lists the canned estimators that become Keras models, and the arguments of each class."""

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
"""The arguments of each class, in order. In TensorFlow 2 the classes have no partitioner
arguments.
"""

_PARTITIONERS = ("input_layer_partitioner", "partitioner")

NOT_CARRIED = ("KMeans",)

_PARTS: Mapping[str, tuple[str, ...]] = {
    "DNNLinear": ("dnn", "linear"),
    "DNN": ("dnn",),
    "Linear": ("linear",),
    "Baseline": ("baseline",),
    "RNN": ("rnn",),
}
"""Maps the start of a class name to the model's parts. The first entry that fits is used."""

_OF_PART: Mapping[str, str] = {
    "dnn": "feature_columns optimizer hidden_units activation_fn dropout",
    "linear": "feature_columns optimizer sparse_combiner",
    "baseline": "optimizer",
    "rnn": "optimizer",
}
"""The arguments of each part. In combined estimators their names begin with the part, as in
`dnn_optimizer`.
"""


_RATES = {"baseline": "0.3", "rnn": "0.05"}
"""The default learning rates of the parts for which TensorFlow 1 and 2 have the same default.

Combined estimators have none of these parts.
"""

CLIP_NORM = "5.0"
"""A recurrent network clips gradients to this norm if its optimizer is given by name."""


class Canned(NamedTuple):
    """A class of canned estimators; `is_v1` is true in `tf.compat.v1.estimator`."""

    name: str
    is_v1: bool

    @property
    def order(self) -> list[str]:
        names = CLASSES[self.name].split()
        return names if self.is_v1 else [each for each in names if each not in _PARTITIONERS]

    @property
    def parts(self) -> tuple[str, ...]:
        return next(parts for name, parts in _PARTS.items() if self.name.startswith(name))

    @property
    def is_combined(self) -> bool:
        return len(self.parts) > 1

    def shared_name(self, argument: str) -> str:
        part, *others = self.parts
        is_of_part = not others and argument in _OF_PART[part].split()
        return f"{part}_{argument}" if is_of_part else argument

    def rate(self, part: str) -> str:
        """Returns the default rate of an optimizer given by name; "" means Keras's default."""
        if part in _RATES:
            return _RATES[part]
        if self.is_combined:
            # The linear model's rate is min(0.005, 1/sqrt(columns)), so it is lower only above
            # 40,000 columns.
            return "0.005" if part == "linear" else "0.001"
        if part == "linear":
            return "0.2"
        return "0.05" if self.is_v1 else ""


def canned(source: Source, node: ast.AST) -> Canned | None:
    name = class_name(source, node)
    if name not in CLASSES:
        return None
    assert isinstance(node, ast.Call)
    full = source.full(node.func)
    is_v1 = "compat.v1" in full or full.startswith("tensorflow_estimator")
    return Canned(name, is_v1 and not name.startswith("RNN"))  # TensorFlow 1 has no RNN estimators


def class_name(source: Source, node: ast.AST) -> str:
    short = source.called(node)
    return short.rpartition(".")[2] if short.startswith("estimator.") else ""
