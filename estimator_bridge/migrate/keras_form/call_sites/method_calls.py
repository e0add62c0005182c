"""Replaces calls to estimator methods and of train_and_evaluate by calls to the Keras model."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Mapping

from estimator_bridge.migrate.keras_form import rules
from estimator_bridge.migrate.keras_form.call_sites import (
    config_arguments,
    input_functions,
    serving_receivers,
    training_hooks,
)
from estimator_bridge.migrate.keras_form.call_sites.estimator_names import EstimatorNames
from estimator_bridge.migrate.keras_form.call_sites.sites import Site, followed
from estimator_bridge.migrate.keras_form.call_sites.spec_exporters import Exporters
from estimator_bridge.migrate.keras_form.call_sites.training_hooks import TrainingHooks
from estimator_bridge.migrate.keras_form.program_text.source import (
    Source,
    call_text,
    is_none,
    nodes_in,
)

_DEFAULT_STEPS = "100"
"""Number of batches that are evaluated if an EvalSpec has no `steps`."""

_WIDTH = 100

_STATEMENTS = (ast.Expr, ast.Return, ast.Assign, ast.AugAssign, ast.AnnAssign)
_LATER = (
    *(ast.Lambda, ast.IfExp, ast.BoolOp, ast.comprehension, ast.ListComp, ast.SetComp),
    *(ast.DictComp, ast.GeneratorExp, ast.JoinedStr),
)
"""Expressions whose parts run later, repeatedly or not at all, and f-strings, in which Python 3.11
does not know the place of a call.
"""


class CallWriter:
    """Replaces calls to an estimator's methods."""

    def __init__(self, source: Source, site: Site) -> None:
        self._source = source
        self._names = EstimatorNames(source, site)
        self._site = site  # with the name that the estimator has at this point

    def write(self) -> None:
        source = self._source
        self._names.rename_maker()
        for node in nodes_in(source.tree, ast.Name):
            if self._turn_to(node):
                source.replace(node, self._site.name)
                if not self._names.is_returned(node):
                    self._use(node)
        for attribute in nodes_in(source.tree, ast.Attribute):
            if self._turn_to(attribute):
                self._use(attribute)
        for call in nodes_in(source.tree, ast.Call):
            if source.called(call) == "estimator.train_and_evaluate":
                self._train_and_evaluate(call)

    def _use(self, node: ast.Name | ast.Attribute) -> None:
        source = self._source
        parent = source.parent(node)
        call = source.parent(parent) if parent is not None else None
        if isinstance(node.ctx, ast.Store):
            return
        if isinstance(parent, ast.Attribute) and isinstance(call, ast.Call):
            self._method(call, parent.attr)
        elif not self._is_of_train_and_evaluate(node):
            source.problem(
                *(node, "keras-estimator", "the estimator is passed around"),
                "Call its methods where it is made, or migrate to the tf2 form",
            )

    def _turn_to(self, node: ast.AST) -> bool:
        if not self._names.has(node):
            return False
        name = self._names.new_name(node.id) if isinstance(node, ast.Name) else ast.unparse(node)
        self._site = dataclasses.replace(self._site, name=name)
        return True

    def _method(self, call: ast.Call, name: str) -> None:
        statement = self._source.statement_of(call)
        if name == "eval_dir" and isinstance(statement, ast.Expr):
            self._source.drop(statement, "fit makes the folder eval_dir()")
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
                rules.WITHOUT_IT,
            )
            return
        writers[name](call)

    def _train(self, call: ast.Call) -> None:
        if not isinstance(self._source.parent(call), ast.Expr):
            self._refuse_use(call, "train returns the estimator")
        names = "input_fn hooks steps max_steps saving_listeners"
        by_name = rules.known_arguments(self._source, call, names, unused="")
        listeners = by_name.get("saving_listeners")
        training_hooks.refuse_all(self._source, listeners, "listeners of checkpoints")
        hooks = TrainingHooks(self._source, self._site, by_name.get("hooks"))
        self._write(call, "fit", by_name, "train_batch_size", "steps max_steps", hooks)

    def _evaluate(self, call: ast.Call) -> None:
        names, lost = "input_fn steps hooks checkpoint_path name", "checkpoint_path"
        by_name = rules.known_arguments(self._source, call, names, unused="", lost=lost)
        training_hooks.refuse_all(self._source, by_name.get("hooks"), "hooks of evaluations")
        self._write(call, "evaluate", by_name, "eval_batch_size", "steps")

    def _predict(self, call: ast.Call) -> None:
        names, lost = "input_fn predict_keys hooks", "predict_keys"
        by_name = rules.known_arguments(self._source, call, names, unused="", lost=lost)
        training_hooks.refuse_all(self._source, by_name.get("hooks"), "hooks of predictions")
        self._write(call, "predictions", by_name, "predict_batch_size")

    def _write(
        self,
        call: ast.Call,
        method: str,
        by_name: Mapping[str, ast.expr],
        size: str,
        options: str = "",
        hooks: TrainingHooks | None = None,
    ) -> None:
        source = self._source
        dataset = input_functions.dataset(source, self._site, by_name["input_fn"], size)
        start, _ = source.span(call)
        prefix = source.text[source.text.rfind("\n", 0, start) + 1 : start].lstrip()
        called = f"{self._site.name}.{method}"

        def write() -> str:
            parts = source.keywords(by_name, options) if options else []
            if hooks is not None:
                column = self._column(call)
                parts += [*hooks.options(), *_listed(hooks.callbacks(column + 4), column)]
            return call_text(called, [dataset(), *parts], self._column(call), prefix)

        source.replace(call, write)

    def _column(self, node: ast.AST) -> int:
        return int(self._source.statement_of(node).col_offset)

    def _is_of_train_and_evaluate(self, node: ast.AST) -> bool:
        parent = self._source.parent(node)
        if isinstance(parent, ast.keyword):
            parent = self._source.parent(parent)
        return self._source.called(parent or node) in (
            "estimator.train_and_evaluate",
            *(f"estimator.{name}" for name in training_hooks.OF_ESTIMATORS),
        )

    def _train_and_evaluate(self, call: ast.Call) -> None:
        source = self._source
        by_name = rules.known_arguments(source, call, "estimator train_spec eval_spec")
        self._turn_to(by_name.get("estimator", call))
        site = self._site
        specs = [followed(source, by_name.get(key)) for key in ("train_spec", "eval_spec")]
        if any(not isinstance(each, ast.Call) for each in specs):
            source.problem(
                *(call, "keras-train-spec", "it is not known how its specs are made"),
                "Write TrainSpec(...) and EvalSpec(...) in the call",
            )
            return
        orders = (
            "input_fn max_steps hooks saving_listeners",
            "input_fn steps name hooks exporters",
        )
        train, evaluation = (
            rules.known_arguments(source, spec, names, "input_fn", "start_delay_secs throttle_secs")  # type: ignore[arg-type]
            for spec, names in zip(specs, orders, strict=True)
        )
        training_hooks.refuse_all(source, evaluation.get("hooks"), "hooks of evaluations")
        listeners = train.get("saving_listeners")
        training_hooks.refuse_all(source, listeners, "listeners of checkpoints")
        is_named = not is_none(evaluation.get("name"))
        evaluates = self._evaluates(train)
        hooks = TrainingHooks(source, site, train.get("hooks"), evaluates and not is_named)
        exporters = Exporters(source, site, call, evaluation.get("exporters"), evaluates, is_named)
        data = input_functions.dataset(source, site, train["input_fn"], "train_batch_size")
        test = input_functions.dataset(source, site, evaluation["input_fn"], "eval_batch_size")
        statement = source.statement_of(call)
        pad = " " * statement.col_offset
        steps = evaluation.get("steps")
        after = self._after_fit(call, exporters)

        def write() -> str:
            limit = source.code(steps) if steps is not None else _DEFAULT_STEPS
            column = statement.col_offset
            parts = [data(), *source.keywords(train, "max_steps")]
            parts += [*hooks.options(), f"validation_data={test()}", f"validation_steps={limit}"]
            callbacks = [
                *hooks.callbacks(column + 8),
                *(each(column + 8) for each in exporters.callbacks),
            ]
            parts += _listed(callbacks, column + 4)
            inner = f",\n{pad}    ".join(parts)
            lines = [f"{site.name}.fit(\n{pad}    {inner})", *after()]
            return f"\n{pad}".join(lines)

        source.replace(statement, write)

    def _after_fit(self, call: ast.Call, exporters: Exporters) -> Callable[[], list[str]]:
        """Writes the exports after `fit`, and the statement that uses the result, if there is one.

        The result is a pair of metrics and a list of exports.
        """
        source, metrics = self._source, f"{self._site.name}.latest_evaluation"
        statement = source.statement_of(call)
        column = statement.col_offset
        target = _target_of_metrics(source, statement)

        def exports() -> list[str]:
            return [each(column) for each in exporters.at_end]

        is_alone = getattr(statement, "value", None) is call
        if is_alone and isinstance(statement, ast.Expr):
            return exports
        if is_alone and target is not None:
            return lambda: [*exports(), f"{source.code(target)} = {metrics}"]
        if not _follows(source, statement, call):
            self._refuse_use(call, "migrate cannot keep its result here")
        if exporters.callbacks:
            note = "the result of train_and_evaluate lacks the exports that callbacks write"
            source.notes.append((call.lineno, note))
        (start, end), (first_of_call, end_of_call) = source.span(statement), source.span(call)

        def write() -> list[str]:
            before, after = source.render(start, first_of_call), source.render(end_of_call, end)
            return [f"{before}({metrics}, [{', '.join(exports())}]){after}"]

        return write

    def _refuse_use(self, call: ast.Call, why: str) -> None:
        way_out = "Write the call in a statement of its own"
        self._source.problem(call, "keras-estimator-method", why, way_out)

    def _evaluates(self, train: Mapping[str, ast.expr]) -> bool:
        has_folder = config_arguments.model_dir(self._site) is not None
        has_period = "save_checkpoints_steps" in self._site.config
        return has_folder and has_period and not is_none(train.get("max_steps"))

    # Exports.

    def _export(self, call: ast.Call) -> None:
        source = self._source
        lost = "assets_extra as_text checkpoint_path"
        names = f"export_dir_base serving_input_receiver_fn {lost}"
        by_name = rules.known_arguments(source, call, names, unused="", lost=lost)
        receiver = by_name["serving_input_receiver_fn"]
        arguments_of_receiver = serving_receivers.arguments_of(source, call, receiver)
        name = self._site.name
        source.replace(
            call,
            lambda: (
                f"{name}.export_saved_model(\n{' ' * (self._column(call) + 4)}"
                f"{source.code(by_name['export_dir_base'])}, {arguments_of_receiver()})"
            ),
        )


def _target_of_metrics(source: Source, statement: ast.stmt) -> ast.expr | None:
    """Returns the `metrics` of a statement `metrics, exports = ...` if nothing uses `exports`."""
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    names = target.elts if isinstance(target, ast.Tuple) else []
    if len(names) != 2 or not isinstance(names[1], ast.Name):
        return None
    return None if source.uses(names[1].id, source.tree) else names[0]


def _follows(source: Source, statement: ast.stmt, call: ast.Call) -> bool:
    """Whether a statement means the same if the call in it runs before the statement."""
    around = {*source.above(call)} - {*source.above(statement)}
    if not isinstance(statement, _STATEMENTS) or any(isinstance(each, _LATER) for each in around):
        return False
    start, _ = source.span(call)
    return all(source.span(each)[1] > start for each in nodes_in(statement, ast.Call))


def _listed(callbacks: list[str], column: int) -> list[str]:
    if not callbacks:
        return []
    line = f"callbacks=[{', '.join(callbacks)}]"
    if len(line) + column < _WIDTH and "\n" not in line:
        return [line]
    pad = " " * (column + 4)
    inner = f",\n{pad}".join(callbacks)
    return [f"callbacks=[\n{pad}{inner}]"]
