"""Splits a model_fn into the statements that all modes share and those of each mode."""

from __future__ import annotations

import ast
import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence

from estimator_bridge.migrate.keras_form.program_text.source import (
    Source,
    bound_in,
    every_argument,
    is_none,
    names_in,
    nodes_in,
    parameters_of,
)

TRAIN, EVAL, PREDICT = "TRAIN", "EVAL", "PREDICT"
MODES = (TRAIN, EVAL, PREDICT)

_WAY_OUT = "Return the TPUEstimatorSpec of each mode below an `if mode == ...` of the model_fn"


@dataclasses.dataclass(frozen=True, eq=False)
class Bind:
    """A parameter of an inlined function, with the argument that the call passed."""

    name: str
    value: ast.expr


Item = ast.stmt | Bind


@dataclasses.dataclass
class ModelFunction:
    """A model_fn, split by mode.

    Attributes:
        shared: what every mode runs first, up to the first use of the labels.
        loss: the next statements that training and evaluation have in common.
        only: the remaining statements of each mode, without the return of the spec.
        specs: the arguments of the spec that each mode returns.
        training: variables that are true only while training.
        inlined: functions that return the specs; the lists above contain their statements.
        metrics: statements that only compute metrics; no other list contains them.
    """

    function: ast.FunctionDef
    shared: list[Item]
    loss: list[Item]
    only: dict[str, list[Item]]
    specs: dict[str, dict[str, ast.expr]]
    training: set[str]
    labels: str
    features: str
    inlined: list[ast.FunctionDef]
    metrics: list[Item]


def take_apart(
    source: Source, function: ast.FunctionDef, trains: Callable[[Item], bool]
) -> ModelFunction:
    """Splits a model_fn by mode; reports a problem where the modes cannot be told apart.

    `trains` tells whether an item creates or uses an optimizer.
    """
    reader = _Reader(source, function)
    flat = {mode: reader.flat(function.body, mode) for mode in MODES}
    specs = {mode: reader.spec(flat[mode], mode) for mode in MODES}
    if any(trains(item) for item in flat[EVAL]):
        flat[EVAL] = _without(flat[EVAL], specs[EVAL], trains)
    metrics = _of_metrics(source, flat, specs)
    for mode in MODES:
        flat[mode] = [each for each in flat[mode] if each not in metrics]
    names = parameters_of(function)
    labels = "labels" if "labels" in names else ""
    if labels:
        flat[PREDICT] = _without(
            flat[PREDICT], specs[PREDICT], lambda item: labels in item_names(item)
        )
    before_labels = itertools.takewhile(
        lambda item: labels not in item_names(item), _common([flat[mode] for mode in MODES])
    )
    shared = [*before_labels]
    rest = {mode: flat[mode][len(shared) :] for mode in MODES}
    loss = _common([rest[TRAIN], rest[EVAL]])
    only = {mode: rest[mode][len(loss) * (mode != PREDICT) :] for mode in MODES}
    return ModelFunction(
        function,
        shared,
        loss,
        only,
        specs,
        reader.training,
        labels,
        names[0] if names else "features",
        [*reader.inlined],
        metrics,
    )


def _without(
    items: list[Item], spec: dict[str, ast.expr], is_doubtful: Callable[[Item], bool]
) -> list[Item]:
    """Drops the doubtful items of a mode whose values the mode's spec does not need."""
    needed = set().union(*(names_in(value) for key, value in spec.items() if key != "train_op"))
    kept: list[Item] = []
    for item in reversed(items):
        if {*bound_by(item)} & needed or not is_doubtful(item):
            kept.insert(0, item)
            needed |= item_names(item)
    return kept


_METRICS = ("eval_metrics", "eval_metric_ops")


def _of_metrics(
    source: Source, flat: dict[str, list[Item]], specs: dict[str, dict[str, ast.expr]]
) -> list[Item]:
    values = [specs[EVAL][key] for key in _METRICS if not is_none(specs[EVAL].get(key))]
    makers = makers_of_metrics(source)
    chosen: list[Item] = []
    filled = {each.id for each in values if isinstance(each, ast.Name)}
    bound: set[str] = set()
    for item in flat[EVAL] if values else ():
        node = node_of(item)
        if _makes_metrics(source, node, makers) or names_in(node) & bound:
            chosen.append(item)
            bound |= {*bound_by(item)}
            filled |= {*_filled(node)}
    others = [each for items in flat.values() for each in items if each not in chosen]
    arguments = (each for spec in specs.values() for each in spec.items())
    read = set().union(
        *map(item_names, others), *(names_in(v) for k, v in arguments if k not in _METRICS)
    )
    for item in flat[EVAL]:
        names = {*bound_by(item)}
        if item not in chosen and names and names <= filled - read:
            chosen.append(item)
        elif item in chosen and names & read:
            source.problem(
                *(
                    node_of(item),
                    "keras-metric",
                    "it computes values that are used outside the metrics",
                ),
                "Compute the metrics in a separate function, and pass it in eval_metrics",
            )
            chosen.remove(item)
    return [each for each in flat[EVAL] if each in chosen]


def _makes_metrics(source: Source, node: ast.AST, makers: Collection[str]) -> bool:
    return bool(names_in(node) & {*makers}) or any(
        source.called(each).startswith("metrics.") for each in nodes_in(node, ast.Call)
    )


def makers_of_metrics(source: Source) -> dict[str, ast.FunctionDef]:
    """Finds the functions that create metrics, or that call such functions; skips model_fns."""
    functions = [
        each for each in nodes_in(source.tree, ast.FunctionDef) if "mode" not in parameters_of(each)
    ]
    makers: dict[str, ast.FunctionDef] = {}
    for _ in functions:
        makers |= {each.name: each for each in functions if _makes_metrics(source, each, makers)}
    return makers


def _filled(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Subscript):
            is_filled = isinstance(each.ctx, ast.Store)
        else:
            is_filled = isinstance(each, ast.Attribute) and isinstance(node, ast.Expr)
        owner = getattr(each, "value", None)
        if is_filled and isinstance(owner, ast.Name):
            yield owner.id


def node_of(item: Item | ast.expr) -> ast.AST:
    return item.value if isinstance(item, Bind) else item


def bound_by(item: Item | ast.expr) -> list[str]:
    return [item.name] if isinstance(item, Bind) else bound_in(item)


def item_names(item: Item | ast.expr) -> set[str]:
    if isinstance(item, ast.Delete):
        return set()
    targets = (each.target for each in nodes_in(node_of(item), ast.AugAssign))
    return names_in(node_of(item)) | {each.id for each in targets if isinstance(each, ast.Name)}


def closure(items: Sequence[Item], names: Collection[str]) -> list[Item]:
    """Selects the items that compute the given names, directly or indirectly, in program order."""
    needed, chosen = {*names}, list[Item]()
    for item in reversed(items):
        if {*bound_by(item)} & needed:
            chosen.insert(0, item)
            needed |= item_names(item)
    return chosen


def is_docstring(item: Item) -> bool:
    return (
        isinstance(item, ast.Expr)
        and isinstance(item.value, ast.Constant)
        and isinstance(item.value.value, str)
    )


def _common(lists: Sequence[list[Item]]) -> list[Item]:
    rows = zip(*lists, strict=False)
    same = itertools.takewhile(lambda items: all(each is items[0] for each in items), rows)
    return [items[0] for items in same]


class _Reader:
    """Reads a model_fn mode by mode."""

    def __init__(self, source: Source, function: ast.FunctionDef) -> None:
        self._source = source
        self._function = function
        self._binds: dict[tuple[ast.AST, str], Bind] = {}
        self._modes = {"mode"}
        self.training: set[str] = set()
        self.inlined: dict[ast.FunctionDef, None] = {}

    def flat(self, body: Sequence[ast.stmt], mode: str) -> list[Item]:
        items: list[Item] = []
        for statement in body:
            if is_docstring(statement) or isinstance(statement, (ast.Delete, ast.Pass)):
                continue
            if isinstance(statement, ast.If):
                truth = self._truth(statement.test, mode)
                if truth is not None:
                    items += self.flat(statement.body if truth else statement.orelse, mode)
                    if items and isinstance(items[-1], ast.Return):
                        return items
                    continue
            if self._is_flag(statement):
                continue
            if isinstance(statement, ast.Return):
                return [*items, *self._inlined(statement, mode)]
            self._check_returns(statement)
            items.append(statement)
        return items

    def _check_returns(self, statement: ast.stmt) -> None:
        functions = nodes_in(statement, ast.FunctionDef)
        inner = {each for function in functions for each in nodes_in(function, ast.Return)}
        if any(each not in inner for each in nodes_in(statement, ast.Return)):
            self._source.problem(
                *(
                    statement,
                    "keras-spec",
                    "it returns only under a condition that migrate cannot resolve",
                ),
                _WAY_OUT,
            )

    def _is_flag(self, statement: ast.stmt) -> bool:
        """Records `training = mode == ModeKeys.TRAIN`; returns whether this assigns a mode test."""
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return False
        target = statement.targets[0]
        if not isinstance(target, ast.Name) or self._truth(statement.value, TRAIN) is None:
            return False
        values = [self._truth(statement.value, mode) for mode in MODES]
        if values == [True, False, False]:
            self.training.add(target.id)
            return True
        self._source.problem(
            *(statement, "keras-mode", "it depends on the mode"),
            "Test the mode with `if mode == ...` where it matters",
        )
        return True

    def _truth(self, test: ast.expr, mode: str) -> bool | None:
        """Evaluates a test of the mode; None if it tests something else."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self._truth(test.operand, mode)
            return None if inner is None else not inner
        if isinstance(test, ast.Name) and test.id in self.training:
            return mode == TRAIN
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            return None
        left, right, operator = test.left, test.comparators[0], test.ops[0]
        if not isinstance(left, ast.Name) or left.id not in self._modes:
            return None
        if isinstance(operator, (ast.In, ast.NotIn)) and hasattr(right, "elts"):
            listed = [self._key(each) for each in right.elts]
            return (mode in listed) == isinstance(operator, ast.In)
        key = self._key(right)
        if key is None or not isinstance(operator, (ast.Eq, ast.NotEq)):
            return None
        return (mode == key) == isinstance(operator, ast.Eq)

    def _key(self, node: ast.expr) -> str | None:
        short = self._source.short(node)
        key = short.rpartition(".")[2]
        known = {"TRAIN": TRAIN, "EVAL": EVAL, "PREDICT": PREDICT, "INFER": PREDICT}
        return known.get(key) if "ModeKeys" in short else None

    def _inlined(self, statement: ast.Return, mode: str) -> list[Item]:
        """Replaces `return function(...)` by the function's statements; other returns stay."""
        call = statement.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            function = self._source.function(call.func.id)
            if function is not None and not call.keywords:
                self.inlined[function] = None
                items: list[Item] = []
                for parameter, value in zip(function.args.args, call.args, strict=False):
                    name = parameter.arg
                    if isinstance(value, ast.Name) and value.id in self._modes:
                        self._modes.add(name)
                    elif not (isinstance(value, ast.Name) and value.id == name):
                        key = (call, name)
                        items.append(self._binds.setdefault(key, Bind(name, value)))
                return [*items, *self.flat(function.body, mode)]
        return [statement]

    def spec(self, items: list[Item], mode: str) -> dict[str, ast.expr]:
        """Removes the return of a spec from `items`; returns the spec's arguments by name."""
        last = items[-1] if items else self._function
        call = last.value if isinstance(last, ast.Return) else None
        short = self._source.called(call) if call is not None else ""
        if not short.endswith(("TPUEstimatorSpec", "EstimatorSpec")) or call is None:
            if mode == TRAIN or isinstance(last, ast.Return):
                node = last if isinstance(last, ast.AST) else self._function
                why = (
                    f"what it returns to {mode.lower()} is no TPUEstimatorSpec that is written out"
                )
                self._source.problem(node, "keras-spec", why, _WAY_OUT)
            return {}
        items.pop()
        order = ["mode", "predictions", "loss", "train_op"]
        return every_argument(call, order)  # type: ignore[arg-type]
