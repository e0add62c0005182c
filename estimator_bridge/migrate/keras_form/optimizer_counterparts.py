"""Optimizers of TensorFlow 1, and the Keras optimizers that compute the same results."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import NamedTuple

from estimator_bridge.migrate.keras_form.program_text.source import Source, call_text, renamed

KERAS = "tf2_engine.keras"
_EMB = "tf.tpu.experimental.embedding"

FTRL = (
    "learning_rate_power initial_accumulator_value l1_regularization_strength "
    "l2_regularization_strength"
)
"""The arguments of Ftrl besides the learning rate. All Ftrl classes use these names."""


class Counterpart(NamedTuple):
    """An optimizer in the new program.

    Attributes:
        new: the name of a class in `tf`, or in `tf2_engine` if `tf` lacks it.
        arguments: the arguments to keep, in order; "old=new" renames one, and "old=" drops one that
            does not affect results. The learning rate comes first and is passed without a name.
        default: an argument to write if the program omits it, because the new default differs.
        rate: the old default of the learning rate, if the new default differs.
        starts: the old initial values of slots, if the new initial values differ.
    """

    new: str
    arguments: str = "learning_rate"
    default: str = ""
    rate: str = ""
    starts: str = ""

    @property
    def names(self) -> Mapping[str, str]:
        return renamed(self.arguments)

    def parts(self, source: Source, by_name: Mapping[str, ast.expr], rate: str = "") -> list[str]:
        """Returns the code of the new arguments; `rate` replaces the learning rate."""
        names, code = self.names, {key: source.code(value) for key, value in by_name.items()}
        first = rate or code.get("learning_rate", self.rate)
        parts = [first] if first else []
        for old, new in names.items():
            if old in code and new and old != "learning_rate":
                parts.append(f"{new}={code[old]}")
        if self.default and self.default.partition("=")[0] not in map(names.get, by_name):
            parts.append(self.default)
        return parts

    def written(self, source: Source, parts: list[str]) -> str:
        if self.new.startswith("tf."):
            return call_text(self.new, parts, 4, "self.compile(optimizer=)")
        return of_rule(source, self.new, parts, self.starts)


_LOCKING = "use_locking= name="

OF_TRAIN: Mapping[str, Counterpart] = {
    "train.AdamOptimizer": Counterpart(
        *("tf.keras.optimizers.Adam", "learning_rate beta1=beta_1 beta2=beta_2 epsilon"),
        *("epsilon=1e-08", "0.001"),
    ),
    "train.AdagradOptimizer": Counterpart(
        *("tf.keras.optimizers.Adagrad", "learning_rate initial_accumulator_value", "epsilon=0.0"),
    ),
    "train.FtrlOptimizer": Counterpart("tf.keras.optimizers.Ftrl", f"learning_rate {FTRL}"),
    "train.GradientDescentOptimizer": Counterpart("tf.keras.optimizers.SGD"),
    "train.MomentumOptimizer": Counterpart(
        "Momentum", f"learning_rate momentum {_LOCKING} use_nesterov"
    ),
    "train.RMSPropOptimizer": Counterpart(
        *("RMSProp", f"learning_rate decay=rho momentum epsilon {_LOCKING}"),
        *("epsilon=1e-10", "", "{'ms': 1.0}"),
    ),
}
"""The counterparts of TensorFlow 1's optimizers, which train variables."""

OF_TABLES: Mapping[str, Counterpart] = {
    "AdagradParameters": Counterpart(
        f"{_EMB}.Adagrad", "learning_rate initial_accumulator=initial_accumulator_value"
    ),
    "AdamParameters": Counterpart(
        f"{_EMB}.Adam",
        "learning_rate beta1=beta_1 beta2=beta_2 epsilon lazy_adam sum_inside_sqrt",
        "epsilon=1e-08",
    ),
    "FtrlParameters": Counterpart(f"{_EMB}.FTRL", f"learning_rate {FTRL}"),
    "StochasticGradientDescentParameters": Counterpart(f"{_EMB}.SGD"),
    "MomentumParameters": Counterpart("Momentum", "learning_rate momentum use_nesterov"),
}
"""The counterparts of the parameter classes of an embedding spec, which train tables."""


def of_rule(source: Source, rule: str, parts: list[str], starts: str = "") -> str:
    """Writes a Keras optimizer that applies `rule`, an update rule of the engine."""
    source.need(KERAS if rule.startswith("Keras") else "tf2_engine", rule)
    source.need(KERAS, "RuleOptimizer")
    after = [starts] if starts else []
    return call_text("RuleOptimizer", [f"{rule}({', '.join(parts)})", *after], 4, "self.optimizer=")
