"""Simplifies a TensorFlow 1 program for the rules, and keeps the line numbers for messages."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

from estimator_bridge.migrate.keras_form.program_text.source import (
    Source,
    is_docstring,
    nodes_in,
    returned_by,
)
from estimator_bridge.migrate.stock_replacements import is_of_tensorflow
from estimator_bridge.migrate.syntax.edits import lines_of
from estimator_bridge.migrate.syntax.name_flow import NameFlow

_MOST = 200
"""Upper bound on rewriting steps, in case a program never stops changing."""


@dataclasses.dataclass(frozen=True)
class Straight:
    """A simplified program; `lines` has the original number of each line of `text`."""

    text: str
    lines: tuple[int, ...]


def straight(text: str, name: str) -> Straight:
    lines = tuple(range(1, len(lines_of(text)) + 1))
    for _ in range(_MOST):
        source = Source(text, name)
        numbered = next(filter(None, (step(source) for step in PASSES)), None)
        if numbered is None:
            break
        text = "".join(line for line, _ in numbered)
        lines = tuple(lines[min(number, len(lines)) - 1] for _, number in numbered)
    return Straight(text, lines)


def follow_aliases(source: Source) -> list[tuple[str, int]] | None:
    flow = NameFlow(source.tree)
    calls = [each for each in nodes_in(source.tree, ast.Call) if _is_of_partial(flow, each)]
    inside = {node for call in calls for node in ast.walk(call.func)}
    uses = [each for each in ast.walk(source.tree) if each not in inside and _is_alias(flow, each)]
    bindings = [*_bindings_of_names(flow, source.tree)]
    if not (uses or calls or bindings):
        return None

    def written(node: ast.AST) -> str:
        if node in calls:
            return _without_partial(source, flow, node)
        return _through_imports(source, flow.full_names(node)[0])

    gone = [each for each in bindings if not _is_alone(source, each)]
    for each in bindings:
        if each not in gone:
            source.replace(each, "pass" if isinstance(each, ast.stmt) else "None")
    outermost = [each for each in (*uses, *calls) if not {*source.above(each)} & {*uses, *bindings}]
    return _replaced(source, outermost, written, gone)


def _is_namespace(names: Sequence[str]) -> bool:
    last = names[0].rpartition(".")[2] if names else ""
    is_constant = last.isupper() and "ModeKeys" not in names[0]
    return is_of_tensorflow(names[0] if names else "") and not is_constant


def _is_alias(flow: NameFlow, node: ast.AST) -> bool:
    is_read = isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)
    if not (is_read or isinstance(node, ast.Call)) or flow.partial(node) is not None:
        return False
    is_alias = flow.is_alias(node) and _is_namespace(flow.full_names(node))
    return is_alias and (flow.is_base(node) or not flow.may_be_none(node))


def _is_of_partial(flow: NameFlow, call: ast.Call) -> bool:
    return flow.partial(call.func) is not None and _is_namespace(flow.full_names(call.func))


def _without_partial(source: Source, flow: NameFlow, call: ast.Call) -> str:
    partial = flow.partial(call.func)
    assert partial is not None
    given = {each.arg for each in call.keywords}
    bound = [each for each in partial.keywords if each.arg not in given]
    parts = [*partial.args[1:], *call.args, *bound, *call.keywords]
    codes = [ast.unparse(each) if each in bound else source.code(each) for each in parts]
    return f"{_through_imports(source, flow.full_names(call.func)[0])}({', '.join(codes)})"


def _through_imports(source: Source, full: str) -> str:
    above = {
        each: name for name, each in source.aliases.items() if f"{full}.".startswith(f"{each}.")
    }
    longest = max(above, key=len, default="")
    return f"{above.get(longest, '')}{full.removeprefix(longest)}"


def _bindings_of_names(flow: NameFlow, tree: ast.Module) -> Iterator[ast.stmt | ast.expr]:
    def is_name(value: ast.expr | None) -> bool:
        parts = value.elts if isinstance(value, ast.Tuple) else filter(None, [value])
        names = [_is_namespace(flow.full_names(each)) and flow.is_followed(each) for each in parts]
        return bool(names) and all(names)

    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and is_name(node.value):
            yield node
        elif isinstance(node, ast.arguments):
            defaults = [*node.defaults, *filter(None, node.kw_defaults)]
            yield from filter(is_name, defaults)
        elif isinstance(node, ast.FunctionDef) and is_name(returned_by(node)):
            if len(node.body) == 1 + is_docstring(node.body[0]):
                yield node


def _is_alone(source: Source, node: ast.stmt | ast.expr) -> bool:
    """Whether a node cannot be dropped: it is no statement, or the only one in its block."""
    up = source.parent(node)
    blocks = (getattr(up, name, []) for name in ("body", "orelse", "finalbody"))
    block = next((each for each in blocks if isinstance(each, list) and node in each), [])
    return not isinstance(node, ast.stmt) or (len(block) == 1 and up is not source.tree)


def _replaced(
    source: Source,
    nodes: Iterable[ast.AST],
    new: str | Callable[[ast.AST], str],
    removed: Iterable[ast.AST] = (),
) -> list[tuple[str, int]]:
    """Replaces nodes and removes statements; returns each new line with its old line number.

    A replacement gets as many lines as the node had, so later lines keep their numbers.
    """
    for node in nodes:
        lost = (getattr(node, "end_lineno", 0) or 0) - node.lineno  # type: ignore[attr-defined]
        write = lambda node=node: new if isinstance(new, str) else new(node)  # noqa: E731
        source.replace(node, lambda write=write, lost=lost: _of_lines(write(), lost))  # type: ignore[misc]
    gone: set[int] = set()
    for statement in removed:
        start, end = source.lines(statement)  # type: ignore[arg-type]
        gone.update(range(source.text[:start].count("\n") + 1, source.text[:end].count("\n") + 1))
    rows = lines_of(source.rendered())
    return [(row, number) for number, row in enumerate(rows, 1) if number not in gone]


def _of_lines(code: str, more: int) -> str:
    missing = more - code.count("\n")
    return code if missing <= 0 else f"({code}" + "\n" * missing + ")"


def return_datasets(source: Source) -> list[tuple[str, int]] | None:
    """Makes a function return a dataset instead of the tensors of its only iterator."""
    for node in ast.walk(source.tree):
        iterator = _object_of(node, "get_next")
        dataset = _object_of(iterator, "make_one_shot_iterator")
        if dataset is not None and isinstance(source.parent(node), ast.Return):
            return _replaced(source, [node], source.code(dataset))
    return None


def _object_of(node: ast.AST | None, method: str) -> ast.expr | None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
        return node.func.value if node.func.attr == method else None
    return None


def split_lines(source: Source) -> list[tuple[str, int]] | None:
    """Puts each statement on its own line, because statements are edited by line."""
    for node in ast.walk(source.tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            for statement in block if isinstance(block, list) else ():
                before, line = source.before(statement), statement.lineno
                if not before.strip() or before.lstrip().startswith(("elif", "@", "async")):
                    continue
                first = before.rstrip().rstrip(";").rstrip()
                is_below = first.endswith(":")
                indent = len(before) - len(before.lstrip()) + 2 * is_below
                rows = [*enumerate(lines_of(source.text), 1)]
                rest = " " * indent + rows[line - 1][1][len(before) :]
                new = [(f"{first}\n", line), (rest, line)]
                numbered = [(row, number) for number, row in rows]
                return [*numbered[: line - 1], *new, *numbered[line:]]
    return None


Pass = Callable[[Source], list[tuple[str, int]] | None]

PASSES: Sequence[Pass] = (
    split_lines,
    follow_aliases,
    return_datasets,
)
"""The simplifications, in order.

Each returns the new lines, each with its old line number, or None if it changes nothing.
"""
