"""Checks of the new program: every name in it is bound, and TensorFlow 2 has those of `tf`."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from estimator_bridge import errors
from estimator_bridge.migrate.keras_form.tensorflow_names import tensorflow


def check(text: str, name: str) -> None:
    """Raises Untranslatable if a new program is not valid, or would miss names when it runs."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise errors.Untranslatable(
            f"{name}: the new program would not be valid Python: {error}. Put each statement on a "
            "line of its own, or migrate to the tf2 form."
        ) from error
    missing = sorted({*_unbound(tree), *_not_in_tensorflow(tree)})
    if missing:
        raise errors.Untranslatable(
            f"{name}: the new program would use {', '.join(missing)}, which it does not have. "
            "Leave the code that uses it out, or migrate to the tf2 form."
        )


def _unbound(tree: ast.AST) -> Iterator[str]:
    """Yields names that are read and bound nowhere."""
    bound = {*dir(builtins), "__file__", "__name__", "__doc__"}
    bound.update(*map(_bound_by, ast.walk(tree)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in bound:
            yield node.id


def _bound_by(node: ast.AST) -> set[str]:
    """Returns the names that a node binds."""
    if isinstance(node, ast.Name):
        return set() if isinstance(node.ctx, ast.Load) else {node.id}
    if isinstance(node, ast.alias):
        return {(node.asname or node.name).split(".")[0]}
    if isinstance(node, ast.arg):
        return {node.arg}
    name = getattr(node, "name", None)  # of functions, classes and handlers of exceptions
    return {name} if isinstance(name, str) else set()


def _not_in_tensorflow(tree: ast.AST) -> Iterator[str]:
    """Yields names below `tf` that TensorFlow 2 does not have."""
    tf = tensorflow()

    inner = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        parts = ast.unparse(node).split(".") if isinstance(node, ast.Attribute) else [""]
        if node in inner or parts[0] != "tf" or not all(map(str.isidentifier, parts)):
            continue
        value: object = tf
        for part in parts[1:]:
            if not hasattr(value, part):
                yield ".".join(parts)
                break
            value = getattr(value, part)
            if not isinstance(value, type(tf)):
                break  # attributes of classes and values are not looked at
