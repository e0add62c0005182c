"""Changes of a source as replaced spans of its text: whatever no span covers stays as it was."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import libcst as cst


class Edits:
    """Replacements and insertions, by position, for one source."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._newline = "\r\n" if "\r\n" in source else "\n"
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._spans: dict[tuple[int, int], str] = {}

    def offset(self, position: Any) -> int:
        """Returns where a line and column is in the text."""
        return int(self._starts[position.line - 1] + position.column)

    def line_start(self, line: int) -> int:
        """Returns where a line begins; lines count from 1."""
        return self._starts[min(line, len(self._starts)) - 1]

    def text(self, start: int, end: int) -> str:
        """Returns a part of the old text."""
        return self._source[start:end]

    def replace(self, start: int, end: int, new: str) -> None:
        """Replaces a span; an empty one is an insertion, behind those made there before."""
        before = self._spans.get((start, end), "") if start == end else ""
        self._spans[start, end] = before + new

    def apply(self) -> str:
        """Returns the new text. Spans inside of a replaced one are covered by it."""
        parts, done = [], 0
        for (start, end), new in sorted(self._spans.items(), key=lambda each: _order(each[0])):
            if start < done:
                continue
            new = new.replace("\r\n", "\n").replace("\n", self._newline)
            parts += [self._source[done:start], new]
            done = end
        return "".join([*parts, self._source[done:]])


def _order(span: tuple[int, int]) -> tuple[int, int]:
    # At one place insertions come first, then the longest replacement.
    start, end = span
    return start, -sys.maxsize if start == end else -end


def in_comment(text: str, indent: int) -> str:
    """Returns lines as comments at that indent; what they say is not changed."""
    lines = []
    for line in text.splitlines(keepends=True):
        kept = line[indent:] if not line[:indent].strip() else line.lstrip()
        lines.append(f"{' ' * indent}# {kept.rstrip()}".rstrip() + "\n")
    return "".join(lines)


def one_line(node: Any) -> str:
    """Returns the source of a node in one line."""
    return " ".join(cst.Module([]).code_for_node(node).split())


def runs(arguments: Any, gone: Any) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Yields runs of arguments that go: (first, last, kept one before, kept one behind)."""
    kept_before, run = None, []
    for argument in arguments:
        if argument in gone:
            run.append(argument)
            continue
        if run:
            yield run[0], run[-1], kept_before, argument
        kept_before, run = argument, []
    if run:
        yield run[0], run[-1], kept_before, None
