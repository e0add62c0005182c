"""Moves the optimizers of a model_fn to `__init__`, as attributes of the model."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Sequence

from estimator_bridge.migrate.keras_form import rules
from estimator_bridge.migrate.keras_form.model_class import computed_rates, optimizer_code
from estimator_bridge.migrate.keras_form.model_class.class_body import Body, ClassText
from estimator_bridge.migrate.keras_form.program_text.modes import (
    Item,
    bound_by,
    closure,
    node_of,
)
from estimator_bridge.migrate.keras_form.program_text.source import Text, names_in


class OptimizerWriter:
    """Moves optimizers and their rates out of the training step.

    Args:
        tensors: names that are computed from a batch.
        body: creates the body of a method, given the names that are tensors in it.

    Attributes:
        kept: the statements that remain in the training step.
        compiled: the line that compiles the model; None without an optimizer.
        written: nodes in which nothing may be replaced any more.
    """

    def __init__(
        self,
        text: ClassText,
        items: Sequence[Item],
        tensors: Collection[str],
        body: Callable[[Iterable[str]], Body],
    ) -> None:
        self._text, self._source, self._body = text, text.source, body
        self._tensors = tensors
        self.kept = list(items)
        self.compiled: Text | None = None
        self.written: list[ast.AST] = []

    def write(self, calls: Sequence[ast.Call], train_op: ast.expr | None) -> None:
        writer = computed_rates.RateWriter(self._text, self.kept, self._tensors, self._body)
        rates = writer.write(calls)
        alone = len(calls) == 1
        inputs = [each for call in calls for each in self._inputs(call, call in rates.code)]
        settings = self._settings(inputs)
        if alone:  # A single optimizer needs no name.
            self.kept = [each for each in self.kept if getattr(each, "value", None) is not calls[0]]
        self.kept = _read_after(self.kept, [*settings, *rates.items], train_op, calls)
        helper = self._body([])
        for item in settings:
            if item in rates.items:
                continue  # its names belong to a method, and `__init__` can use them
            rules.write_schedules(self._source, item)
            helper.contextualize(item, in_init=True)
        for item in settings:
            self._text.init.append(lambda item=item: self._source.block(item, 4))  # type: ignore[misc]
        for each in inputs:
            rules.write_schedules(self._source, each)
            helper.contextualize(each, in_init=True)
        for call in calls:
            name = self._optimizer(call, rates.code.get(call, ""), alone)
            if name:
                self._name(call, name, train_op)
        self.written += calls

    def _inputs(self, call: ast.Call, is_computed: bool) -> list[ast.expr]:
        rate = computed_rates.rate_of(self._source, call) if is_computed else None
        values = [*call.args, *(each.value for each in call.keywords)]
        return [each for each in values if each is not rate]

    def _settings(self, inputs: Sequence[ast.expr]) -> list[ast.Assign]:
        return [
            each
            for each in closure(self.kept, set().union(*map(names_in, inputs)))
            if isinstance(each, ast.Assign)
            and not optimizer_code.is_global_step(self._source, each.value)
        ]

    def _optimizer(self, call: ast.Call, rate: str, alone: bool) -> str:
        """Writes an optimizer; returns its attribute, or "" if it is the only one and needs none.

        The last optimizer compiles the model. `rate` is code that replaces the learning rate.
        """
        source, text = self._source, self._text
        source.done.update((call, call.func))

        def code() -> str:
            return optimizer_code.written(source, call, rate)

        if alone:
            self.compiled = lambda: f"    self.compile(optimizer={code()})\n"
            return ""
        name = text.attribute(optimizer_code.kind(source, call).lower())
        text.init.append(lambda: f"    self.{name} = {code()}\n")
        source.replace(call, f"self.{name}")
        self.compiled = lambda: f"    self.compile(optimizer=self.{name})\n"
        return f"self.{name}"

    def _name(self, call: ast.Call, name: str, train_op: ast.expr | None) -> None:
        """Replaces the variable of an optimizer by the model's attribute in the training step."""
        item = next((each for each in self.kept if getattr(each, "value", None) is call), None)
        old = bound_by(item) if item is not None else []
        binding = [each for each in self.kept if {*bound_by(each)} & {*old}]
        if len(old) != 1 or binding != [item]:
            return
        self.kept = [each for each in self.kept if each is not item]
        for node in (*map(node_of, self.kept), *filter(None, [train_op])):
            for use in self._source.uses(old[0], node):
                self._source.replace(use, name)
                self.written.append(use)


def _read_after(
    items: Sequence[Item],
    moved: Collection[Item],
    end: ast.expr | None,
    calls: Collection[ast.AST],
) -> list[Item]:
    """Drops moved items, unless a remaining item or `end` reads their values.

    The arguments of `calls`, which create optimizers, move as well.
    """
    read = _names_outside(end, calls) if end is not None else set()
    kept: list[Item] = []
    for item in reversed(items):
        if item not in moved or {*bound_by(item)} & read:
            kept.insert(0, item)
            read |= _names_outside(node_of(item), calls)
    return kept


def _names_outside(node: ast.AST, calls: Collection[ast.AST]) -> set[str]:
    if node in calls:
        return set()
    target = node.target if isinstance(node, ast.AugAssign) else None
    read = {target.id} if isinstance(target, ast.Name) else set()
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        read = {node.id}
    return read.union(*(_names_outside(each, calls) for each in ast.iter_child_nodes(node)))
