"""Translates the optimizers of canned estimators, which are names, objects, or functions."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import NamedTuple

from estimator_bridge.migrate.keras_form import rules
from estimator_bridge.migrate.keras_form.call_sites.sites import followed
from estimator_bridge.migrate.keras_form.canned_estimators import Canned
from estimator_bridge.migrate.keras_form.model_class import optimizer_code
from estimator_bridge.migrate.keras_form.optimizer_counterparts import (
    FTRL,
    OF_TRAIN,
    of_rule,
)
from estimator_bridge.migrate.keras_form.program_text.source import Source, arguments, call_text

_DEFAULTS = {"dnn": "Adagrad", "linear": "Ftrl", "baseline": "Ftrl", "rnn": "Adagrad"}


class LegacyRow(NamedTuple):
    """An optimizer of `tf.keras.optimizers.legacy`, as estimators of TensorFlow 2 accept it.

    Attributes:
        carried: the arguments that the new program keeps, in order.
        refused: arguments that would change the results.
        old: the optimizer that estimators of TensorFlow 1 create for the same name.
    """

    carried: str
    rate: str
    refused: str
    old: str


_LEGACY: Mapping[str, LegacyRow] = {
    "Adagrad": LegacyRow(
        "learning_rate", "0.001", "initial_accumulator_value epsilon", "train.AdagradOptimizer"
    ),
    "Adam": LegacyRow(
        "learning_rate beta_1 beta_2 epsilon", "0.001", "amsgrad", "train.AdamOptimizer"
    ),
    "Ftrl": LegacyRow(f"learning_rate {FTRL}", "0.001", "", "train.FtrlOptimizer"),
    "SGD": LegacyRow(
        "learning_rate momentum nesterov", "0.01", "", "train.GradientDescentOptimizer"
    ),
    "RMSprop": LegacyRow(
        "learning_rate rho momentum epsilon", "0.001", "centered", "train.RMSPropOptimizer"
    ),
}

_NAMES = {**{name: name for name in _LEGACY if name != "RMSprop"}, "RMSProp": "RMSprop"}
"""Maps the optimizer names that estimators accept to Keras classes."""

_KNOWN = (
    "Give Adagrad, Adam, Ftrl, RMSProp, SGD, or Momentum of TensorFlow 1: by name, as an object "
    "that is made in the call, or by a lambda without arguments"
)


class CannedOptimizer:
    """The optimizer of one part of a model.

    `by_rows` says whether a row that occurs in no batch must keep its initial value.

    Attributes:
        node: the expression that creates the optimizer; None for the default.
        kind: the optimizer's class in the new program; "" if it is unknown.
    """

    def __init__(
        self, source: Source, canned: Canned, part: str, node: ast.expr | None, by_rows: bool
    ) -> None:
        self._source, self._canned, self._part, self._by_rows = source, canned, part, by_rows
        self.node = self._made_by(node)
        self.kind = self._kind()
        if not self.kind:
            place = node if node is not None else source.tree
            why = (
                "it is not known which optimizer it is, or whether the new program can compute the "
                "same numbers"
            )
            source.problem(place, "keras-optimizer", why, _KNOWN)
        self._prepare()

    def text(self) -> str:
        if self._canned.is_v1:
            return self._of_train()
        by_name = self._by_name()
        code = {key: self._source.code(value) for key, value in by_name.items()}
        if not by_name and self.is_named and (rate := self._canned.rate(self._part)):
            code["learning_rate"] = rate
        return self._of_keras(code)

    @property
    def is_named(self) -> bool:
        return self.node is None or isinstance(self.node, ast.Constant)

    def _of_train(self) -> str:
        by_rows = self.kind == "Ftrl" and self._by_rows
        if isinstance(self.node, ast.Call):
            if not by_rows:
                return optimizer_code.written(self._source, self.node)
            row = OF_TRAIN["train.FtrlOptimizer"]
            parts = row.parts(self._source, arguments(self.node, row.names)[0])
        else:
            row = OF_TRAIN[_LEGACY[_NAMES[self._name]].old]
            parts = row.parts(self._source, {}, self._canned.rate(self._part))
        if by_rows:
            return of_rule(self._source, "FTRL", parts)
        return row.written(self._source, parts)

    def _of_keras(self, code: dict[str, str]) -> str:
        row = _LEGACY[self.kind]
        rule, left_out = self._rule(code)
        if rule or self.is_named:
            code.setdefault("learning_rate", row.rate)
        parts = [
            code[key] if key == "learning_rate" else f"{key}={code[key]}"
            for key in row.carried.split()
            if key in code and key not in left_out
        ]
        if rule:
            return of_rule(self._source, rule, parts)
        return call_text(f"tf.keras.optimizers.{self.kind}", parts, 4, "self.optimizer = ")

    def _rule(self, code: Mapping[str, str]) -> tuple[str, list[str]]:
        """Returns the engine's update rule, and the names of arguments that have no effect.

        The rule is "" if a current Keras optimizer computes the same results.
        """
        has_momentum = not _is_zero(code.get("momentum", "0"))
        if self.kind == "RMSprop":
            return ("RMSProp", []) if has_momentum else ("KerasRMSProp", ["momentum"])
        if self.kind == "SGD":
            return ("KerasMomentum", []) if has_momentum else ("", ["momentum", "nesterov"])
        return ("FTRL", []) if self.kind == "Ftrl" and self._by_rows else ("", [])

    def _made_by(self, node: ast.expr | None) -> ast.expr | None:
        if isinstance(node, ast.Name):
            node = followed(self._source, node)
        if isinstance(node, ast.Lambda) and not node.args.args:
            return node.body
        return node

    @property
    def _name(self) -> str:
        node = self.node
        return str(node.value) if isinstance(node, ast.Constant) else _DEFAULTS[self._part]

    def _kind(self) -> str:
        node = self.node
        if node is None or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            return _NAMES.get(self._name, "")
        if self._canned.is_v1:
            is_known = optimizer_code.is_optimizer(self._source, node)
            return optimizer_code.kind(self._source, node) if is_known else ""
        short = self._source.called(node)
        module, _, name = short.rpartition(".")
        is_of_keras = module.removeprefix("keras.") in ("optimizers", "optimizers.legacy")
        return name if is_of_keras and name in _LEGACY else ""

    def _by_name(self) -> dict[str, ast.expr]:
        if not isinstance(self.node, ast.Call):
            return {}
        row = _LEGACY[self.kind]
        return arguments(self.node, f"{row.carried} {row.refused}".split())[0]

    def _prepare(self) -> None:
        source, node = self._source, self.node
        if not self.kind or not isinstance(node, ast.Call):
            return
        rules.write_schedules(source, node)
        source.done.update(ast.walk(node.func))
        if self._canned.is_v1:
            return
        row = _LEGACY[self.kind]
        names = f"{row.carried} {row.refused}"
        by_name = rules.known_arguments(source, node, names, lost=row.refused)
        source.need_constant(by_name.get("momentum"), "keras-optimizer", "momentum", "number")


def _is_zero(code: str) -> bool:
    return code.strip().rstrip("0").rstrip(".") in ("", "0")
