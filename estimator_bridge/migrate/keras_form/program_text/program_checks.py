"""Checks that every name in the new program is bound and that TensorFlow 2 has each `tf` name."""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterator

from estimator_bridge.migrate.keras_form.program_text.source import Source, nodes_in
from estimator_bridge.run import public_names


def check(text: str, program: Source) -> None:
    """Raises Refused if `text` is not valid Python, or uses a name that does not exist.

    Messages refer to the lines of the old program, `program`.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        program.problem(
            *(program.tree, "keras-missing-name"),
            f"the new program would not be valid Python: {error}",
            "Put each statement on a line of its own, or migrate to the tf2 form",
        )
        program.check()
        raise
    for name in sorted({*_unbound(text), *_not_in_tensorflow(tree)}):
        program.problem(
            *(_reading(program, name), "keras-missing-name"),
            f"the new program would use {name}, which it does not have",
            "Leave the code that uses it out, or migrate to the tf2 form",
        )
    program.check()


def _reading(program: Source, name: str) -> ast.AST:
    for node in ast.walk(program.tree):
        is_read = isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)
        if is_read and ast.unparse(node) == name:
            return node
    return program.tree


def _unbound(text: str) -> Iterator[str]:
    module = symtable.symtable(text, "the new program", "exec")
    tables = [module]
    for table in tables:  # grows in the loop
        tables += table.get_children()
    bound = {*dir(builtins), "__file__", "__name__", "__doc__"}
    bound.update(each.get_name() for each in module.get_symbols() if _is_bound(each))
    for table in tables[1:]:
        bound.update(each.get_name() for each in table.get_symbols() if each.is_declared_global())
    for table in tables:
        for symbol in table.get_symbols():
            is_outer = table is module or symbol.is_global()
            if is_outer and symbol.is_referenced() and symbol.get_name() not in bound:
                yield symbol.get_name()


def _is_bound(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()


def _not_in_tensorflow(tree: ast.AST) -> Iterator[str]:
    tf = public_names.listed()

    inner = {node.value for node in nodes_in(tree, ast.Attribute)}
    for node in nodes_in(tree, ast.Attribute):
        parts = ast.unparse(node).split(".")
        if node in inner or parts[0] != "tf" or not all(map(str.isidentifier, parts)):
            continue
        if not public_names.has(tf, ".".join(parts[1:])):
            yield ".".join(parts)
