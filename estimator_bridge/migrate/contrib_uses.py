"""Replaces names of `tf.contrib` by the names that the same objects have today."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping

from estimator_bridge.migrate.syntax.edits import lines_of, spliced
from estimator_bridge.run.tf1 import contrib_names

_CONTRIB = "tensorflow.contrib"
_LAYERS = "tf_slim.layers"
_HIDDEN = "tensorflow.python."
"""Modules below it need `from ... import`, because `tensorflow` has no attribute `python`."""
_WITH_REMAINDER = "estimator_bridge.run.tf1.contrib.old_arguments:batch_and_drop_remainder"


def replaced(text: str) -> str:
    tree = ast.parse(text)
    bound = dict(_imported(tree))
    module = next((name for name, full in bound.items() if full == "tensorflow"), None)
    if module is None or "contrib" not in text:
        return text
    rows = lines_of(text)
    starts = [sum(map(len, rows[:number])) for number in range(len(rows))]
    new: dict[tuple[int, int], str] = {}
    done: set[ast.AST] = set()
    needed: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Name)) and node not in done:
            target = _target(_full(node, bound))
            if target:
                new[_span(node, rows, starts)] = _code(target, module)
                done.update(ast.walk(node))
                needed.add(target)
    left = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node not in done}
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and str(statement.module).startswith(_CONTRIB):
            if not left & {each.asname or each.name for each in statement.names}:
                new[_span(statement, rows, starts)] = "\n" * (
                    (statement.end_lineno or statement.lineno) - statement.lineno
                )
    at = next(each for each in tree.body if module in dict(_imported(each)))
    start, end = _span(at, rows, starts)
    imports = "".join(f"; {each}" for each in _imports(needed))
    new[start, end] = f"{text[start:end]}{imports}"
    return spliced(text, new, (0, len(text)))


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                first = each.name.partition(".")[0]
                yield (each.asname, each.name) if each.asname else (first, first)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for each in node.names:
                yield each.asname or each.name, f"{node.module}.{each.name}"


def _full(node: ast.expr, bound: Mapping[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        above = _full(node.value, bound)
        return f"{above}.{node.attr}" if above else ""
    return bound.get(node.id, "") if isinstance(node, ast.Name) else ""


def _target(full: str) -> str:
    path, _, name = full.removeprefix(f"{_CONTRIB}.").rpartition(".")
    if not full.startswith(f"{_CONTRIB}.") or not path:
        return ""
    target = contrib_names.MODULES.get(path, {}).get(name, "")
    if not target and path in contrib_names.WHOLE:
        # A private module also has the public names of its package.
        listed = contrib_names.MODULES.get(path.partition(".")[0], {})
        target = listed.get(name) or f"{contrib_names.WHOLE[path]}:{name}"
    return target


def _imports(targets: Collection[str]) -> Iterator[str]:
    pairs = [each.partition(":")[::2] for each in sorted({*targets} - {_WITH_REMAINDER})]
    # `tf_slim.layers`, read as an attribute, is not the module that an import finds.
    names = [f"{name} as slim_{name}" for home, name in pairs if home == _LAYERS and name]
    homes = {
        home for home, name in pairs if home != "tensorflow" and not (home == _LAYERS and name)
    }
    for home in sorted(homes):
        above, _, last = home.rpartition(".")
        hidden = home.startswith(_HIDDEN)
        yield f"from {above} import {last} as tf_{last}" if hidden else f"import {home}"
    if names:
        yield f"from {_LAYERS} import {', '.join(names)}"


def _code(target: str, module: str) -> str:
    if target == _WITH_REMAINDER:
        return "(lambda size: lambda data: data.batch(size, drop_remainder=True))"
    home, _, name = target.partition(":")
    if home == "tensorflow":
        return f"{module}.{name.removeprefix('compat.v1').removeprefix('.')}"
    if home == _LAYERS and name:
        return f"slim_{name}"
    if home.startswith(_HIDDEN):
        home = f"tf_{home.rpartition('.')[2]}"
    return f"{home}.{name}" if name else home


def _span(node: ast.expr | ast.stmt, rows: list[str], starts: list[int]) -> tuple[int, int]:
    first = len(rows[node.lineno - 1].encode()[: node.col_offset].decode())
    last_line = node.end_lineno or node.lineno
    last = len(rows[last_line - 1].encode()[: node.end_col_offset].decode())
    return starts[node.lineno - 1] + first, starts[last_line - 1] + last
