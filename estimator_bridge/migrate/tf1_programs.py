"""Ports programs of TensorFlow 1 to `tf.compat.v1`, the starting point of every form."""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Iterator

from estimator_bridge.migrate import contrib_uses
from estimator_bridge.migrate.syntax.edits import lines_of
from estimator_bridge.run.tf1 import detection
from tf2_engine import log

_V1 = "tensorflow.compat.v1"
_OFF = "disable_v2_behavior"
_SAME = ("compat", "python", "contrib", "core", "keras", "tools")
"""Packages below `tensorflow` whose imports are not renamed."""


def is_of_tf1(path: pathlib.Path, tf1: bool | None = None) -> bool:
    """Whether a program is for TensorFlow 1. If `tf1` is None, the source decides this."""
    if tf1 is not None:
        return tf1
    with log.without_tensorflow():
        return detection.find_use(str(path)) is not None


def ported(text: str) -> str:
    """Makes a TensorFlow 1 program import `tensorflow.compat.v1`; line numbers do not change."""
    text = contrib_uses.replaced(text)
    tree, rows = ast.parse(text), lines_of(text)
    last: ast.stmt | None = None
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)) and (new := dict(_renamed(node))):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                for old, written in new.items():
                    rows[number] = re.sub(rf"(?<![\w.]){old}(?![\w.])", written, rows[number])
            last = node if node in tree.body and isinstance(node, ast.Import) else last
    if isinstance(last, ast.Import) and _OFF not in text and "__main__" in text:
        names = [each.asname or each.name for each in last.names if each.name == "tensorflow"]
        end = rows[(last.end_lineno or 1) - 1]
        rows[(last.end_lineno or 1) - 1] = f"{end.rstrip()}; {names[0]}.{_OFF}()\n"
    return "".join(rows)


def _renamed(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Import):
        for each in node.names:
            if each.name == "tensorflow":
                bound = "" if each.asname else " as tensorflow"
                yield "tensorflow", f"{_V1}{bound}"
    elif node.module and not node.level:
        first, _, below = node.module.partition(".")
        if first == "tensorflow" and below.partition(".")[0] not in _SAME:
            if not (below == "" and {each.name for each in node.names} <= {*_SAME}):
                yield re.escape(node.module), f"{_V1}.{below}".rstrip(".")
