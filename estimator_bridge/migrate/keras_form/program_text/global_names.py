"""The global names of a module: where they are bound and where they are used."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from estimator_bridge.migrate.keras_form.program_text.source import all_names, nodes_in

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def bound(tree: ast.Module) -> dict[str, ast.stmt]:
    names: dict[str, ast.stmt] = {}
    for statement in tree.body:
        for name in _bound_by(statement):
            names.setdefault(name, statement)
    return names


def uses(
    node: ast.AST, hidden: frozenset[str] = frozenset()
) -> Iterator[tuple[ast.Name, frozenset[str]]]:
    """Yields each use of a global name, with the names that are local there.

    `hidden` are the names that are local at `node`.
    """
    if isinstance(node, ast.Name):
        if node.id not in hidden:
            yield node, hidden
        return
    outside, inner = [*_outside(node)], hidden | _hidden_in(node)
    for each in outside:
        yield from uses(each, hidden)
    for each in ast.iter_child_nodes(node):
        is_signature = isinstance(node, _SCOPES) and isinstance(each, ast.arguments)
        if each not in outside and not is_signature:
            yield from uses(each, inner)


def _outside(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the parts of a function or class that are evaluated in the enclosing scope."""
    if not isinstance(node, _SCOPES):
        return
    yield from getattr(node, "decorator_list", ())
    yield from getattr(node, "bases", ())
    arguments = getattr(node, "args", None)
    if arguments is not None:
        yield from (*arguments.defaults, *filter(None, arguments.kw_defaults))
        yield from filter(None, (each.annotation for each in nodes_in(arguments, ast.arg)))
    returns = getattr(node, "returns", None)
    if returns is not None:
        yield returns


def _hidden_in(node: ast.AST) -> set[str]:
    if isinstance(node, _COMPREHENSIONS):
        return set().union(*(all_names(each.target) for each in node.generators))
    is_function = isinstance(node, _SCOPES) and not isinstance(node, ast.ClassDef)
    return _locals(node) if is_function else set()


def _locals(function: ast.AST) -> set[str]:
    arguments = function.args  # type: ignore[attr-defined]
    names = {each.arg for each in nodes_in(arguments, ast.arg)}
    body = function.body  # type: ignore[attr-defined]
    shared: set[str] = set()
    for statement in body if isinstance(body, list) else ():
        names |= set(_bound_by(statement))
        for each in ast.walk(statement):
            if isinstance(each, (ast.Global, ast.Nonlocal)):
                shared |= {*each.names}
    return names - shared


def _bound_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
        return
    if isinstance(node, (ast.Lambda, *_COMPREHENSIONS)):
        return
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        for each in node.names:
            yield each.asname or each.name.partition(".")[0]
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.ExceptHandler) and node.name:
        yield node.name
    for child in ast.iter_child_nodes(node):
        yield from _bound_by(child)
