"""Edits a program by replacing spans of its text; all other text stays as it is."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping

import libcst as cst

from estimator_bridge.migrate.syntax.parsed_program import ParsedProgram

Span = tuple[int, int]
"""The offsets of the first character and of the end (exclusive)."""


class Edits:
    """Collects the edits of one source, and applies them."""

    def __init__(self, program: ParsedProgram, source: str) -> None:
        self._program = program
        self._source = source
        self._newline = "\r\n" if "\r\n" in source else "\n"
        self._line_starts = [*itertools.accumulate(map(len, lines_of(source)), initial=0)]
        self._replacements: dict[Span, str] = {}

    def span(self, node: cst.CSTNode) -> Span:
        position = self._program.position(node)
        first, last = position.start, position.end
        starts = self._line_starts
        return starts[first.line - 1] + first.column, starts[last.line - 1] + last.column

    def line_start(self, line: int) -> int:
        return self._line_starts[min(line, len(self._line_starts)) - 1]

    def lines(self, first: int, last: int) -> Span:
        return self.line_start(first), self.line_start(last + 1)

    def indentation(self, node: cst.CSTNode) -> str:
        """Returns the text before a node in its line, with blanks in place of code."""
        position = self._program.position(node).start
        start = self.line_start(int(position.line))
        before = self._source[start : start + int(position.column)]
        return before if not before.strip() else " " * len(before)

    def text(self, start: int, end: int) -> str:
        return self._source[start:end]

    def text_of(self, node: cst.CSTNode) -> str:
        return self.text(*self.span(node))

    def replace(self, start: int, end: int, new: str) -> None:
        self._replacements[start, end] = new

    def replace_node(self, node: cst.CSTNode, new: str) -> None:
        self.replace(*self.span(node), new)

    def insert(self, offset: int, text: str) -> None:
        """Inserts text, after earlier insertions at this offset."""
        before = self._replacements.get((offset, offset), "")
        self._replacements[offset, offset] = before + text

    def apply(self) -> str:
        """Computes the new text. A replacement inside a longer replacement has no effect."""
        new = {
            span: text.replace("\r\n", "\n").replace("\n", self._newline)
            for span, text in self._replacements.items()
        }
        return spliced(self._source, new, (0, len(self._source)))


def spliced(text: str, new: Mapping[Span, str | Callable[[], str]], within: Span) -> str:
    """Applies replacements to a span of a text; replacements inside longer ones are ignored."""
    position, last = within
    inside = [span for span in new if position <= span[0] and span[1] <= last]
    parts = []
    # At the same offset, insertions come first, then the longest replacement.
    for start, end in sorted(inside, key=lambda span: (span[0], span[0] < span[1], -span[1])):
        if start >= position:
            code = new[start, end]
            parts += [text[position:start], code if isinstance(code, str) else code()]
            position = end
    return "".join([*parts, text[position:last]])


def lines_of(text: str) -> list[str]:
    """Splits a source into lines with line ends; `splitlines` would also split at form feeds."""
    return re.findall(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+", text)


def commented_out(text: str, indentation: str, column: int | None = None) -> str:
    """Turns lines into comments at this indentation; deeper indentation is kept.

    Args:
        column: the column at which the text starts; by default the length of `indentation`.
    """
    lines = []
    column = len(indentation) if column is None else column
    for line in lines_of(text):
        code = line[column:] if not line[:column].strip() else line.lstrip()
        lines.append(f"{indentation}# {code.rstrip()}".rstrip() + "\n")
    return "".join(lines)
