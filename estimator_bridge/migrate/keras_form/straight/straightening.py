"""Simplifies a TensorFlow 1 program for the rules, and keeps the line numbers for messages."""

from __future__ import annotations

import ast
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from estimator_bridge.migrate.keras_form.model_class import optimizer_code
from estimator_bridge.migrate.keras_form.program_text import modes
from estimator_bridge.migrate.keras_form.program_text.source import (
    Source,
    all_names,
    arguments,
    bound_in,
    free_name,
    names_in,
    nodes_in,
    parameters_of,
    returned_by,
    shifted,
)
from estimator_bridge.migrate.keras_form.straight import (
    inlining,
    metric_functions,
    shared_functions,
)
from estimator_bridge.migrate.stock_replacements import is_of_tensorflow
from estimator_bridge.migrate.syntax.edits import lines_of
from estimator_bridge.migrate.syntax.name_flow import NameFlow

_MOST = 200
"""Upper bound on rewriting steps; it stops a program that would never settle."""


@dataclasses.dataclass(frozen=True)
class Straight:
    """A simplified program.

    Attributes:
        lines: for each line of `text`, the number of the line in the original program.
    """

    text: str
    lines: tuple[int, ...]


def straight(text: str, name: str, steps: Sequence[Step] | None = None) -> Straight:
    """Simplifies a program step by step; by default, for a model_fn that becomes a class."""
    lines = tuple(range(1, len(lines_of(text)) + 1))
    for _ in range(_MOST):
        source = Source(text, name)
        numbered = next(filter(None, (step(source) for step in steps or STEPS)), None)
        if numbered is None:
            break
        text = "".join(line for line, _ in numbered)
        lines = tuple(lines[min(number, len(lines)) - 1] for _, number in numbered)
    return Straight(text, lines)


def follow_aliases(source: Source) -> list[tuple[str, int]] | None:
    """Replaces aliases of modules, classes and functions of TensorFlow by their full names."""
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
    """Yields statements and defaults that only give TensorFlow names another name."""

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
            if len(node.body) == 1 + modes.is_docstring(node.body[0]):
                yield node


def _is_alone(source: Source, node: ast.stmt | ast.expr) -> bool:
    """Whether a node cannot be dropped: a default, or the only statement of its block."""
    up = source.parent(node)
    blocks = (getattr(up, name, []) for name in ("body", "orelse", "finalbody"))
    block = next((each for each in blocks if isinstance(each, list) and node in each), [])
    return not isinstance(node, ast.stmt) or (len(block) == 1 and up is not source.tree)


def _is_bound_once(source: Source, name: str) -> bool:
    names = [each for each in nodes_in(source.tree, ast.Name) if each.id == name]
    stores = [each for each in names if not isinstance(each.ctx, ast.Load)]
    is_parameter = any(each.arg == name for each in nodes_in(source.tree, ast.arg))
    is_defined = any(getattr(each, "name", None) == name for each in ast.walk(source.tree))
    return len(stores) == 1 and not is_parameter and not is_defined


def unwrap_optimizers(source: Source) -> list[tuple[str, int]] | None:
    """Removes TPU wrappers around optimizers, unless the wrapper is a statement of its own."""

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
    """Yields functions and lambdas that return their optimizer as it is or wrapped for a TPU."""
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
    place = next(inlining.places(source), None)
    return None if place is None else place.written()


def put_configs_in_place(source: Source) -> list[tuple[str, int]] | None:
    places = (each for each in inlining.places(source) if each.has_config())
    place = next(places, None)
    return None if place is None else place.written()


def _replaced(
    source: Source,
    nodes: Iterable[ast.AST],
    new: str | Callable[[ast.AST], str],
    removed: Iterable[ast.AST] = (),
) -> list[tuple[str, int]]:
    """Returns the lines of a program with some nodes replaced and statements removed.

    A replacement has as many lines as the node had, so the line numbers stay valid.
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
    """Puts code in brackets with `more` line breaks, to preserve the number of lines."""
    missing = more - code.count("\n")
    return code if missing <= 0 else f"({code}" + "\n" * missing + ")"


def return_datasets(source: Source) -> list[tuple[str, int]] | None:
    """Makes a function return its dataset instead of the tensors of its only iterator."""
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


def name_losses(source: Source) -> list[tuple[str, int]] | None:
    """Assigns a loss to a variable if it is computed inside the call that minimizes it."""
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
    """Drops a conditional return of a spec if the next statement returns the same spec."""
    for node in ast.walk(source.tree):
        body = [*getattr(node, "body", [])] if isinstance(node, (ast.FunctionDef, ast.If)) else []
        for statement, following in itertools.pairwise(body):
            if isinstance(statement, ast.If) and not statement.orelse and len(statement.body) == 1:
                specs = [_spec(source, statement.body[0]), _spec(source, following)]
                if specs[0] and specs[0] == specs[1]:
                    return _replaced(source, [], "", [statement])
    return None


def _spec(source: Source, statement: ast.stmt) -> dict[str, str]:
    value = statement.value if isinstance(statement, ast.Return) else None
    if not isinstance(value, ast.Call) or not source.called(value).endswith("EstimatorSpec"):
        return {}
    by_name, others = arguments(value, ["mode", "predictions", "loss", "train_op"])
    keywords = {str(each.arg): each.value for each in others if isinstance(each, ast.keyword)}
    return {key: ast.unparse(each) for key, each in (by_name | keywords).items()}


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


def move_into_model_fns(source: Source) -> list[tuple[str, int]] | None:
    """Moves the code of a function that returns a model_fn to the start of that model_fn."""
    for function in nodes_in(source.tree, ast.FunctionDef):
        returned = returned_by(function)
        inner = next((each for each in function.body if _is_model_fn(each, returned)), None)
        if not isinstance(inner, ast.FunctionDef):
            continue
        body = function.body[modes.is_docstring(function.body[0]) : -1]
        moved = [each for each in body if each is not inner]
        binds = {name for each in moved for name in bound_in(each)} & {*parameters_of(inner)}
        if moved and not binds and not any(nodes_in(inner, ast.Nonlocal)):
            return _moved(source, moved, inner)
    return None


def _is_model_fn(node: ast.stmt, returned: ast.expr | None) -> bool:
    is_returned = isinstance(returned, ast.Name) and getattr(node, "name", "") == returned.id
    return is_returned and isinstance(node, ast.FunctionDef) and "mode" in parameters_of(node)


def _moved(
    source: Source, statements: Sequence[ast.stmt], inner: ast.FunctionDef
) -> list[tuple[str, int]]:
    first = inner.body[min(modes.is_docstring(inner.body[0]), len(inner.body) - 1)]
    rows = [*enumerate(lines_of(source.text), 1)]
    gone: dict[int, str] = {}
    for each in statements:
        start, end = source.lines(each)
        at = source.text[:start].count("\n") + 1
        lines = lines_of(shifted(source.text[start:end], each.col_offset, first.col_offset))
        gone |= dict(enumerate(lines, at))
    place = source.text[: source.lines(first)[0]].count("\n") + 1
    kept = [(row, number) for number, row in rows if number not in gone]
    split = next(index for index, (_, number) in enumerate(kept) if number >= place)
    return [*kept[:split], *((row, number) for number, row in gone.items()), *kept[split:]]


Step = Callable[[Source], list[tuple[str, int]] | None]

STEPS: Sequence[Step] = (
    split_lines,
    follow_aliases,
    unwrap_optimizers,
    return_datasets,
    unite_specs,
    metric_functions.lift_metric_functions,
    move_into_model_fns,
    shared_functions.copy_shared_functions,
    name_losses,
    put_functions_in_place,
)
"""The steps. Each returns the simplified lines with their old numbers, or None if nothing changes.
"""

FOR_FUNCTIONS: Sequence[Step] = (
    split_lines,
    follow_aliases,
    return_datasets,
    metric_functions.lift_metric_functions,
    put_configs_in_place,
)
"""The steps for a model_fn that stays a function."""
