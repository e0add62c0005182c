"""Writes a program of TensorFlow 1 so that the rules of the Keras form read it: no detours.

What has names of the program leads where TensorFlow has it, wrappers for a TPU go, and functions
that are called once stand in the place of their call. The numbers of lines are kept for messages.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator

from estimator_bridge.migrate.keras_form.model_class import optimizer_code
from estimator_bridge.migrate.keras_form.program_text.source import (
    Source,
    all_names,
    arguments,
    bound_in,
    free_name,
    names_in,
    nodes_in,
)
from estimator_bridge.migrate.keras_form.straight import (
    inlining,
    metric_functions,
    shared_functions,
)
from estimator_bridge.migrate.syntax.edits import lines_of

_MOST = 200
"""Programs do not have that many detours; it ends what would go round in circles."""


@dataclasses.dataclass(frozen=True)
class Straight:
    """A program without detours.

    Attributes:
        lines: for each line of `text` the line of the program that it was.
    """

    text: str
    lines: tuple[int, ...]


def straight(text: str, name: str) -> Straight:
    """Returns a program without detours, as far as they are known."""
    lines = tuple(range(1, len(lines_of(text)) + 1))
    for _ in range(_MOST):
        source = Source(text, name)
        numbered = next(filter(None, (step(source) for step in STEPS)), None)
        if numbered is None:
            break
        text = "".join(line for line, _ in numbered)
        lines = tuple(lines[min(number, len(lines)) - 1] for _, number in numbered)
    return Straight(text, lines)


def follow_aliases(source: Source) -> list[tuple[str, int]] | None:
    """Has a name that is assigned once, a module, class or function, be the one that it is for."""
    for node in nodes_in(source.tree, ast.Assign):
        target = node.targets[0]
        if not isinstance(target, ast.Name) or not _is_namespace(source, node.value):
            continue
        if _is_bound_once(source, target.id):
            uses = source.uses(target.id, source.tree)
            return _replaced(source, uses, ast.unparse(node.value), [node])
    return None


def _is_namespace(source: Source, node: ast.expr) -> bool:
    """Returns whether a node is a module, a class or a function of TensorFlow, and no constant."""
    if not isinstance(node, ast.Attribute):
        return False
    full = source.full(node)
    if full.startswith("tensorflow.") and full.endswith((".compat.v1", ".compat.v2")):
        return True
    short = source.short(node)
    last = short.rpartition(".")[2]
    return bool(short) and not last.isupper() and "ModeKeys" not in short


def _is_bound_once(source: Source, name: str) -> bool:
    names = [each for each in nodes_in(source.tree, ast.Name) if each.id == name]
    stores = [each for each in names if not isinstance(each.ctx, ast.Load)]
    is_parameter = any(each.arg == name for each in nodes_in(source.tree, ast.arg))
    is_defined = any(getattr(each, "name", None) == name for each in ast.walk(source.tree))
    return len(stores) == 1 and not is_parameter and not is_defined


def unwrap_optimizers(source: Source) -> list[tuple[str, int]] | None:
    """Leaves out wrappers of optimizers for TPUs that are no statements of their own."""

    def unwrapped(call: ast.AST) -> str:
        return source.code(call.args[0])  # type: ignore[attr-defined]

    for node in nodes_in(source.tree, ast.Call):
        if optimizer_code.wraps_for_tpu(source, node) and not isinstance(node.args[0], ast.Name):
            return _replaced(source, [node], unwrapped)
    for statement, name in _wrappers(source):
        calls = [source.parent(use) for use in source.uses(name, source.tree)]
        outside = [each for each in calls if each is None or statement not in source.above(each)]
        if all(_is_call_of(each, name) for each in outside):
            return _replaced(source, filter(None, outside), unwrapped, [statement])
    return None


def _wrappers(source: Source) -> Iterator[tuple[ast.stmt, str]]:
    """Yields functions of the program that return their optimizer, or wrap it for a TPU."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef):
            if len(node.args.args) == 1 and _only_wraps(source, node):
                yield node, node.name
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.IfExp):
            names = bound_in(node)
            branches = (node.value.body, node.value.orelse)
            if len(names) == 1 and all(_is_wrapper(source, each) for each in branches):
                if _is_bound_once(source, names[0]):
                    yield node, names[0]


def _only_wraps(source: Source, function: ast.FunctionDef) -> bool:
    (parameter,) = (each.arg for each in function.args.args)
    returned = [node.value for node in nodes_in(function, ast.Return)]
    statements = [*nodes_in(function, ast.stmt)][1:]
    return (
        bool(returned)
        and any(source.called(each).endswith("CrossShardOptimizer") for each in returned if each)
        and all(isinstance(each, (ast.If, ast.Return)) for each in statements)
        and all(
            isinstance(each, ast.Name)
            or (optimizer_code.wraps_for_tpu(source, each) and isinstance(each.args[0], ast.Name))  # type: ignore[union-attr, arg-type]
            for each in returned
        )
        and all(names_in(each) >= {parameter} for each in returned if each is not None)
    )


def _is_wrapper(source: Source, node: ast.expr) -> bool:
    if source.short(node).endswith("CrossShardOptimizer"):
        return True
    return (
        isinstance(node, ast.Lambda)
        and isinstance(node.body, ast.Name)
        and [each.arg for each in node.args.args] == [node.body.id]
    )


def _is_call_of(node: ast.AST | None, name: str) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == name
        and len(node.args) == 1
        and not node.keywords
    )


def put_functions_in_place(source: Source) -> list[tuple[str, int]] | None:
    """Puts a function that is called once into the place of its call; see `inlining`."""
    place = next(inlining.places(source), None)
    return None if place is None else place.written()


def _replaced(
    source: Source,
    nodes: Iterable[ast.AST],
    new: str | Callable[[ast.AST], str],
    removed: Iterable[ast.stmt] = (),
) -> list[tuple[str, int]]:
    """Returns the lines of a program with some nodes replaced and statements left out.

    Nodes are replaced by code of as many lines, so that lines keep their numbers.
    """
    for node in nodes:
        lost = (getattr(node, "end_lineno", 0) or 0) - node.lineno  # type: ignore[attr-defined]
        write = lambda node=node: new if isinstance(new, str) else new(node)  # noqa: E731
        source.replace(node, lambda write=write, lost=lost: _of_lines(write(), lost))  # type: ignore[misc]
    gone: set[int] = set()
    for statement in removed:
        start, end = source.lines(statement)
        gone.update(range(source.text[:start].count("\n") + 1, source.text[:end].count("\n") + 1))
    rows = lines_of(source.rendered())
    return [(row, number) for number, row in enumerate(rows, 1) if number not in gone]


def _of_lines(code: str, more: int) -> str:
    """Returns code in brackets with line ends, so that it has a number of lines."""
    missing = more - code.count("\n")
    return code if missing <= 0 else f"({code}" + "\n" * missing + ")"


def return_datasets(source: Source) -> list[tuple[str, int]] | None:
    """Has a function return a dataset in place of the tensors of its only iterator."""
    for node in ast.walk(source.tree):
        iterator = _object_of(node, "get_next")
        dataset = _object_of(iterator, "make_one_shot_iterator")
        if dataset is not None and isinstance(source.parent(node), ast.Return):
            return _replaced(source, [node], source.code(dataset))
    return None


def _object_of(node: ast.AST | None, method: str) -> ast.expr | None:
    """Returns the object whose method a node calls, without arguments."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
        return node.func.value if node.func.attr == method else None
    return None


def name_losses(source: Source) -> list[tuple[str, int]] | None:
    """Gives a name to a loss that is computed in the call that minimizes it."""
    for node in ast.walk(source.tree):
        loss = optimizer_code.loss_of(source, node)
        if loss is None or isinstance(loss, ast.Name):
            continue
        statement = source.statement_of(node)
        if isinstance(statement, (ast.Assign, ast.Expr, ast.Return)):
            name = free_name("total_loss", all_names(source.tree))
            code, pad = source.code(loss), " " * statement.col_offset
            rows = _replaced(source, [loss], name)
            at = next(i for i, (_, number) in enumerate(rows) if number == statement.lineno)
            new = [(f"{line}\n", loss.lineno) for line in f"{pad}{name} = {code}".split("\n")]
            return [*rows[:at], *new, *rows[at:]]
    return None


def unite_specs(source: Source) -> list[tuple[str, int]] | None:
    """Leaves out a spec that is returned under a condition where the next statement returns it."""
    for node in ast.walk(source.tree):
        body = [*getattr(node, "body", [])] if isinstance(node, (ast.FunctionDef, ast.If)) else []
        for statement, following in itertools.pairwise(body):
            if isinstance(statement, ast.If) and not statement.orelse and len(statement.body) == 1:
                specs = [_spec(source, statement.body[0]), _spec(source, following)]
                if specs[0] and specs[0] == specs[1]:
                    return _replaced(source, [], "", [statement])
    return None


def _spec(source: Source, statement: ast.stmt) -> dict[str, str]:
    """Returns the code of the arguments of the spec that a statement returns, by name."""
    value = statement.value if isinstance(statement, ast.Return) else None
    if not isinstance(value, ast.Call) or not source.called(value).endswith("EstimatorSpec"):
        return {}
    by_name, others = arguments(value, ["mode", "predictions", "loss", "train_op"])
    keywords = {str(each.arg): each.value for each in others if isinstance(each, ast.keyword)}
    return {key: ast.unparse(each) for key, each in (by_name | keywords).items()}


STEPS = (
    follow_aliases,
    unwrap_optimizers,
    return_datasets,
    unite_specs,
    metric_functions.lift_metric_functions,
    shared_functions.copy_shared_functions,
    name_losses,
    put_functions_in_place,
)
"""Each returns the lines of a program with one detour less, and their numbers, or None."""
