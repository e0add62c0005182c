"""Inlines functions that a model_fn or the creation of a TPUEstimator calls once.

The rules of the Keras form only read the body of a model_fn and the call of a TPUEstimator.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from estimator_bridge.migrate.keras_form.model_class import optimizer_code
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
    shifted,
)
from estimator_bridge.migrate.syntax.edits import lines_of

_CONFIGS = ("RunConfig", "TPUConfig", "EmbeddingConfigSpec", "TrainSpec", "EvalSpec")
_ALWAYS_EVALUATED = (
    *(ast.Call, ast.keyword, ast.Tuple, ast.List, ast.Dict, ast.BinOp, ast.UnaryOp),
    *(ast.Attribute, ast.Subscript, ast.Starred),
)
_OF_THE_ESTIMATOR = {"params", "mode"}


def places(source: Source) -> Iterator[InlinedCall]:
    for function in nodes_in(source.tree, ast.FunctionDef):
        if not _is_straight(function):
            continue
        uses = source.uses(function.name, source.tree)
        call = source.parent(uses[0]) if len(uses) == 1 else None
        if isinstance(call, ast.Call) and call.func is uses[0]:
            place = InlinedCall(source, call, function)
            if place.is_wanted() and place.is_possible():
                yield place


def _is_straight(function: ast.FunctionDef) -> bool:
    arguments = function.args
    if function.decorator_list or arguments.vararg or arguments.kwarg or arguments.posonlyargs:
        return False
    returned = _last(function)
    if returned is None or returned.value is None:
        return False
    others = (ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal)
    return not any(
        isinstance(node, others) and node is not returned
        for statement in function.body
        for node in _outside_of_functions(statement)
    )


def _last(function: ast.FunctionDef) -> ast.Return | None:
    last = function.body[-1]
    while isinstance(last, ast.With):
        last = last.body[-1]
    return last if isinstance(last, ast.Return) else None


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
        self._body = function.body[modes.is_docstring(function.body[0]) :]
        returned = _last(function)
        assert returned is not None
        assert returned.value is not None
        self._returned, self._value = returned, returned.value
        self._new: dict[str, str] = {}  # new code for the names in the function

    # Conditions.

    def is_wanted(self) -> bool:
        """Whether the rules could not read the function in its old place."""
        source = self._source
        if self.has_config():
            return True
        nodes = [node for each in self._body for node in _outside_of_functions(each)]
        if any(optimizer_code.is_of_optimizer(source, node) for node in nodes):
            return True
        passed = {each.id for each in self._arguments().values() if isinstance(each, ast.Name)}
        return bool(passed & _OF_THE_ESTIMATOR & {*parameters_of(self._caller)})

    def has_config(self) -> bool:
        nodes = [node for each in self._body for node in _outside_of_functions(each)]
        called = {self._source.called(node).rpartition(".")[2] for node in nodes}
        return bool(called & {*_CONFIGS}) and "TPUEstimator" not in called

    def is_possible(self) -> bool:
        source, statement = self._source, self._statement
        if not isinstance(statement, (ast.Assign, ast.AugAssign, ast.Expr, ast.Return)):
            return False
        if self._function in {self._caller, *source.above(self._call)}:
            return False
        between = self._call
        while (up := source.parent(between)) is not statement:
            if not isinstance(up, _ALWAYS_EVALUATED):
                return False
            between = up  # type: ignore[assignment]
        start, end = source.lines(statement, comments=False)
        if (
            source.span(statement)[0] - start != statement.col_offset
            or (source.text[source.span(statement)[1] : end].strip().partition("#")[0])
        ):
            return False
        return self._takes_its_arguments() and not self._hides_names()

    def _takes_its_arguments(self) -> bool:
        arguments = self._arguments()
        count = len(self._call.args) + len(self._call.keywords)
        if {*arguments} != {*parameters_of(self._function)} or len(arguments) != count:
            return False
        simple = (ast.Name, ast.Constant, ast.Attribute, ast.Subscript)
        return all(
            isinstance(value, simple) and "\n" not in ast.unparse(value)
            for value in arguments.values()
        )

    def _arguments(self) -> dict[str, ast.expr]:
        return every_argument(self._call, [each.arg for each in self._function.args.args])

    def _hides_names(self) -> bool:
        if isinstance(self._caller, ast.Module):
            return False
        local = {*bound_in(self._caller), *parameters_of(self._caller)} - {self._function.name}
        free = set().union(*map(names_in, self._body)) - {*self._bound()} - {*self._arguments()}
        return bool(free & local)

    def _bound(self) -> list[str]:
        return [name for statement in self._body for name in bound_in(statement)]

    # The new text.

    def written(self) -> list[tuple[str, int]]:
        """Returns the lines of the new program, each with its old line number."""
        source, statement = self._source, self._statement
        self._rename()
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        if self._returned not in self._body and not isinstance(self._value, ast.Name):
            name = self._name()
            source.replace(self._returned, lambda: f"{name} = {source.code(self._value)}")
        elif self._returned not in self._body:
            source.drop(self._returned)
        new = [*self._statements(), *self._rest()]
        start, end = source.lines(self._function)
        removed = source.text[:start].count("\n") + 1
        behind = source.text[:end].count("\n")
        numbered = _numbered(source.text, 1)
        while behind < len(numbered) and not numbered[behind][0].strip():
            behind += 1
        # The later place is edited first, so that line numbers before it stay valid.
        for begin, until, lines in sorted([(first, last, new), (removed, behind, [])])[::-1]:
            numbered[begin - 1 : until] = lines
        return numbered

    def _rename(self) -> None:
        """Replaces parameters by their arguments; renames variables whose name the caller has."""
        source = self._source
        bound = dict.fromkeys(self._bound())
        for name, value in self._arguments().items():
            if name not in bound:
                self._new[name] = source.code(value)
        taken = self._names_around() - {*self._targets()}
        for name in bound:
            self._new[name] = free_name(name, taken)
        for statement in self._body:
            for node in nodes_in(statement, ast.Name):
                if self._new.get(node.id, node.id) != node.id:
                    source.replace(node, self._new[node.id])

    def _names_around(self) -> set[str]:
        inside = {*ast.walk(self._function)}
        names = {each.id for each in nodes_in(self._caller, ast.Name) if each not in inside}
        return {*names, *parameters_of(self._caller)}

    def _targets(self) -> Sequence[str]:
        is_all = getattr(self._statement, "value", None) is self._call
        return bound_in(self._statement) if is_all and _is_plain(self._statement) else []

    def _statements(self) -> list[tuple[str, int]]:
        pad = " " * self._statement.col_offset
        lines = [
            (f"{pad}{self._new.get(name, name)} = {self._source.code(value)}\n", value.lineno)
            for name, value in self._arguments().items()
            if name in self._bound() and self._new.get(name, name) != self._source.code(value)
        ]
        for statement in self._body:
            if statement is self._returned:
                break
            start, _ = self._source.lines(statement)
            number = self._source.text[:start].count("\n") + 1
            block = self._source.block(statement, self._statement.col_offset)
            lines += _numbered(block, number)
        return lines

    def _rest(self) -> list[tuple[str, int]]:
        source, statement = self._source, self._statement
        pad = " " * statement.col_offset
        value = shifted(source.code(self._value), self._returned.col_offset, statement.col_offset)
        is_name = isinstance(self._value, ast.Name)
        if is_name and _is_plain(statement) and bound_in(statement) == [value]:
            return []
        before: list[tuple[str, int]] = []
        if self._returned in self._body and getattr(statement, "value", None) is self._call:
            source.replace(self._call, value)
            number = statement.lineno if is_name else self._returned.lineno
            return _numbered(f"{pad}{source.code(statement)}\n", number)
        if not is_name:
            value, code = self._name(), value
            before = _numbered(f"{pad}{value} = {code}\n", self._returned.lineno)
        source.replace(self._call, value)
        after = _numbered(f"{pad}{source.code(statement)}\n", statement.lineno)
        return [*(before if self._returned in self._body else []), *after]

    def _name(self) -> str:
        up = self._source.parent(self._call)
        wanted = str(up.arg) if isinstance(up, ast.keyword) else f"of_{self._function.name}"
        return free_name(wanted, {*all_names(self._source.tree), *parameters_of(self._caller)})


def _numbered(text: str, first: int) -> list[tuple[str, int]]:
    return [(line, first + offset) for offset, line in enumerate(lines_of(text))]


def _is_plain(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name)
    )
