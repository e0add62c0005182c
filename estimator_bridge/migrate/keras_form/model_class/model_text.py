"""Writes the `keras.Model` that replaces a model_fn."""

from __future__ import annotations

import ast
import dataclasses
import itertools
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
    makers_of_metrics,
    node_of,
)
from estimator_bridge.migrate.keras_form.program_text.source import (
    COPY,
    Source,
    Text,
    arguments,
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
"""Metrics that compute the same numbers in Keras, up to rounding."""

_METRICS_OF_SPEC = ("eval_metrics", "eval_metric_ops")
_LONG = 70

_CARRIED = {"mode", "predictions", "loss", "train_op", "eval_metrics", "eval_metric_ops"}
_LEFT_OUT = {
    "host_call": "fit(callbacks=[tf.keras.callbacks.TensorBoard(...)]) writes the metrics",
    "scaffold_fn": "keep_checkpoints says how many checkpoints are kept",
    "export_outputs": "exports have the signature serving_default, of what predict_step returns",
}


@dataclasses.dataclass
class ModelText:
    """A finished model; `pieces` renders its class once all edits are known.

    Attributes:
        arguments: the arguments of `__init__` after the embedding.
        functions: functions of the program that became methods.
        left_out: functions that nothing calls any more.
    """

    pieces: Callable[[], ClassPieces]
    arguments: list[str]
    functions: list[ast.FunctionDef]
    left_out: list[ast.FunctionDef]


@dataclasses.dataclass(frozen=True)
class MetricsText:
    """How an evaluation step computes its metrics.

    Attributes:
        passed, names: the nodes and the names that the step passes to them.
        update: the statement that updates Keras metrics.
        result: the dict of further metrics.
    """

    passed: Sequence[ast.expr] = ()
    names: Sequence[str] = ()
    update: Text | None = None
    result: Text | None = None


class ModelWriter:
    """Writes the model of a model_fn.

    Args:
        closure: names of an enclosing function that the model_fn uses.
        keys: the keys of its `params`.
        classes: layer classes by name; the writer adds to them.
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
        self._metrics = [("mean_loss", "Mean", "loss")]  # attribute, class and key of each metric

    def write(self) -> ModelText:
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
        parts, source = self._parts, self._source
        self._names_of_config = set(self._text.config)
        source.need(rules.KERAS, "TableModel")
        modes = (parts.only[mode] for mode in (TRAIN, EVAL, PREDICT))
        later = [*parts.loss, *itertools.chain(*modes), *parts.metrics]
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
        specs = (self._parts.specs[mode] for mode in modes)
        return [names_in(v) for spec in specs for k, v in spec.items() if k in _CARRIED]

    def _is_helper_alone(self, outputs: list[str], look_up: str) -> bool:
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
        parts, source = self._parts, self._source
        specs = self._read_by_specs(TRAIN, EVAL)
        later = [*parts.only[TRAIN], *parts.only[EVAL], *parts.metrics]
        read = set().union(*map(item_names, later), *specs)
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
        parts = self._parts
        of_loss = self._loss_arguments if results else []
        labels = bool(parts.labels) and (
            parts.labels in of_loss or parts.labels in needed - set(results)
        )
        targets = [name if name in needed or name in of_loss else "_" for name in outputs]
        unpacked = f"{parts.features}, {parts.labels if labels else '_'} = batch"
        if not parts.labels:  # a model_fn without labels takes features alone
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
        return any(
            optimizer_code.is_minimize(self._source, up)
            or self._source.called(up) in rules.SCHEDULES
            or method_of(up) == "apply_gradients"
            for up in self._source.above(node)
        )

    def _without_wrappers(self, items: Sequence[Item]) -> list[Item]:
        """Removes TPU wrappers and the batch-norm updates of UPDATE_OPS from statements."""
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
        """Returns the parts of a train_op that become separate statements.

        A part that the training assigns to a variable is already a statement, and only loses the
        variable. Assignments that become empty are added to `gone`.
        """
        parts: list[ast.expr] = []
        for each in self._grouped(value):
            item = self._assigned(each, items)
            if item is None:
                parts += [each] * (not isinstance(each, ast.Name))  # a bare name has no effect
                continue
            lines = self._statements(item.value, items, gone)
            if lines:
                self._replace_by_lines(item, lines)
            else:
                gone.append(item)
        return parts

    def _assigned(self, part: ast.expr, items: Sequence[Item]) -> ast.Assign | None:
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
        items = [*parts.only[EVAL]]
        local = [*outputs, *results, parts.labels, *(n for each in items for n in bound_by(each))]
        metrics = next((spec[key] for key in _METRICS_OF_SPEC if not is_none(spec.get(key))), None)
        of_metrics = self._metrics_of(metrics, items, {parts.features, *local} - {""})
        needed = set().union(*map(item_names, items), *map(names_in, of_metrics.passed))
        loss = spec.get("loss")
        needed |= names_in(loss) if loss is not None else set()
        before = self._begin(outputs, results, needed | {*of_metrics.names}, EVAL)
        body = self._body([*outputs, *results])
        body.write(items)
        for each in of_metrics.passed:
            body.contextualize(each)

        def write() -> str:
            value = source.code(loss) if loss is not None else "loss"
            rows = [f"{key!r}: self.{name}.result()" for name, _, key in self._metrics]
            rows += [f"**{of_metrics.result()}"] if of_metrics.result else []
            returned = ", ".join(rows)
            if len(rows) > 2 or (of_metrics.result and len(returned) > _LONG):
                returned = "".join(f"\n        {row}," for row in rows) + "\n    "
            update = of_metrics.update() if of_metrics.update else ""
            return (
                "  def test_step(self, batch):\n"
                + "".join(f"    {line}\n" for line in before)
                + f"{body.text()}    self.mean_loss.update_state({value})\n"
                + f"{update}    return {{{returned}}}\n"
            )

        self._text.methods.append(write)

    def _metrics_of(
        self, metrics: ast.expr | None, items: list[Item], local: set[str]
    ) -> MetricsText:
        """Determines how `test_step`, whose local names are `local`, computes its metrics.

        Appends statements that compute metrics to `items`.
        """
        metrics, others = _followed(metrics, self._parts.metrics)
        if metrics is None:
            return MetricsText()
        name, values = _function_and_values(metrics)
        function = self._source.function(name.id) if isinstance(name, ast.Name) else None
        if function is not None and not others and self._is_plain_metrics(function):
            items += others
            update, passed = self._update_metrics(function, values)
            return MetricsText(passed, update=update)
        if function is not None and COPY in function.name:
            assert name is not None
            self._source.replace(name, function.name.partition(COPY)[0])
            self._left_out.append(function)  # The models share the original function.
        self._keep_metrics(
            [*map(node_of, others), metrics, *makers_of_metrics(self._source).values()]
        )
        if name is not None and values is not None and not others:
            code = self._source.code
            return MetricsText(
                [name, values],
                result=lambda: f"self.metrics_of({code(name)}, {self._values(values)})",
            )
        if metrics is self._parts.specs[EVAL].get("eval_metrics") and name is None:
            items += others
            node = metrics
            return MetricsText(
                [node], result=lambda: f"self.metrics_of(*{self._source.code(node)})"
            )
        return self._method_of_metrics(metrics, others, local)

    def _keep_metrics(self, nodes: Iterable[ast.AST]) -> None:
        source = self._source
        for call in (each for node in nodes for each in nodes_in(node, ast.Call)):
            if _is_metric(source, call) and call.func not in source.done:
                source.done.update(ast.walk(call.func))
                source.replace(call.func, f"tf.compat.v1.{source.called(call)}")

    def _values(self, values: ast.expr) -> str:
        code = self._source.code
        if hasattr(values, "lineno"):
            return self._source.code_at(values, 4)
        if isinstance(values, ast.Dict):
            pairs = zip(values.keys, values.values, strict=True)
            return f"{{{', '.join(f'{key.value!r}: {code(each)}' for key, each in pairs)}}}"  # type: ignore[union-attr]
        return f"[{', '.join(map(code, values.elts))}]"  # type: ignore[attr-defined]

    def _method_of_metrics(
        self, metrics: ast.expr, items: Sequence[Item], local: set[str]
    ) -> MetricsText:
        source, name = self._source, self._text.attribute("metrics_of_batch")
        of_function, values = _function_and_values(metrics)
        read = [*map(names_in, map(node_of, items)), names_in(metrics)]
        bound = {each for item in items for each in bound_by(item)}
        names = sorted(set().union(*read) & (local - bound))
        body = Body(self._text, names, self._parts.training, {}, {})
        body.write(items)
        body.contextualize(metrics)

        def write() -> str:
            returned = source.code_at(metrics, 4)
            if of_function is not None and values is not None and isinstance(metrics, ast.Tuple):
                star = "**" if isinstance(values, ast.Dict) else "*"
                returned = f"{source.code(of_function)}({star}{source.code_at(values, 4)})"
            doc = '    """Makes the metrics of an evaluation from the values of a batch."""\n'
            head = f"  def {name}(self, {', '.join(names)}):\n"
            return f"{head}{doc}{body.text()}    return {returned}\n"

        self._text.methods.append(write)
        passed = ", ".join(f"{each!r}: {each}" for each in names)
        return MetricsText(
            names=names, result=lambda: f"self.metrics_of(self.{name}, {{{passed}}})"
        )

    def _is_plain_metrics(self, function: ast.FunctionDef) -> bool:
        returned, source = returned_by(function), self._source
        if not isinstance(returned, ast.Dict):
            return False
        made = [each for each in nodes_in(function, ast.Call) if _is_metric(source, each)]
        rows = zip(returned.keys, returned.values, strict=True)
        is_plain = all(
            isinstance(key, ast.Constant)
            and source.called(value) in _METRICS
            and isinstance(value, ast.Call)
            and {*arguments(value, _names_of(source, value))[0]} >= {*_names_of(source, value)[:-1]}
            and not arguments(value, _names_of(source, value))[1]
            for key, value in rows
        )
        return is_plain and len(made) == len(returned.values)

    def _update_metrics(
        self, function: ast.FunctionDef, values: ast.expr | None
    ) -> tuple[Text, list[ast.expr]]:
        source = self._source
        returned = returned_by(function)
        assert isinstance(returned, ast.Dict)
        rows: list[tuple[str, Text]] = []
        for key, value in zip(returned.keys, returned.values, strict=True):
            assert isinstance(value, ast.Call)
            assert isinstance(key, ast.Constant)
            source.done.add(value.func)
            name = self._text.attribute(str(key.value))
            name = f"{name[:-6]}_metric" if name.endswith("_layer") else name
            self._metrics.append((name, _METRICS[source.called(value)], str(key.value)))
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
        source = self._source
        *values, _ = names = _names_of(source, call)
        by_name, _ = arguments(call, names)

        def write() -> str:
            parts = [source.code(by_name[key]) for key in values]
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

    # Omissions.

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
            self._source.done.update(ast.walk(value))
            for node in nodes_in(value, ast.Name):
                function = self._source.function(node.id)
                if function is not None and function not in self._left_out:
                    if len(self._source.uses(function.name, self._source.tree)) == 1:
                        self._left_out.append(function)

    def _without_left_out(self, items: Sequence[Item], spec: Mapping[str, ast.expr]) -> list[Item]:
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


def _followed(
    metrics: ast.expr | None, items: Sequence[Item]
) -> tuple[ast.expr | None, list[Item]]:
    """Returns the last value assigned to a name, and the items without its assignments."""
    binding = [
        each for each in items if isinstance(metrics, ast.Name) and metrics.id in bound_by(each)
    ]
    reading = [
        each for each in items if isinstance(metrics, ast.Name) and metrics.id in item_names(each)
    ]
    last = binding[-1] if binding else None
    if reading or not isinstance(last, ast.Assign):
        return metrics, [*items]
    return last.value, [each for each in items if each not in binding]


def _function_and_values(metrics: ast.expr) -> tuple[ast.expr | None, ast.expr | None]:
    if isinstance(metrics, ast.Tuple) and len(metrics.elts) == 2:
        return metrics.elts[0], metrics.elts[1]
    if isinstance(metrics, ast.Call) and isinstance(metrics.func, ast.Name):
        if metrics.keywords and not metrics.args:
            keys: list[ast.expr | None] = [ast.Constant(each.arg) for each in metrics.keywords]
            return metrics.func, ast.Dict(keys, [each.value for each in metrics.keywords])
        if metrics.args and not metrics.keywords:
            return metrics.func, ast.List(metrics.args, ast.Load())
    return None, None


def _names_of(source: Source, call: ast.expr) -> list[str]:
    values = ["values"] if source.called(call) == "metrics.mean" else ["labels", "predictions"]
    return [*values, "weights"]


def _is_metric(source: Source, call: ast.Call) -> bool:
    return source.called(call).startswith("metrics.")


def _free(items: Sequence[Item]) -> set[str]:
    """Returns the names that items read before binding them."""
    free: set[str] = set()
    bound: set[str] = set()
    for item in items:
        free |= item_names(item) - bound
        bound |= {*bound_by(item)}
    return free
