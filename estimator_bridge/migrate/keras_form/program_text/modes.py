"""Splits a simple model_fn into the statements that all modes share and those of each mode."""

from __future__ import annotations

import ast
import dataclasses
import itertools
from collections.abc import Collection, Sequence

from estimator_bridge.migrate.keras_form.program_text.source import (
    NotSimple,
    Source,
    bound_in,
    every_argument,
    is_docstring,
    names_in,
    nodes_in,
    parameters_of,
)

TRAIN, EVAL, PREDICT = "TRAIN", "EVAL", "PREDICT"
MODES = (TRAIN, EVAL, PREDICT)


@dataclasses.dataclass
class ModelFunction:
    """A model_fn, split by mode.

    Attributes:
        shared: what every mode runs first, up to the first use of the labels.
        loss: the statements after `shared` that training and evaluation have in common.
        only: the remaining statements of each mode, without the return of the spec.
        specs: the arguments of each mode's EstimatorSpec.
        training: names of flags that are true only while training.
    """

    function: ast.FunctionDef
    shared: list[ast.stmt]
    loss: list[ast.stmt]
    only: dict[str, list[ast.stmt]]
    specs: dict[str, dict[str, ast.expr]]
    training: set[str]
    labels: str
    features: str


def take_apart(source: Source, function: ast.FunctionDef) -> ModelFunction:
    reader = _Reader(source)
    flat = {mode: reader.flat(function.body, mode) for mode in MODES}
    specs = {mode: reader.spec(flat[mode]) for mode in MODES}
    names = parameters_of(function)
    labels = "labels" if "labels" in names else ""
    predicts = "predictions" in specs[PREDICT]
    if not predicts:
        flat[PREDICT] = []
    common = _common([flat[mode] for mode in MODES[: 2 + predicts]])
    shared = [*itertools.takewhile(lambda item: labels not in read_by(item), common)]
    rest = {mode: flat[mode][len(shared) :] for mode in MODES}
    if labels and any(labels in read_by(each) for each in rest[PREDICT]):
        raise NotSimple(function, "it reads the labels when it predicts")
    loss = _common([rest[TRAIN], rest[EVAL]])
    only = {mode: rest[mode][len(loss) * (mode != PREDICT) :] for mode in MODES}
    features = names[0] if names else "features"
    return ModelFunction(function, shared, loss, only, specs, reader.training, labels, features)


def read_by(item: ast.stmt) -> set[str]:
    """Returns the names that a statement reads, including the target of `+=`."""
    if isinstance(item, ast.Delete):
        return set()
    targets = (each.target for each in nodes_in(item, ast.AugAssign))
    return names_in(item) | {each.id for each in targets if isinstance(each, ast.Name)}


def closure(items: Sequence[ast.stmt], names: Collection[str]) -> list[ast.stmt]:
    needed, chosen = {*names}, list[ast.stmt]()
    for item in reversed(items):
        if {*bound_in(item)} & needed:
            chosen.insert(0, item)
            needed |= read_by(item)
    return chosen


def _common(lists: Sequence[list[ast.stmt]]) -> list[ast.stmt]:
    rows = zip(*lists, strict=False)
    same = itertools.takewhile(lambda items: all(each is items[0] for each in items), rows)
    return [items[0] for items in same]


class _Reader:
    def __init__(self, source: Source) -> None:
        self._source = source
        self.training: set[str] = set()

    def flat(self, body: Sequence[ast.stmt], mode: str) -> list[ast.stmt]:
        items: list[ast.stmt] = []
        for statement in body:
            if is_docstring(statement) or isinstance(statement, (ast.Delete, ast.Pass)):
                continue
            truth = self._truth(statement.test, mode) if isinstance(statement, ast.If) else None
            if isinstance(statement, ast.If) and truth is not None:
                items += self.flat(statement.body if truth else statement.orelse, mode)
                if items and isinstance(items[-1], ast.Return):
                    return items
            elif isinstance(statement, ast.Return):
                return [*items, statement]
            elif not self._is_flag(statement):
                self._check_returns(statement)
                items.append(statement)
        return items

    def _check_returns(self, statement: ast.stmt) -> None:
        functions = nodes_in(statement, ast.FunctionDef)
        inner = {each for function in functions for each in nodes_in(function, ast.Return)}
        if any(each not in inner for each in nodes_in(statement, ast.Return)):
            raise NotSimple(statement, "it returns under a condition other than the mode")

    def _is_flag(self, statement: ast.stmt) -> bool:
        if not isinstance(statement, ast.Assign) or self._truth(statement.value, TRAIN) is None:
            return False
        (name, *others) = bound_in(statement)
        if others or [self._truth(statement.value, mode) for mode in MODES] != [True, False, False]:
            raise NotSimple(
                statement, "a flag depends on the mode, but is not `mode == ModeKeys.TRAIN`"
            )
        self.training.add(name)
        return True

    def _truth(self, test: ast.expr, mode: str) -> bool | None:
        if isinstance(test, ast.Name) and test.id in self.training:
            return mode == TRAIN
        if not isinstance(test, ast.Compare) or ast.unparse(test.left) != "mode":
            return None
        short = self._source.short(test.comparators[0])
        key, operator = short.rpartition(".")[2], test.ops[0]
        is_known = "ModeKeys" in short and key in MODES and len(test.ops) == 1
        if not is_known or not isinstance(operator, (ast.Eq, ast.NotEq)):
            return None
        return (mode == key) == isinstance(operator, ast.Eq)

    def spec(self, items: list[ast.stmt]) -> dict[str, ast.expr]:
        call = items[-1].value if items and isinstance(items[-1], ast.Return) else None
        is_spec = self._source.called(call).endswith("EstimatorSpec")
        if not isinstance(call, ast.Call) or not is_spec:
            raise NotSimple(call, "its `return` does not create the TPUEstimatorSpec directly")
        items.pop()
        return every_argument(call, ["mode", "predictions", "loss", "train_op"])
