"""The calls of an estimator's methods, and of train_and_evaluate: those of a model of Keras."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Mapping

from estimator_bridge.migrate.keras_form import (
    config_arguments,
    input_functions,
    rules,
    serving_receivers,
)
from estimator_bridge.migrate.keras_form.estimator_names import EstimatorNames
from estimator_bridge.migrate.keras_form.sites import Site, followed
from estimator_bridge.migrate.keras_form.source import (
    Source,
    arguments,
    bound_in,
    call_text,
)

Text = Callable[[], str]

_DEFAULT_STEPS = "100"
"""The batches that an EvalSpec without `steps` evaluates."""

_TRAIN = ("input_fn", "hooks", "steps", "max_steps", "saving_listeners")


class CallWriter:
    """Writes the methods of models in place of those of their estimators."""

    def __init__(self, source: Source, *sites: Site) -> None:
        self._source = source
        self._names = EstimatorNames(source, sites)
        self._site = sites[0]  # of the estimator whose method is written; its name is that here

    def write(self) -> None:
        """Replaces the calls of the estimators' methods."""
        source = self._source
        self._names.rename_makers()
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.Name) or not self._turn_to(node):
                continue
            source.replace(node, self._site.name)
            if isinstance(node.ctx, ast.Store) or self._names.is_returned(node):
                continue
            parent = source.parent(node)
            call = source.parent(parent) if parent is not None else None
            if isinstance(parent, ast.Attribute) and isinstance(call, ast.Call):
                self._method(call, parent.attr)
            elif not self._is_of_train_and_evaluate(node):
                source.problem(
                    *(node, "keras-estimator", "the estimator is passed around"),
                    "Call its methods where it is made, or migrate to the tf2 form",
                )
        for node in ast.walk(source.tree):
            if source.called(node) == "estimator.train_and_evaluate":
                assert isinstance(node, ast.Call)
                self._train_and_evaluate(node)

    def _turn_to(self, node: ast.AST) -> bool:
        """Returns whether a node is the name of an estimator, which the next call is of."""
        site = self._names.site_of(node)
        if site is None or not isinstance(node, ast.Name):
            return False
        self._site = dataclasses.replace(site, name=self._names.new_name(node.id))
        return True

    def _method(self, call: ast.Call, name: str) -> None:
        statement = self._source.statement_of(call)
        if name == "eval_dir" and isinstance(statement, ast.Expr):
            self._source.drop(statement, "nothing is written into eval_dir()")
            return
        writers: dict[str, Callable[[ast.Call], None]] = {
            "train": self._train,
            "evaluate": self._evaluate,
            "predict": self._predict,
            "export_saved_model": self._export,
            "export_savedmodel": self._export,
            "latest_checkpoint": lambda call: None,
        }
        if name not in writers:
            self._source.problem(
                *(call, "keras-estimator-method", f"{name} has no counterpart"),
                "Do without it, or migrate to the tf2 form",
            )
            return
        writers[name](call)

    def _train(self, call: ast.Call) -> None:
        by_name, others = arguments(call, _TRAIN)
        rules.refuse_others(self._source, call, by_name, "input_fn steps max_steps", others)
        self._write(call, "fit", by_name, "train_batch_size", ("steps", "max_steps"))

    def _evaluate(self, call: ast.Call) -> None:
        by_name, others = arguments(call, ["input_fn", "steps", "hooks", "checkpoint_path", "name"])
        rules.refuse_others(self._source, call, by_name, "input_fn steps name", others)
        self._write(call, "evaluate", by_name, "eval_batch_size", ("steps",))

    def _predict(self, call: ast.Call) -> None:
        by_name, others = arguments(call, ["input_fn", "predict_keys", "hooks"])
        rules.refuse_others(self._source, call, by_name, "input_fn", others)
        self._write(call, "predictions", by_name, "predict_batch_size", ())

    def _write(
        self,
        call: ast.Call,
        method: str,
        by_name: Mapping[str, ast.expr],
        size: str,
        keys: tuple[str, ...],
    ) -> None:
        source = self._source
        dataset = input_functions.dataset(source, self._site, by_name["input_fn"], size)
        start, _ = source.span(call)
        prefix = source.text[source.text.rfind("\n", 0, start) + 1 : start].lstrip()
        called = f"{self._site.name}.{method}"

        def write() -> str:
            named = (f"{key}={source.code(by_name[key])}" for key in keys if key in by_name)
            return call_text(called, [dataset(), *named], self._column(call), prefix)

        source.replace(call, write)

    def _column(self, node: ast.AST) -> int:
        return int(self._source.statement_of(node).col_offset)

    def _is_of_train_and_evaluate(self, node: ast.AST) -> bool:
        parent = self._source.parent(node)
        return self._source.called(parent or node) in (
            "estimator.train_and_evaluate",
            "estimator.experimental.stop_if_no_decrease_hook",
            "estimator.stop_if_no_decrease_hook",
        )

    def _train_and_evaluate(self, call: ast.Call) -> None:
        """Writes `fit` with `validation_data`, and the evaluation that the program looks at."""
        source = self._source
        by_name = rules.known_arguments(source, call, "estimator train_spec eval_spec")
        self._turn_to(by_name.get("estimator", call))
        site = self._site
        specs = [followed(source, by_name.get(key)) for key in ("train_spec", "eval_spec")]
        if any(not isinstance(each, ast.Call) for each in specs):
            source.problem(
                *(call, "keras-train-spec", "its specs are not written out"),
                "Write TrainSpec(...) and EvalSpec(...) in the call",
            )
            return
        train, evaluation = (
            rules.known_arguments(source, spec, names, "input_fn", "start_delay_secs throttle_secs")  # type: ignore[arg-type]
            for spec, names in zip(
                specs,
                ("input_fn max_steps hooks", "input_fn steps name hooks exporters"),
                strict=True,
            )
        )
        if "hooks" in evaluation:
            config_arguments.refuse(source, evaluation["hooks"], "hooks")
        export = serving_receivers.final_export(source, site, evaluation.get("exporters"))
        data = input_functions.dataset(source, site, train["input_fn"], "train_batch_size")
        test = input_functions.dataset(source, site, evaluation["input_fn"], "eval_batch_size")
        hooks = train.get("hooks")
        if hooks is not None and not isinstance(hooks, (ast.List, ast.Tuple)):
            config_arguments.refuse(source, hooks, "hooks")
        stops = list(getattr(hooks, "elts", []))
        stops = [stop for stop in stops if self._early_stopping(stop)]
        statement = source.statement_of(call)
        pad = " " * statement.col_offset
        steps = evaluation.get("steps")
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        result = target.elts[0] if isinstance(target, ast.Tuple) else target

        def write() -> str:
            limit = source.code(steps) if steps is not None else _DEFAULT_STEPS
            parts = [data()]
            parts += (
                [f"max_steps={source.code(train['max_steps'])}"] if "max_steps" in train else []
            )
            parts += [f"validation_data={test()}", f"validation_steps={limit}"]
            if stops:
                parts.append(f"callbacks=[{', '.join(map(source.code, stops))}]")
            inner = f",\n{pad}    ".join(parts)
            text = f"{site.name}.fit(\n{pad}    {inner})"
            if export is not None:
                text += f"\n{pad}{export(statement.col_offset)}"
            if result is not None:
                text += f"\n{pad}{source.code(result)} = {site.name}.latest_evaluation"
            return text

        source.replace(statement, write)

    def _early_stopping(self, node: ast.expr) -> bool:
        """Writes a hook that stops a training as a callback; returns whether it is one."""
        source = self._source
        value: ast.expr | None = node
        if isinstance(node, ast.Name):
            for each in ast.walk(source.function_of(node)):
                if isinstance(each, ast.Assign) and bound_in(each) == [node.id]:
                    value = each.value
        name = source.called(value or node).rpartition(".")[2]
        modes = {"stop_if_no_decrease_hook": "min", "stop_if_no_increase_hook": "max"}
        period = self._site.config.get("save_checkpoints_steps")
        if not isinstance(value, ast.Call) or name not in modes or period is None:
            source.problem(
                *(node, "keras-hook", "Keras has no such hook"),
                "Leave it out, or use a callback of Keras",
            )
            return False
        most_steps = f"max_steps_without_{name.split('_')[3]}"
        by_name = rules.known_arguments(
            *(source, value, f"estimator metric_name {most_steps}"),
            required=f"metric_name {most_steps}",
            unused="run_every_secs run_every_steps",
        )
        metric, most = by_name["metric_name"], by_name[most_steps]
        source.done.update((value, value.func))
        source.replace(
            value,
            lambda: (
                "tf.keras.callbacks.EarlyStopping(\n"
                f"{' ' * (self._column(value) + 4)}'val_{getattr(metric, 'value', 'loss')}', "
                f"mode={modes[name]!r},\n{' ' * (self._column(value) + 4)}"
                f"patience={_quotient(source, most, period)})"
            ),
        )
        return True

    # Exports.

    def _export(self, call: ast.Call) -> None:
        source = self._source
        order = "export_dir_base serving_input_receiver_fn assets_extra as_text checkpoint_path"
        by_name, others = arguments(call, order.split())
        rules.refuse_others(
            source, call, by_name, "export_dir_base serving_input_receiver_fn", others
        )
        receiver = by_name["serving_input_receiver_fn"]
        serving_receivers.check_receiver(source, call, receiver)
        name = self._site.name
        source.replace(
            call,
            lambda: (
                f"{name}.export_saved_model(\n{' ' * (self._column(call) + 4)}"
                f"{source.code(by_name['export_dir_base'])}, *{source.code(receiver)}())"
            ),
        )


def _quotient(source: Source, steps: ast.expr, period: ast.expr) -> str:
    """Returns the code of how many periods steps are."""
    if isinstance(steps, ast.BinOp) and isinstance(steps.op, ast.Mult):
        for one, other in ((steps.left, steps.right), (steps.right, steps.left)):
            if ast.unparse(other) == ast.unparse(period):
                return source.code(one)
    return f"({source.code(steps)}) // {source.code(period)}"
