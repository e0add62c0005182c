"""The text of the `keras.Model` that replaces a model_fn."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from estimator_bridge.migrate.keras_form import rules
from estimator_bridge.migrate.keras_form.model_class import (
    computed_rates,
    model_optimizers,
    optimizer_code,
)
from estimator_bridge.migrate.keras_form.model_class.base_class import ClassPieces
from estimator_bridge.migrate.keras_form.model_class.class_body import (
    Body,
    ClassText,
    layered_functions,
)
from estimator_bridge.migrate.keras_form.program_text.modes import (
    EVAL,
    PREDICT,
    TRAIN,
    Item,
    ModelFunction,
    bound_by,
    is_docstring,
    item_names,
)
from estimator_bridge.migrate.keras_form.program_text.source import (
    Source,
    Text,
    bound_in,
    call_text,
    is_none,
    method_of,
    names_in,
    nodes_in,
    returned_by,
    shifted,
)

_METRICS: Mapping[str, str] = {
    "metrics.mean": "Mean",
    "metrics.accuracy": "Accuracy",
    "metrics.auc": "AUC",
    "metrics.root_mean_squared_error": "RootMeanSquaredError",
    "metrics.mean_squared_error": "MeanSquaredError",
    "metrics.mean_absolute_error": "MeanAbsoluteError",
}
"""Metrics whose numbers are those of Keras, up to rounding."""

_CARRIED = {"mode", "predictions", "loss", "train_op", "eval_metrics", "eval_metric_ops"}
_LEFT_OUT = {
    "host_call": "fit(callbacks=[tf.keras.callbacks.TensorBoard(...)]) writes the metrics",
    "scaffold_fn": "keep_checkpoints says how many checkpoints are kept",
    "export_outputs": "exports have the signature serving_default, of what predict_step returns",
}


@dataclasses.dataclass
class ModelText:
    """A model that was written.

    Attributes:
        pieces: of the class, once all edits are known.
        arguments: of `__init__` behind the embedding, by name.
        functions: functions of the program that are methods now.
        left_out: functions that nothing calls any more.
    """

    pieces: Callable[[], ClassPieces]
    arguments: list[str]
    functions: list[ast.FunctionDef]
    left_out: list[ast.FunctionDef]


class ModelWriter:
    """Writes the model of a model_fn.

    Args:
        parts: the model_fn, taken apart.
        closure: names of an enclosing function that the model_fn uses.
        keys: the keys of its `params`.
        name: of the class.
        classes: layers that are written before the models, by name; more are added.
    """

    def __init__(
        self,
        source: Source,
        parts: ModelFunction,
        closure: Sequence[str],
        keys: Sequence[str],
        name: str,
        classes: dict[str, Text],
        has_tables: bool = True,
    ) -> None:
        self._source, self._parts = source, parts
        self._has_tables = has_tables
        config: dict[str, Text] = {}
        for key in [*closure, *keys]:
            config[key] = lambda key=key: key  # type: ignore[misc]
        self._text = ClassText(source, config)
        names = [each.arg for each in parts.function.args.args]
        self._text.forbidden = {*names} - {parts.features, parts.labels, *config}
        self._name, self._classes = name, classes
        self._new_layers = [*classes]
        self._helpers = layered_functions(source, [parts.function])
        self._functions: list[ast.FunctionDef] = []
        self._left_out: list[ast.FunctionDef] = []
        self._compiled: Text | None = None
        self._metrics = [("mean_loss", "Mean", "loss")]  # attribute, class and key of each

    def write(self) -> ModelText:
        """Returns the model."""
        computed_rates.sink(self._source, self._parts)
        outputs = self._call()
        loss_outputs = self._loss(outputs)
        self._train_step(outputs, loss_outputs)
        self._test_step(outputs, loss_outputs)
        self._predict_step(outputs)
        self._functions += [*self._helpers.values(), *self._parts.inlined]
        order = [name for name in self._text.config if name in self._text.used]
        self._new_layers = [each for each in self._classes if each not in self._new_layers]
        return ModelText(lambda: self._pieces(order), order, self._functions, self._left_out)

    # The class.

    def _pieces(self, order: Sequence[str]) -> ClassPieces:
        text = self._text
        arguments = [name for name in order if name in self._closure_names()]
        stored = "".join(f"    self.{name} = {text.config[name]()}\n" for name in text.stored)
        metrics = "".join(
            f"    self.{name} = tf.keras.metrics.{kind}(name={key!r})\n"
            for name, kind, key in self._metrics
        )
        return ClassPieces(
            layers="".join(f"{self._classes[each]()}\n\n" for each in self._new_layers),
            name=self._name,
            doc=self._doc(),
            arguments=arguments,
            names=self._names() if text.names else "",
            init=stored + "".join(each() for each in text.init),
            end=metrics + (self._compiled() if self._compiled else "    self.compile()\n"),
            methods=[each() for each in text.methods],
        )

    def _doc(self) -> str:
        """Returns the docstring: a line that the model_fn has about the model, or one of ours."""
        first = self._parts.function.body[0]
        text = first.value.value if is_docstring(first) else ""  # type: ignore[attr-defined]
        is_of_model = not re.search(r"(?i)\n|^returns|spec|model_fn|estimator", text)
        ours = "The model: its layers, and what a step of each kind computes."
        return text if text and is_of_model else ours

    def _closure_names(self) -> set[str]:
        config, written = self._text.config, self._names_of_config
        return {name for name in config if config[name]() == name and name in written}

    def _names(self) -> str:
        pairs = [f"{layer_name!r}: {other!r}" for layer_name, other in self._text.names.items()]
        if len(pairs) < 2:
            return "{" + ", ".join(pairs) + "}"
        inner = "".join(f"\n        {pair}," for pair in pairs)
        return "{" + inner + "\n    }"

    # The methods.

    def _body(self, tensors: Iterable[str], training: Iterable[str] = ()) -> Body:
        return Body(self._text, tensors, training, self._helpers, self._classes)

    def _call(self) -> list[str]:
        """Writes `call`; returns the names of its results."""
        parts, source = self._parts, self._source
        self._names_of_config = set(self._text.config)
        source.need(rules.KERAS, "TableModel")
        later = [*parts.loss, *parts.only[TRAIN], *parts.only[EVAL], *parts.only[PREDICT]]
        read = set().union(*map(item_names, later), *self._read_by_specs(*parts.specs))
        bound = [name for item in parts.shared for name in bound_by(item)]
        if parts.features in read:
            bound.insert(0, parts.features)
        outputs = [name for name in dict.fromkeys(bound) if name in read]
        look_up = f"    {parts.features} = self.embedding({parts.features})\n"
        look_up = look_up if self._has_tables else ""
        if not self._is_helper_alone(outputs, look_up):
            body = self._body([parts.features], [*parts.training, "training"])
            body.write(parts.shared)
            self._text.methods.append(
                lambda: (
                    f"  def call(self, {parts.features}, training=False):\n{look_up}"
                    f"{body.text()}    return {', '.join(outputs)}\n"
                )
            )
        return outputs

    def _read_by_specs(self, *modes: str) -> list[set[str]]:
        """Returns the names that the carried arguments of the specs of modes read."""
        specs = (self._parts.specs[mode] for mode in modes)
        return [names_in(v) for spec in specs for k, v in spec.items() if k in _CARRIED]

    def _is_helper_alone(self, outputs: list[str], look_up: str) -> bool:
        """Writes `call` from a function whose results are all that is needed, if there is one."""
        items = self._parts.shared
        if len(items) != 1 or not isinstance(items[0], ast.Assign):
            return False
        call, target = items[0].value, items[0].targets[0]
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return False
        function = self._helpers.get(call.func.id)
        names = [each.id for each in getattr(target, "elts", [target]) if hasattr(each, "id")]
        if (
            function is None
            or names != outputs
            or len(self._source.uses(function.name, self._source.tree)) != 1
        ):
            return False
        body = self._body([self._parts.features], [*self._parts.training, "training"])
        roles = body.roles(call, function)
        features = [each for each, (role, _) in roles.items() if role == "tensor"]
        if features != [self._parts.features]:
            return False
        body.write_method(function, roles, "call", look_up)
        return True

    def _loss(self, outputs: list[str]) -> list[str]:
        """Writes `loss_of`; returns the names of its results."""
        parts, source = self._parts, self._source
        specs = self._read_by_specs(TRAIN, EVAL)
        read = set().union(*map(item_names, [*parts.only[TRAIN], *parts.only[EVAL]]), *specs)
        bound = [name for item in parts.loss for name in bound_by(item)]
        results = [name for name in dict.fromkeys(bound) if name in read]
        if not parts.loss:
            return []
        results.sort(key=lambda name: name != "loss")
        needed = _free(parts.loss)
        taken = [name for name in (parts.labels, *outputs) if name and name in needed]
        body = self._body([*taken, *bound])
        body.write(parts.loss)
        self._loss_arguments = taken

        def write() -> str:
            lines, returned, last = body.text(), ", ".join(results), parts.loss[-1]
            if results == ["loss"] and isinstance(last, ast.Assign):
                lines = "".join(each() for each in body.lines[:-1])
                returned = source.code_at(last.value, 4)
            return f"  def loss_of(self, {', '.join(taken)}):\n{lines}    return {returned}\n"

        self._text.methods.append(write)
        return results

    def _begin(
        self, outputs: list[str], results: list[str], needed: set[str], mode: str
    ) -> list[str]:
        """Returns the lines that a step begins with: the batch, the model and the loss."""
        parts = self._parts
        of_loss = self._loss_arguments if results else []
        labels = bool(parts.labels) and (
            parts.labels in of_loss or parts.labels in needed - set(results)
        )
        targets = [name if name in needed or name in of_loss else "_" for name in outputs]
        unpacked = f"{parts.features}, {parts.labels if labels else '_'} = batch"
        if not parts.labels:  # A model_fn without labels is called with features alone.
            unpacked = f"{parts.features} = batch"
        called = f"{', '.join(targets)} = self({parts.features}, training={mode == TRAIN})"
        lines = [unpacked, called]
        if results:
            kept = [name if name in needed or name == "loss" else "_" for name in results]
            lines.append(f"{', '.join(kept)} = self.loss_of({', '.join(of_loss)})")
        return lines

    def _train_step(self, outputs: list[str], results: list[str]) -> None:
        parts, source = self._parts, self._source
        spec = parts.specs[TRAIN]
        self._note_left_out(spec)
        train_op = spec.get("train_op")
        items = self._without_left_out(parts.only[TRAIN], spec)
        items = self._without_wrappers(items)
        optimizer_calls = computed_rates.optimizer_calls(source, [*items, train_op])
        tensors = {parts.features, parts.labels, *outputs, *results} - {""}
        optimizers = model_optimizers.OptimizerWriter(self._text, items, tensors, self._body)
        optimizers.write(optimizer_calls, train_op)
        self._compiled, items = optimizers.compiled, optimizers.kept
        gradients = self._write_updates([*items, train_op], len(optimizer_calls))
        needed = set().union(*map(item_names, items), {"loss"})
        before = self._begin(
            outputs,
            results,
            needed | names_in(spec.get("loss", ast.Name("loss", ast.Load()))),
            TRAIN,
        )
        body = self._body([*outputs, *results, "tape"])
        body.leave_out(optimizers.written)
        items = [each for each in items if not self._is_unused_step(each, items, train_op)]
        gone: list[Item] = []
        parts_of_op = self._statements(train_op, items, gone) if train_op is not None else []
        items = [each for each in items if each not in gone]
        of_losses = optimizer_code.computing_losses(source, items, gradients)
        for item in of_losses:
            body.write([item])
        on_tape = len(body.lines)
        for item in items:
            if item not in of_losses:
                body.write([item])
        for each in parts_of_op:
            body.contextualize(each)
            body.lines.append(lambda each=each: f"    {source.code(each)}\n")  # type: ignore[misc]
        loss = spec.get("loss")

        def write() -> str:
            value = source.code(loss) if loss is not None else "loss"
            inner = "".join(f"      {line}\n" for line in before[1:])
            inner += "".join(shifted(each(), 4, 6) for each in body.lines[:on_tape])
            return (
                f"  def train_step(self, batch):\n    {before[0]}\n"
                f"    with tf.GradientTape() as tape:\n{inner}"
                + "".join(each() for each in body.lines[on_tape:])
                + f"    return {{'loss': {value}}}\n"
            )

        self._text.methods.append(write)

    def _write_updates(
        self, items: Sequence[Item | ast.expr | None], num_optimizers: int
    ) -> list[ast.AST]:
        """Writes how a training uses its optimizers; returns the calls that need gradients."""
        source, alone = self._source, num_optimizers == 1
        code = [each for each in items if isinstance(each, ast.AST)]
        nodes = [node for each in code for node in nodes_in(each, ast.Call)]
        calls = [each for each in nodes if optimizer_code.is_minimize(source, each)]
        applied = [each for each in nodes if optimizer_code.is_of_gradients(each)]
        plain = [each for each in nodes if source.called(each) == "gradients"]
        for call in calls:
            optimizer_code.write_minimize(source, call, alone)
        for call in applied:
            optimizer_code.write_gradients(source, call, alone)
        if not num_optimizers or not (calls or applied):
            source.problem(
                *(self._parts.function, "keras-no-training"),
                "no optimizer that is known minimizes a loss",
                "Call `minimize` of an optimizer of tf.train in the model_fn",
            )
        return [*calls, *applied, *plain]

    def _is_unused_step(self, item: Item, items: Sequence[Item], train_op: ast.expr | None) -> bool:
        """Returns whether an item only assigns the global step, which nothing needs any more."""
        if not isinstance(item, ast.Assign) or not optimizer_code.is_global_step(
            self._source, item.value
        ):
            return False
        others = [each for each in (*items, train_op) if each is not item]
        code = [each for each in others if isinstance(each, ast.AST)]
        for name in bound_in(item):
            uses = [use for each in code for use in self._source.uses(name, each)]
            if not all(map(self._is_consumed, uses)):
                self._source.replace(item.value, "self.embedding.step")
                return False
        return True

    def _is_consumed(self, node: ast.AST) -> bool:
        """Returns whether a name is an argument of a call that is written without it."""
        return any(
            optimizer_code.is_minimize(self._source, up)
            or self._source.called(up) in rules.SCHEDULES
            or method_of(up) == "apply_gradients"
            for up in self._source.above(node)
        )

    def _without_wrappers(self, items: Sequence[Item]) -> list[Item]:
        """Returns items without the wrappers of a TPU and of updates of batch normalization."""
        kept: list[Item] = []
        for item in items:
            if isinstance(item, ast.FunctionDef):
                self._unwrap_inside(item)
            if isinstance(item, ast.stmt) and optimizer_code.is_cross_shard(self._source, item):
                continue
            if isinstance(item, ast.With) and "UPDATE_OPS" in ast.unparse(item.items[0]):
                kept += self._without_wrappers(item.body)
            elif not isinstance(item, ast.Assign) or "UPDATE_OPS" not in ast.unparse(item.value):
                kept.append(item)
        return kept

    def _unwrap_inside(self, function: ast.FunctionDef) -> None:
        for each in nodes_in(function, ast.stmt):
            is_cross_shard = optimizer_code.is_cross_shard(self._source, each)
            if is_cross_shard and not self._source.is_dropped(each):
                self._source.drop(each)

    def _statements(
        self, value: ast.expr, items: Sequence[Item], gone: list[Item]
    ) -> list[ast.expr]:
        """Returns the parts of a train_op that are to be statements of their own.

        Parts that the training assigns are statements already, and lose their names.

        Args:
            gone: receives the assignments of which nothing is left.
        """
        parts: list[ast.expr] = []
        for each in self._grouped(value):
            item = self._assigned(each, items)
            if item is None:
                parts += [each] * (not isinstance(each, ast.Name))  # A name alone does nothing.
                continue
            lines = self._statements(item.value, items, gone)
            if lines:
                self._replace_by_lines(item, lines)
            else:
                gone.append(item)
        return parts

    def _assigned(self, part: ast.expr, items: Sequence[Item]) -> ast.Assign | None:
        """Returns the assignment of a part of a train_op that nothing else reads."""
        if not isinstance(part, ast.Name):
            return None
        binding = [each for each in items if part.id in bound_by(each)]
        reading = [each for each in items if part.id in item_names(each)]
        item = binding[0] if len(binding) == 1 else None
        is_alone = all(
            isinstance(each, ast.Assign) and self._source.called(each.value) == "group"
            for each in reading
        )
        if isinstance(item, ast.Assign) and bound_by(item) == [part.id] and is_alone:
            return item
        return None

    def _replace_by_lines(self, item: ast.Assign, parts: Sequence[ast.expr]) -> None:
        pad = " " * item.col_offset
        self._source.replace(item, lambda: f"\n{pad}".join(map(self._source.code, parts)))

    def _grouped(self, value: ast.expr) -> list[ast.expr]:
        if isinstance(value, ast.Call) and self._source.called(value) == "group":
            self._source.done.add(value.func)
            return list(value.args)
        return [value]

    def _test_step(self, outputs: list[str], results: list[str]) -> None:
        parts, source = self._parts, self._source
        spec = parts.specs[EVAL]
        if not spec:
            return
        items = parts.only[EVAL]
        function, values = self._metric_function(spec)
        called, passed = self._update_metrics(function, values)
        needed = set().union(*map(item_names, items), *map(names_in, passed))
        loss = spec.get("loss")
        needed |= names_in(loss) if loss is not None else set()
        before = self._begin(outputs, results, needed, EVAL)
        body = self._body([*outputs, *results])
        body.write(items)
        for each in passed:
            body.contextualize(each)

        def write() -> str:
            value = source.code(loss) if loss is not None else "loss"
            rows = [f"{key!r}: self.{name}.result()" for name, _, key in self._metrics]
            returned = ", ".join(rows)
            if len(rows) > 2:
                returned = "".join(f"\n        {row}," for row in rows) + "\n    "
            return (
                "  def test_step(self, batch):\n"
                + "".join(f"    {line}\n" for line in before)
                + f"{body.text()}    self.mean_loss.update_state({value})\n"
                + f"{called() if called else ''}    return {{{returned}}}\n"
            )

        self._text.methods.append(write)

    def _metric_function(
        self, spec: Mapping[str, ast.expr]
    ) -> tuple[ast.FunctionDef | None, ast.expr | None]:
        """Returns the function of the metrics of a spec, and its arguments; adds problems."""
        metrics = spec.get("eval_metrics") or spec.get("eval_metric_ops", ast.Constant(None))
        if is_none(metrics):
            return None, None
        name: ast.expr | None = None
        values: ast.expr | None = None
        if isinstance(metrics, ast.Tuple) and len(metrics.elts) == 2:
            name, values = metrics.elts
        elif isinstance(metrics, ast.Call) and bool(metrics.args) != bool(metrics.keywords):
            keys: list[ast.expr | None] = [ast.Constant(each.arg) for each in metrics.keywords]
            given_by_name = ast.Dict(keys, [each.value for each in metrics.keywords])
            name = metrics.func
            values = given_by_name if metrics.keywords else ast.List(metrics.args, ast.Load())
        function = self._source.function(name.id) if isinstance(name, ast.Name) else None
        if isinstance(returned_by(function), ast.Dict):
            return function, values
        if function is not None:
            self._left_out.append(function)  # The mark says it, once for all of its metrics.
        self._source.problem(
            *(metrics, "keras-metrics", "its metrics are not written out"),
            "Let eval_metrics be (metric_fn, [tensors]), and metric_fn return a dict",
        )
        return None, None

    def _update_metrics(
        self, function: ast.FunctionDef | None, values: ast.expr | None
    ) -> tuple[Text | None, list[ast.expr]]:
        """Writes `update_metrics` from the metric_fn; returns its call, with the arguments."""
        source = self._source
        if function is None:
            return None, []
        returned = returned_by(function)
        assert isinstance(returned, ast.Dict)
        rows: list[tuple[str, Text]] = []
        for key, value in zip(returned.keys, returned.values, strict=True):
            kind = _METRICS.get(source.called(value))
            if kind is None or not isinstance(key, ast.Constant) or len(value.args) < 1:  # type: ignore[attr-defined]
                source.problem(
                    *(value, "keras-metric", "no metric of Keras has the same numbers"),
                    "Use tf.metrics.mean, accuracy, auc, root_mean_squared_error, "
                    "mean_squared_error or mean_absolute_error, or migrate to the tf2 form",
                )
                source.done.update(ast.walk(getattr(value, "func", value)))
                continue
            assert isinstance(value, ast.Call)
            source.done.add(value.func)
            name = self._text.attribute(str(key.value))
            name = f"{name[:-6]}_metric" if name.endswith("_layer") else name
            self._metrics.append((name, kind, str(key.value)))
            rows.append((name, self._metric_arguments(value)))
        parameters = [each.arg for each in function.args.args]
        body = Body(self._text, parameters, [], {}, {})
        body.write(function.body[:-1])
        doc = '    """Adds a batch to the metrics of an evaluation."""\n'
        self._text.methods.append(
            lambda: (
                f"  def update_metrics(self, {', '.join(parameters)}):\n{doc}{body.text()}"
                + "".join(
                    f"    {call_text(f'self.{name}.update_state', [passed()], 4)}\n"
                    for name, passed in rows
                )
            )
        )
        self._functions.append(function)
        passed = [("", each) for each in getattr(values, "elts", [values])]
        if isinstance(values, ast.Dict):
            keys = [f"{key.value}=" for key in values.keys]  # type: ignore[union-attr]
            passed = list(zip(keys, values.values, strict=True))

        def write() -> str:
            parts = [f"{key}{source.code(node)}" for key, node in passed]
            return f"    self.update_metrics({', '.join(parts)})\n"

        return write, [node for _, node in passed]

    def _metric_arguments(self, call: ast.Call) -> Text:
        """Returns the code of the arguments that update a metric of Keras, for a metric of `tf`."""
        source = self._source
        values = "values" if source.called(call) == "metrics.mean" else "labels predictions"
        by_name = rules.known_arguments(source, call, f"{values} weights", values)

        def write() -> str:
            parts = [source.code(by_name[key]) for key in values.split()]
            if "weights" in by_name:
                parts.append(f"sample_weight={source.code(by_name['weights'])}")
            return " ".join(", ".join(parts).split())

        return write

    def _predict_step(self, outputs: list[str]) -> None:
        parts, source = self._parts, self._source
        spec = parts.specs[PREDICT]
        predictions = spec.get("predictions")
        if predictions is None:
            return
        self._note_left_out(spec)
        items = self._without_left_out(parts.only[PREDICT], spec)
        needed = set().union(*map(item_names, items), names_in(predictions))
        targets = [name if name in needed else "_" for name in outputs]
        body = self._body(outputs)
        if (
            len(items) == 1
            and isinstance(items[0], ast.Assign)
            and isinstance(predictions, ast.Name)
            and bound_in(items[0]) == [predictions.id]
        ):
            predictions, items = items[0].value, []
        body.write(items)
        body.contextualize(predictions)
        returned = predictions
        as_dict = isinstance(returned, (ast.Dict, ast.Name))
        called = f"{', '.join(targets)} = self({parts.features}, training=False)"

        def write() -> str:
            value = source.code_at(returned, 4)
            value = value if as_dict else f"{{'output': {value}}}"
            return (
                f"  def predict_step(self, {parts.features}):\n    {called}\n"
                f"{body.text()}    return {value}\n"
            )

        self._text.methods.append(write)

    # What is left out.

    def _note_left_out(self, spec: Mapping[str, ast.expr]) -> None:
        for key, value in spec.items():
            if key in _CARRIED:
                continue
            why = _LEFT_OUT.get(key)
            if why is None:
                self._source.problem(
                    *(value, "keras-spec-argument", f"{key} has no counterpart"),
                    f"Leave {key} out of the spec",
                )
                continue
            self._source.notes.append((value.lineno, f"{key} is left out: {why}"))
            for node in nodes_in(value, ast.Name):
                function = self._source.function(node.id)
                if function is not None and function not in self._left_out:
                    if len(self._source.uses(function.name, self._source.tree)) == 1:
                        self._left_out.append(function)

    def _without_left_out(self, items: Sequence[Item], spec: Mapping[str, ast.expr]) -> list[Item]:
        """Returns the items but for those that only left-out arguments of a spec are made of."""
        left_out = set().union(*(names_in(v) for k, v in spec.items() if k in _LEFT_OUT))
        carried = set().union(*(names_in(v) for k, v in spec.items() if k in _CARRIED))
        kept: list[Item] = []
        for item in reversed(items):
            bound = {*bound_by(item)}
            others = carried.union(*map(item_names, kept))
            if isinstance(item, (ast.Assign, ast.FunctionDef)) and bound & left_out - others:
                left_out |= item_names(item)
                self._source.done.update(ast.walk(item))
            else:
                kept.insert(0, item)
        return kept


def _free(items: Sequence[Item]) -> set[str]:
    """Returns the names that items read before they bind them."""
    free: set[str] = set()
    bound: set[str] = set()
    for item in items:
        free |= item_names(item) - bound
        bound |= {*bound_by(item)}
    return free
