"""Writes the `keras.Model` that replaces a simple model_fn."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence

from estimator_bridge.migrate.keras_form import rules
from estimator_bridge.migrate.keras_form.model_class import model_optimizer
from estimator_bridge.migrate.keras_form.model_class.class_body import (
    Body,
    ClassText,
    layered_functions,
)
from estimator_bridge.migrate.keras_form.program_text.modes import (
    EVAL,
    PREDICT,
    TRAIN,
    ModelFunction,
    read_by,
)
from estimator_bridge.migrate.keras_form.program_text.source import (
    NotSimple,
    Source,
    Text,
    arguments,
    bound_in,
    call_text,
    is_docstring,
    is_none,
    names_in,
    nodes_in,
    returned_by,
)

_METRICS: Mapping[str, str] = {
    "metrics.mean": "Mean",
    "metrics.accuracy": "Accuracy",
    "metrics.auc": "AUC",
    "metrics.root_mean_squared_error": "RootMeanSquaredError",
    "metrics.mean_squared_error": "MeanSquaredError",
    "metrics.mean_absolute_error": "MeanAbsoluteError",
}
"""Maps legacy metrics to Keras classes that compute the same results, up to rounding."""

_CARRIED = {"mode", "predictions", "loss", "train_op", "eval_metrics"}
_LEFT_OUT = {
    "host_call": "fit(callbacks=[tf.keras.callbacks.TensorBoard(...)]) writes the metrics",
    "export_outputs": (
        "exports have only the signature serving_default, with the results of predict_step"
    ),
}


@dataclasses.dataclass
class ModelText:
    """The code of a model.

    Attributes:
        text: renders the class; call it only when all edits are known.
        arguments: the arguments of `__init__` that follow `embedding`.
        functions: functions of the program that became methods.
    """

    text: Text
    arguments: list[str]
    functions: list[ast.FunctionDef]
    left_out: list[ast.FunctionDef]


class ModelWriter:
    """Writes the model of a model_fn.

    `config` has the names that the model_fn reads from the function around it, and the keys that it
    reads from `params`.
    """

    def __init__(
        self, source: Source, parts: ModelFunction, config: Collection[str], has_tables: bool
    ) -> None:
        self._source, self._parts, self._has_tables = source, parts, has_tables
        self._text = ClassText(source, {key: (lambda key=key: key) for key in config})  # type: ignore[misc]
        names = [each.arg for each in parts.function.args.args]
        self._text.forbidden = {*names} - {parts.features, parts.labels, *config}
        self._given = {*config}
        self._classes: dict[str, Text] = {}
        self._helpers = layered_functions(source, [parts.function])
        self._functions: list[ast.FunctionDef] = []
        self._left_out: list[ast.FunctionDef] = []
        self._metrics = [("mean_loss", "Mean", "loss")]  # attribute, class and key of each metric

    def write(self) -> ModelText:
        self._source.need(rules.KERAS, "TableModel")
        outputs = self._call()
        results = self._loss(outputs)
        compiled = self._train_step(outputs, results)
        self._test_step(outputs, results)
        self._predict_step(outputs)
        functions = [*self._functions, *self._helpers.values()]
        used = [each for each in self._text.config if each in self._text.used]
        given = [each for each in used if each in self._given]
        return ModelText(lambda: self._class(given, compiled), given, functions, self._left_out)

    # The class.

    def _class(self, given: Sequence[str], compiled: Text) -> str:
        text = self._text
        stored = "".join(f"    self.{name} = {text.config[name]()}\n" for name in text.stored)
        metrics = "".join(
            f"    self.{name} = tf.keras.metrics.{kind}(name={key!r})\n"
            for name, kind, key in self._metrics
        )
        layers = "".join(f"{each()}\n\n" for each in self._classes.values())
        methods = "".join(f"\n{each()}" for each in text.methods)
        return (
            f'{layers}class Model(TableModel):\n  """{self._doc()}"""\n\n'
            f"  def __init__(self, {', '.join(['embedding', *given])}):\n"
            f"    super().__init__(embedding)\n{stored}{''.join(each() for each in text.init)}"
            f"{metrics}{compiled()}{methods}"
        )

    def _doc(self) -> str:
        first = self._parts.function.body[0]
        text = first.value.value if is_docstring(first) else ""  # type: ignore[attr-defined]
        is_of_model = not re.search(r"(?i)\n|^returns|spec|model_fn|estimator", text)
        ours = "The model: its layers, and what a step of each kind computes."
        return text if text and is_of_model else ours

    # The methods.

    def _call(self) -> list[str]:
        parts = self._parts
        later = [*parts.loss, *(each for only in parts.only.values() for each in only)]
        read = set().union(*map(read_by, later), *map(self._read_by_spec, parts.specs))
        bound = [name for item in parts.shared for name in bound_in(item)]
        if parts.features in read:
            bound.insert(0, parts.features)
        outputs = [name for name in dict.fromkeys(bound) if name in read]
        look_up = f"    {parts.features} = self.embedding({parts.features})\n"
        look_up = look_up if self._has_tables else ""
        training = [*parts.training, "training"]
        body = Body(self._text, [parts.features], training, self._helpers, self._classes)
        if self._is_helper_alone(body, outputs, look_up):
            return outputs
        body.write(parts.shared)
        self._text.methods.append(
            lambda: (
                f"  def call(self, {parts.features}, training=False):\n{look_up}"
                f"{body.text()}    return {', '.join(outputs)}\n"
            )
        )
        return outputs

    def _read_by_spec(self, mode: str) -> set[str]:
        spec = self._parts.specs[mode]
        return set().union(*(names_in(value) for key, value in spec.items() if key in _CARRIED))

    def _is_helper_alone(self, body: Body, outputs: list[str], look_up: str) -> bool:
        items = self._parts.shared
        if len(items) != 1 or not isinstance(items[0], ast.Assign):
            return False
        call, target = items[0].value, items[0].targets[0]
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return False
        function = self._helpers.get(call.func.id)
        names = [each.id for each in getattr(target, "elts", [target]) if hasattr(each, "id")]
        if function is None or names != outputs:
            return False
        roles = body.roles(call, function)
        features = [each for each, (role, _) in roles.items() if role == "tensor"]
        uses = self._source.uses(function.name, self._source.tree)
        if features != [self._parts.features] or len(uses) != 1:
            return False
        body.write_method(function, roles, "call", look_up)
        return True

    def _loss(self, outputs: list[str]) -> list[str]:
        parts, source = self._parts, self._source
        later = [*parts.only[TRAIN], *parts.only[EVAL]]
        read = set().union(*map(read_by, later), *map(self._read_by_spec, (TRAIN, EVAL)))
        bound = [name for item in parts.loss for name in bound_in(item)]
        results = sorted({*bound} & read, key=lambda name: (name != "loss", bound.index(name)))
        last = parts.loss[-1] if parts.loss else None
        evaluated = parts.specs[EVAL].get("loss")
        if "loss" not in results or not isinstance(evaluated, ast.Name) or evaluated.id != "loss":
            raise NotSimple(
                parts.function, "it does not compute the loss both in training and in evaluation"
            )
        needed = _free(parts.loss)
        taken = [name for name in (parts.labels, *outputs) if name and name in needed]
        body = Body(self._text, [*taken, *bound])
        body.write(parts.loss)
        self._loss_arguments = taken

        def write() -> str:
            lines, returned = body.text(), ", ".join(results)
            if results == ["loss"] and isinstance(last, ast.Assign):
                lines = "".join(each() for each in body.lines[:-1])
                returned = source.code_at(last.value, 4)
            return f"  def loss_of(self, {', '.join(taken)}):\n{lines}    return {returned}\n"

        self._text.methods.append(write)
        return results

    def _begin(
        self, outputs: list[str], results: list[str], needed: set[str], mode: str
    ) -> list[str]:
        parts, of_loss = self._parts, self._loss_arguments
        labels = bool(parts.labels) and (
            parts.labels in of_loss or parts.labels in needed - set(results)
        )
        targets = [name if name in needed or name in of_loss else "_" for name in outputs]
        unpacked = f"{parts.features}, {parts.labels if labels else '_'} = batch"
        if not parts.labels:  # a model_fn without labels takes only features
            unpacked = f"{parts.features} = batch"
        called = f"{', '.join(targets)} = self({parts.features}, training={mode == TRAIN})"
        kept = [name if name in needed or name == "loss" else "_" for name in results]
        return [unpacked, called, f"{', '.join(kept)} = self.loss_of({', '.join(of_loss)})"]

    def _train_step(self, outputs: list[str], results: list[str]) -> Text:
        parts = self._parts
        spec = parts.specs[TRAIN]
        items = self._without_left_out(parts.only[TRAIN], spec)
        tensors = {parts.features, parts.labels, *outputs, *results} - {""}
        compiled = model_optimizer.compiled(self._text, items, spec, tensors)
        first, *under_tape = self._begin(outputs, results, set(), TRAIN)
        inner = "".join(f"      {line}\n" for line in under_tape)
        self._text.methods.append(
            lambda: (
                f"  def train_step(self, batch):\n    {first}\n"
                f"    with tf.GradientTape() as tape:\n{inner}"
                "    self.minimize(loss, tape)\n    return {'loss': loss}\n"
            )
        )
        return compiled

    def _test_step(self, outputs: list[str], results: list[str]) -> None:
        parts, source = self._parts, self._source
        metrics = parts.specs[EVAL].get("eval_metrics")
        items = self._without_left_out(parts.only[EVAL], parts.specs[EVAL])
        passed = [] if is_none(metrics) else self._update_metrics(metrics)
        nodes = [node for _, node in passed]
        needed = set().union(*map(read_by, items), *map(names_in, nodes))
        before = self._begin(outputs, results, needed, EVAL)
        body = Body(self._text, [*outputs, *results])
        body.write(items)
        for each in nodes:
            body.contextualize(each)

        def write() -> str:
            rows = [f"{key!r}: self.{name}.result()" for name, _, key in self._metrics]
            returned = ", ".join(rows)
            if len(rows) > 2:
                returned = "".join(f"\n        {row}," for row in rows) + "\n    "
            codes = ", ".join(f"{key}{source.code(node)}" for key, node in passed)
            update = "" if is_none(metrics) else f"    self.update_metrics({codes})\n"
            return (
                "  def test_step(self, batch):\n"
                + "".join(f"    {line}\n" for line in before)
                + f"{body.text()}    self.mean_loss.update_state(loss)\n"
                + f"{update}    return {{{returned}}}\n"
            )

        self._text.methods.append(write)

    def _update_metrics(self, metrics: ast.expr | None) -> list[tuple[str, ast.expr]]:
        """Writes the method `update_metrics`. Returns its arguments: ("name=" or "", node)."""
        source = self._source
        name, values = metrics.elts if isinstance(metrics, ast.Tuple) else (None, None)
        function = source.function(name.id) if isinstance(name, ast.Name) else None
        returned = returned_by(function)
        if function is None or not isinstance(returned, ast.Dict):
            raise NotSimple(metrics, "no function of the program returns its metrics as a dict")
        rows = [
            self._metric(key, value)
            for key, value in zip(returned.keys, returned.values, strict=True)
        ]
        made = [each for each in nodes_in(function, ast.Call) if _is_metric(source, each)]
        is_plain = not any((function.args.defaults, function.args.vararg, function.args.kwonlyargs))
        if len(made) != len(rows) or source.parent(function) is not source.tree or not is_plain:
            raise NotSimple(
                function,
                "its metric_fn makes metrics that it does not return, or is not a plain function",
            )
        parameters = [each.arg for each in function.args.args]
        body = Body(self._text, parameters)
        body.write(function.body[:-1])
        doc = '    """Adds a batch to the metrics of an evaluation."""\n'
        self._text.methods.append(
            lambda: (
                f"  def update_metrics(self, {', '.join(parameters)}):\n{doc}{body.text()}"
                + "".join(
                    f"    {call_text(f'self.{each}.update_state', [passed()], 4)}\n"
                    for each, passed in rows
                )
            )
        )
        self._functions.append(function)
        if isinstance(values, ast.Dict) and all(isinstance(e, ast.Constant) for e in values.keys):
            keys = [f"{key.value}=" for key in values.keys]  # type: ignore[union-attr]
            return list(zip(keys, values.values, strict=True))
        if not isinstance(values, (ast.List, ast.Tuple)):
            raise NotSimple(metrics, "the arguments of its metric_fn are not in a list or a dict")
        return [("", each) for each in values.elts]

    def _metric(self, key: ast.expr | None, call: ast.expr) -> tuple[str, Text]:
        source, kind = self._source, _METRICS.get(self._source.called(call))
        values = ["values"] if kind == "Mean" else ["labels", "predictions"]
        if not isinstance(key, ast.Constant) or not isinstance(call, ast.Call) or kind is None:
            raise NotSimple(call, "Keras has no such metric")
        by_name, others = arguments(call, [*values, "weights"])
        if others or not {*by_name} >= {*values}:
            raise NotSimple(call, "the arguments of its metric are not supported")
        source.done.add(call.func)
        name = self._text.attribute(str(key.value))
        name = f"{name[:-6]}_metric" if name.endswith("_layer") else name
        self._metrics.append((name, kind, str(key.value)))

        def write() -> str:
            parts = [source.code(by_name[each]) for each in values]
            if "weights" in by_name:
                parts.append(f"sample_weight={source.code(by_name['weights'])}")
            return " ".join(", ".join(parts).split())

        return name, write

    def _predict_step(self, outputs: list[str]) -> None:
        parts, source = self._parts, self._source
        spec = parts.specs[PREDICT]
        predictions = spec.get("predictions")
        if predictions is None:
            return
        items = self._without_left_out(parts.only[PREDICT], spec)
        needed = set().union(*map(read_by, items), names_in(predictions))
        targets = [name if name in needed else "_" for name in outputs]
        body = Body(self._text, outputs)
        if len(items) == 1 and bound_in(items[0]) == [ast.unparse(predictions)]:
            if isinstance(items[0], ast.Assign):
                predictions, items = items[0].value, []
        body.write(items)
        body.contextualize(predictions)
        as_dict = isinstance(predictions, (ast.Dict, ast.Name))
        called = f"{', '.join(targets)} = self({parts.features}, training=False)"

        def write() -> str:
            value = source.code_at(predictions, 4)
            value = value if as_dict else f"{{'output': {value}}}"
            return (
                f"  def predict_step(self, {parts.features}):\n    {called}\n"
                f"{body.text()}    return {value}\n"
            )

        self._text.methods.append(write)

    # Omissions.

    def _without_left_out(
        self, items: Sequence[ast.stmt], spec: Mapping[str, ast.expr]
    ) -> list[ast.stmt]:
        """Reports arguments that are left out; returns `items` without code that only they use."""
        left_out: set[str] = set()
        for key, value in spec.items():
            if key not in _CARRIED:
                self._leave_out(key, value)
                left_out |= names_in(value)
        carried = set().union(*(names_in(value) for key, value in spec.items() if key in _CARRIED))
        kept: list[ast.stmt] = []
        for item in reversed(items):
            others = carried.union(*map(read_by, kept))
            if isinstance(item, ast.Assign) and {*bound_in(item)} & left_out - others:
                left_out |= read_by(item)
                self._source.done.update(ast.walk(item))
            else:
                kept.insert(0, item)
        return kept

    def _leave_out(self, key: str, value: ast.expr) -> None:
        if key not in _LEFT_OUT:
            raise NotSimple(value, f"its spec has the argument {key}, which is not supported")
        self._source.notes.append((value.lineno, f"{key} is left out: {_LEFT_OUT[key]}"))
        self._source.done.update(ast.walk(value))
        for node in nodes_in(value, ast.Name):
            function = self._source.function(node.id)
            if function is not None and len(self._source.uses(node.id, self._source.tree)) == 1:
                self._left_out.append(function)


def _is_metric(source: Source, call: ast.Call) -> bool:
    return source.called(call).startswith("metrics.")


def _free(items: Sequence[ast.stmt]) -> set[str]:
    free: set[str] = set()
    bound: set[str] = set()
    for item in items:
        free |= read_by(item) - bound
        bound |= {*bound_in(item)}
    return free
