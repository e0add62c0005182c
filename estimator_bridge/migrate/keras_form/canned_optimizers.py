"""The optimizers of canned estimators: a name, an object, or a function that makes one."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from estimator_bridge.migrate.keras_form import optimizer_code, rules
from estimator_bridge.migrate.keras_form.canned_estimators import Canned
from estimator_bridge.migrate.keras_form.sites import followed
from estimator_bridge.migrate.keras_form.source import Source, arguments, call_text

Text = Callable[[], str]

_V1_DEFAULTS: Mapping[str, str] = {
    "Adagrad": "epsilon=0.0",
    "Adam": "epsilon=1e-08",
    "Ftrl": "",
    "SGD": "",
}
"""The optimizers by name, and an argument whose default is another one in Keras."""

_KERAS: Mapping[str, str] = {
    "Adagrad": "learning_rate",
    "Adam": "learning_rate beta_1 beta_2 epsilon",
    "Ftrl": (
        "learning_rate learning_rate_power initial_accumulator_value l1_regularization_strength "
        "l2_regularization_strength"
    ),
    "SGD": "learning_rate",
}
"""Those of `tf.keras.optimizers.legacy` with the numbers of today's, and their arguments."""

_ORDER: Mapping[str, str] = {
    "Adagrad": "learning_rate initial_accumulator_value epsilon",
    "Adam": "learning_rate beta_1 beta_2 epsilon amsgrad",
    "Ftrl": (
        "learning_rate learning_rate_power initial_accumulator_value l1_regularization_strength "
        "l2_regularization_strength"
    ),
    "SGD": "learning_rate momentum nesterov",
}
"""All arguments, in order; those that are not in `_KERAS` change the numbers of today's."""

_KNOWN = (
    "Give Adagrad, Adam, Ftrl or SGD: by name, as an object that is made in the call, or by a "
    "lambda without arguments"
)


class CannedOptimizer:
    """The optimizer of a part of a model.

    Attributes:
        node: what makes it, as far as names and lambdas lead to it; None is the default.
        kind: its class of Keras; "" is not known, which is a problem of the program.
    """

    def __init__(self, source: Source, kind: Canned, part: str, node: ast.expr | None) -> None:
        self._source, self._canned, self._part = source, kind, part
        self.node = self._made_by(node)
        self.kind = self._kind()
        if not self.kind:
            place = node if node is not None else source.tree
            why = "which optimizer it is, or that Keras has it with the same numbers, is not known"
            source.problem(place, "keras-optimizer", why, _KNOWN)
        self._prepare()

    def text(self) -> str:
        """Returns the code of the optimizer of Keras, in `__init__`."""
        node = self.node
        if node is None or isinstance(node, ast.Constant):
            default = _V1_DEFAULTS[self.kind] if self._canned.is_v1 else ""
            rate = self._canned.rate(self._part, self.kind)
            parts = [rate, *filter(None, [default])]
            return f"tf.keras.optimizers.{self.kind}({', '.join(parts)})"
        assert isinstance(node, ast.Call)
        if self._canned.is_v1:
            return optimizer_code.written(self._source, node)
        by_name, _ = arguments(node, _ORDER[self.kind].split())
        parts = [
            self._source.code(value)
            if key == "learning_rate"
            else f"{key}={self._source.code(value)}"
            for key, value in by_name.items()
        ]
        return call_text(f"tf.keras.optimizers.{self.kind}", parts, 4, "self.optimizer = ")

    def _made_by(self, node: ast.expr | None) -> ast.expr | None:
        if isinstance(node, ast.Name):
            node = followed(self._source, node)
        if isinstance(node, ast.Lambda) and not node.args.args:
            return node.body
        return node

    def _kind(self) -> str:
        node = self.node
        if node is None or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            default = "Ftrl" if self._part == "linear" else "Adagrad"
            name = default if node is None else str(node.value)
            return name if name in _V1_DEFAULTS else ""
        if self._canned.is_v1:
            is_known = optimizer_code.is_optimizer(self._source, node)
            return optimizer_code.kind(self._source, node) if is_known else ""
        short = self._source.called(node)
        module, _, name = short.rpartition(".")
        is_of_keras = module.removeprefix("keras.") in ("optimizers", "optimizers.legacy")
        return name if is_of_keras and name in _KERAS else ""

    def _prepare(self) -> None:
        """Has rates that fall become schedules; refuses arguments that change the numbers."""
        source, node = self._source, self.node
        if not self.kind or not isinstance(node, ast.Call):
            return
        for each in ast.walk(node):
            if source.called(each) in rules.SCHEDULES:
                assert isinstance(each, ast.Call)
                source.done.update((each, each.func))
                source.replace(each, lambda each=each: rules.schedule(source, each)[0])  # type: ignore[misc]
        source.done.update(ast.walk(node.func))
        if self._canned.is_v1:
            return
        by_name, others = arguments(node, _ORDER[self.kind].split())
        lost = [each for each in others if getattr(each, "arg", None) != "name"]
        rules.refuse_others(source, node, by_name, _KERAS[self.kind], lost)
