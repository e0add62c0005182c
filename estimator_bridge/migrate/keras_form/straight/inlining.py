"""Inlines functions that make a config and are called once, for the rules read the call alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from estimator_bridge.migrate.keras_form.program_text import modes
from estimator_bridge.migrate.keras_form.program_text.source import (
    Source,
    all_names,
    bound_in,
    every_argument,
    free_name,
    names_in,
    nodes_in,
    parameters_of,
    returned_by,
    shifted,
)
from estimator_bridge.migrate.syntax.edits import lines_of

_CONFIGS = ("RunConfig", "TPUConfig", "EmbeddingConfigSpec", "TrainSpec", "EvalSpec")
_ALWAYS_EVALUATED = (
    *(ast.Call, ast.keyword, ast.Tuple, ast.List, ast.Dict, ast.BinOp, ast.UnaryOp),
    *(ast.Attribute, ast.Subscript, ast.Starred),
)
_SIMPLE = (ast.Name, ast.Constant, ast.Attribute, ast.Subscript)


def places(source: Source) -> Iterator[InlinedCall]:
    for function in nodes_in(source.tree, ast.FunctionDef):
        if not _is_straight(function) or not _has_config(source, function):
            continue
        uses = source.uses(function.name, source.tree)
        call = source.parent(uses[0]) if len(uses) == 1 else None
        if isinstance(call, ast.Call) and call.func is uses[0]:
            place = InlinedCall(source, call, function)
            if place.is_possible():
                yield place


def _is_straight(function: ast.FunctionDef) -> bool:
    arguments = function.args
    if function.decorator_list or arguments.vararg or arguments.kwarg or arguments.posonlyargs:
        return False
    others = (ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal)
    nodes = [node for each in function.body[:-1] for node in _outside_of_functions(each)]
    return returned_by(function) is not None and not any(isinstance(e, others) for e in nodes)


def _has_config(source: Source, function: ast.FunctionDef) -> bool:
    nodes = [node for each in function.body for node in _outside_of_functions(each)]
    called = {source.called(node).rpartition(".")[2] for node in nodes}
    return bool(called & {*_CONFIGS}) and "TPUEstimator" not in called


def _outside_of_functions(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if not isinstance(node, (ast.FunctionDef, ast.Lambda)):
        for child in ast.iter_child_nodes(node):
            yield from _outside_of_functions(child)


class InlinedCall:
    """A call, and the function whose statements replace it."""

    def __init__(self, source: Source, call: ast.Call, function: ast.FunctionDef) -> None:
        self._source, self._call, self._function = source, call, function
        self._statement = source.statement_of(call)
        self._caller = source.function_of(call)
        *self._body, returned = function.body[modes.is_docstring(function.body[0]) :]
        self._returned, self._value = returned, returned.value  # type: ignore[attr-defined]
        self._arguments = every_argument(call, [each.arg for each in function.args.args])
        self._bound = [name for statement in self._body for name in bound_in(statement)]
        self._new: dict[str, str] = {}  # new code for the names in the function

    def is_possible(self) -> bool:
        source, statement = self._source, self._statement
        is_plain = isinstance(statement, (ast.Assign, ast.Expr, ast.Return))
        if not is_plain or self._function in {self._caller, *source.above(self._call)}:
            return False
        between = source.parent(self._call)
        while between is not statement:
            if not isinstance(between, _ALWAYS_EVALUATED):
                return False
            between = source.parent(between)
        start, end = source.lines(statement, comments=False)
        first, last = source.span(statement)
        is_alone = (
            first - start == statement.col_offset
            and not (source.text[last:end].strip().partition("#")[0])
        )
        return is_alone and self._takes_its_arguments() and not self._hides_names()

    def _takes_its_arguments(self) -> bool:
        count = len(self._call.args) + len(self._call.keywords)
        if {*self._arguments} != {*parameters_of(self._function)} or len(self._arguments) != count:
            return False
        return all(isinstance(value, _SIMPLE) for value in self._arguments.values())

    def _hides_names(self) -> bool:
        if isinstance(self._caller, ast.Module):
            return False
        local = {*bound_in(self._caller), *parameters_of(self._caller)} - {self._function.name}
        read = names_in(self._value).union(*map(names_in, self._body))
        return bool((read - {*self._bound} - {*self._arguments}) & local)

    def written(self) -> list[tuple[str, int]]:
        """Returns the lines of the new program, each with its old line number."""
        source, statement = self._source, self._statement
        self._rename()
        new = [*self._statements(), *self._rest()]
        start, end = source.lines(self._function)
        removed = source.text[:start].count("\n") + 1
        behind = source.text[:end].count("\n")
        numbered = _numbered(source.text, 1)
        while behind < len(numbered) and not numbered[behind][0].strip():
            behind += 1
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        # The later place is edited first, so that line numbers before it stay valid.
        for begin, until, lines in sorted([(first, last, new), (removed, behind, [])])[::-1]:
            numbered[begin - 1 : until] = lines
        return numbered

    def _rename(self) -> None:
        """Replaces parameters by their arguments; renames variables whose name the caller has."""
        source, inside = self._source, {*ast.walk(self._function)}
        for name, value in self._arguments.items():
            self._new[name] = source.code(value)
        taken = {each.id for each in nodes_in(self._caller, ast.Name) if each not in inside}
        taken |= {*parameters_of(self._caller)}
        if getattr(self._statement, "value", None) is self._call:
            taken -= {*bound_in(self._statement)}
        for name in self._bound:
            self._new[name] = free_name(name, taken)
        for statement in (*self._body, self._returned):
            for node in nodes_in(statement, ast.Name):
                if self._new.get(node.id, node.id) != node.id:
                    source.replace(node, self._new[node.id])

    def _statements(self) -> list[tuple[str, int]]:
        pad = " " * self._statement.col_offset
        lines = [
            (f"{pad}{self._new[name]} = {self._source.code(value)}\n", value.lineno)
            for name, value in self._arguments.items()
            if name in self._bound
        ]
        for statement in self._body:
            start, _ = self._source.lines(statement)
            number = self._source.text[:start].count("\n") + 1
            block = self._source.block(statement, self._statement.col_offset)
            lines += _numbered(block, number)
        return lines

    def _rest(self) -> list[tuple[str, int]]:
        source, statement = self._source, self._statement
        pad, number = " " * statement.col_offset, self._returned.lineno
        value = shifted(source.code(self._value), self._returned.col_offset, statement.col_offset)
        if isinstance(self._value, ast.Name) or getattr(statement, "value", None) is self._call:
            source.replace(self._call, value)
            return _numbered(f"{pad}{source.code(statement)}\n", number)
        name = self._name()
        source.replace(self._call, name)
        after = _numbered(f"{pad}{source.code(statement)}\n", statement.lineno)
        return [*_numbered(f"{pad}{name} = {value}\n", number), *after]

    def _name(self) -> str:
        up = self._source.parent(self._call)
        wanted = str(up.arg) if isinstance(up, ast.keyword) else f"of_{self._function.name}"
        return free_name(wanted, {*all_names(self._source.tree), *parameters_of(self._caller)})


def _numbered(text: str, first: int) -> list[tuple[str, int]]:
    return [(line, first + offset) for offset, line in enumerate(lines_of(text))]
