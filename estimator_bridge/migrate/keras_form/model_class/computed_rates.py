"""Learning rates that are computed from the step.

A single schedule of `tf.train` becomes a Keras schedule. Anything else, such as a schedule after a
warm-up, becomes a method of the model.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence

from estimator_bridge.migrate.keras_form import rules
from estimator_bridge.migrate.keras_form.model_class import layers, optimizer_code
from estimator_bridge.migrate.keras_form.model_class.class_body import Body, ClassText
from estimator_bridge.migrate.keras_form.optimizer_counterparts import OF_TRAIN
from estimator_bridge.migrate.keras_form.program_text.modes import (
    EVAL,
    PREDICT,
    TRAIN,
    Bind,
    Item,
    ModelFunction,
    bound_by,
    closure,
    item_names,
    node_of,
)
from estimator_bridge.migrate.keras_form.program_text.source import (
    Source,
    arguments,
    names_in,
    nodes_in,
)

_WAY_OUT = "Compute the rate from the global step and params['KEY'] alone"


def optimizer_calls(source: Source, items: Iterable[Item | ast.expr | None]) -> list[ast.Call]:
    return [
        node
        for each in items
        if each is not None
        for node in nodes_in(node_of(each), ast.Call)
        if optimizer_code.is_optimizer(source, node)
    ]


def sink(source: Source, parts: ModelFunction) -> None:
    """Moves statements that only optimizers need from the shared code to the training code.

    For example, a rate is often computed before the first test of the mode.
    """
    train = parts.only[TRAIN]
    calls = optimizer_calls(source, [*train, parts.specs[TRAIN].get("train_op")])
    shared = [*parts.shared, *parts.loss]
    chosen = closure([*shared, *train], set().union(*map(names_in, calls)))
    chosen += [each for each in shared if _is_step(source, each) and each not in chosen]
    elsewhere = [*parts.only[EVAL], *parts.only[PREDICT]]
    values = [
        each
        for mode in (EVAL, PREDICT)
        for key, each in parts.specs[mode].items()
        if key in ("loss", "predictions", "eval_metrics", "eval_metric_ops")
    ]
    read = set().union(*map(item_names, elsewhere), *map(names_in, values))
    sunk: list[Item] = []
    for item in reversed(shared):
        is_free = not {*bound_by(item)} & read
        if item in chosen and is_free and not any(layers.below(source, node_of(item))):
            sunk.insert(0, item)
        else:
            read |= item_names(item)
    parts.shared = [each for each in parts.shared if each not in sunk]
    parts.loss = [each for each in parts.loss if each not in sunk]
    train[:0] = sunk


@dataclasses.dataclass
class ComputedRates:
    """The code of each rate by the call of its optimizer, and the statements moved to methods."""

    code: dict[ast.Call, str] = dataclasses.field(default_factory=dict)
    items: list[Item] = dataclasses.field(default_factory=list)


class RateWriter:
    """Writes the methods that compute rates.

    Args:
        tensors: names that are computed from a batch; a rate must not read them.
        body: creates the body of a new method, given the names that are tensors in it.
    """

    def __init__(
        self,
        text: ClassText,
        items: Sequence[Item],
        tensors: Collection[str],
        body: Callable[[Sequence[str]], Body],
    ) -> None:
        self._text, self._source, self._items = text, text.source, items
        self._tensors, self._body = {*tensors}, body
        self._methods: dict[str, str] = {}

    def write(self, calls: Sequence[ast.Call]) -> ComputedRates:
        rates = ComputedRates()
        for call in calls:
            rate = rate_of(self._source, call)
            if rate is None:
                continue
            items = closure(self._items, names_in(rate))
            self._check([*items, rate])
            if self._is_computed(items, rate):
                self._source.need(rules.KERAS, "RateByStep")
                rates.code[call] = f"RateByStep(self.{self._method_of(items, rate)})"
                rates.items += [each for each in items if each not in rates.items]
        return rates

    def _is_computed(self, items: Sequence[Item], rate: ast.expr) -> bool:
        """Whether a rate depends on the step in any other way than through one schedule."""
        of_step: set[str] = set()
        for item in items:
            value = item.value if isinstance(item, (Bind, ast.Assign)) else None
            if _is_step(self._source, item):
                of_step |= {*bound_by(item)}
            elif self._reads_step(item, of_step):
                if value is None or not self._is_plain_schedule(value, of_step):
                    return True
                of_step |= {*bound_by(item)}
        if isinstance(rate, ast.Name):
            return False
        return self._reads_step(rate, of_step) and not self._is_plain_schedule(rate, of_step)

    def _reads_step(self, item: Item | ast.expr, of_step: Collection[str]) -> bool:
        node = node_of(item)
        return bool(names_in(node) & {*of_step}) or any(
            optimizer_code.is_global_step(self._source, each) for each in ast.walk(node)
        )

    def _is_plain_schedule(self, value: ast.expr, of_step: Collection[str]) -> bool:
        called = self._source.called(value)
        if called not in rules.SCHEDULES or not isinstance(value, ast.Call):
            return False
        by_name, _ = arguments(value, rules.SCHEDULES[called][1].split())
        step = by_name.pop("global_step", None)
        is_step = (
            isinstance(step, ast.Name)
            or step is None
            or optimizer_code.is_global_step(self._source, step)
        )
        return is_step and not any(self._reads_step(each, of_step) for each in by_name.values())

    def _method_of(self, items: Sequence[Item], rate: ast.expr) -> str:
        key = "\n".join(ast.unparse(node_of(each)) for each in [*items, rate])
        if key not in self._methods:
            self._methods[key] = self._text.attribute("learning_rate_at")
            self._write(self._methods[key], items, rate)
        return self._methods[key]

    def _write(self, name: str, items: Sequence[Item], rate: ast.expr) -> None:
        source = self._source
        steps = [each for each in items if _is_step(source, each)]
        step = bound_by(steps[0])[0] if steps else "step"
        for node in [node for each in [*items, rate] for node in ast.walk(node_of(each))]:
            if optimizer_code.is_global_step(source, node):
                source.done.update(ast.walk(node))
                source.replace(node, step)
        body = self._body([step])
        body.write([each for each in items if not (steps and each is steps[0])])
        body.contextualize(rate)

        def write() -> str:
            doc = '    """Returns the learning rate after a number of steps."""\n'
            returned = source.code_at(rate, 4)
            return f"  def {name}(self, {step}):\n{doc}{body.text()}    return {returned}\n"

        self._text.methods.append(write)

    def _check(self, items: Sequence[Item | ast.expr]) -> None:
        bound: set[str] = set()
        for node in items:
            of_batch = ", ".join(sorted((item_names(node) - bound) & self._tensors))
            if of_batch:
                why = f"the learning rate depends on {of_batch}, which a batch gives"
                self._source.problem(node_of(node), "keras-rate", why, _WAY_OUT)
            bound |= {*bound_by(node)}
            for name in names_in(node_of(node)):
                function = self._source.function(name)
                if function is not None and self._reads_step(function, ()):
                    why = f"{name} reads the global step itself"
                    way_out = f"Pass the step to {name}"
                    self._source.problem(node_of(node), "keras-rate", why, way_out)


def rate_of(source: Source, call: ast.Call) -> ast.expr | None:
    return arguments(call, OF_TRAIN[source.called(call)].names)[0].get("learning_rate")


def _is_step(source: Source, item: Item) -> bool:
    value = item.value if isinstance(item, (Bind, ast.Assign)) else None
    return (
        value is not None
        and optimizer_code.is_global_step(source, value)
        and len(bound_by(item)) == 1
    )
