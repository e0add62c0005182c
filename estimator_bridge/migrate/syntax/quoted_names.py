"""Finds names in annotations written as strings: `"tf.estimator.Estimator"`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

import libcst as cst

from estimator_bridge.migrate.syntax.parsed_program import ParsedProgram, code_of


class QuotedName(NamedTuple):
    """A dotted name in a string; `start` and `end` are offsets that include the quotes."""

    text: str
    full_names: list[str]
    start: int
    end: int


def read(program: ParsedProgram, string: cst.SimpleString) -> Iterator[QuotedName]:
    value = str(string.raw_value)
    if not _is_annotation(program, string) or string.prefix or not value.isascii():
        return
    try:
        tree = ast.parse(value, mode="eval")
    except SyntaxError:
        return
    offset = len(string.quote)
    for node in _outermost(tree):
        text = ast.unparse(node)
        start, end = node.col_offset + offset, (node.end_col_offset or 0) + offset
        # In a string of several lines, the parser's offsets are not offsets in the string.
        if string.value[start:end] == text:
            yield QuotedName(text, program.full_names_of(string, text), start, end)


def _outermost(node: ast.AST) -> Iterator[ast.Name | ast.Attribute]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Name | ast.Attribute):
            yield child
        else:
            yield from _outermost(child)


def _is_annotation(program: ParsedProgram, string: cst.CSTNode) -> bool:
    node: cst.CSTNode | None = string
    while node is not None and not isinstance(node, cst.Annotation):
        literal = isinstance(node, cst.Subscript) and code_of(node.value).endswith("Literal")
        if literal or isinstance(node, cst.Call | cst.BaseStatement):
            return False
        node = program.parent(node)
    return node is not None
