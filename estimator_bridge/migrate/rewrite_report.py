"""Defines the report on a rewritten program, with a line for each change and each task left."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

TODO = "# TODO(estimator-bridge):"
"""Starts a comment in the new program that says what a person has to do there."""

_TODO = re.compile(rf"^\s*{re.escape(TODO)} (.*)$")
_GOES_ON = re.compile(r"^\s*#   (.*)$")

NoteKind: TypeAlias = Literal[
    "import", "name", "added", "changes", "left out", "by hand", "note", "skipped"
]
"""The kind of a line in the report.

- import, name: an import or a name was replaced.
- added: code was added.
- changes: code stays, but behaves differently in TensorFlow 2.
- left out: code without a counterpart is commented out.
- by hand: the user has to do something.
- note: the whole program stays as it is, or keeps its estimators.
- skipped: code stays because its rule is not selected.
"""


@dataclasses.dataclass(frozen=True)
class Line:
    """A change of a program, or something that could not be changed.

    Attributes:
        line: the line in the old source; 0 if the change concerns the whole program.
        old, new: the source text before and after; either may be empty.
        why: the reason, a sentence; may be empty.
        rule: the id of the rule; empty if no rule applies.
        file: the name of the file in the package; empty if the program is one file.
    """

    line: int
    kind: NoteKind
    old: str
    new: str
    why: str = ""
    rule: str = ""
    file: str = ""

    def __str__(self) -> str:
        places = (self.file, f"line {self.line}" if self.line else "")
        where = ", ".join(filter(None, places))
        change = " -> ".join(part for part in (self.old, self.new) if part)
        change = re.sub(r"\s*\n\s*", " ", change).replace("( ", "(")
        sentence = ". ".join(filter(None, (change, self.why)))
        rule = f" ({self.rule})" if self.rule else ""
        return f"[{self.kind}] {where}{': ' if where else ''}{sentence}{rule}"


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """The new source of a program, and its changes in the order of the old source.

    Attributes:
        trains: whether the program creates an estimator that the form replaces (in the tf2 form, a
            TPUEstimator).
        flags: flags of the old program that the new one drops because nothing uses them.
    """

    source: str
    lines: tuple[Line, ...]
    trains: bool = True
    flags: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, list[dict[str, str | int]]]:
        return {"lines": [dataclasses.asdict(line) for line in self.lines]}


def left_to_do(results: Mapping[str, Rewritten]) -> Iterator[str]:
    """Yields a line, with file and line number, for each comment that leaves work to a person."""
    for file, result in results.items():
        lines = result.source.splitlines()
        for number, line in enumerate(lines, 1):
            if (mark := _TODO.match(line)) is None:
                continue
            words = [mark[1]]
            while number + len(words) <= len(lines):
                more = _GOES_ON.match(lines[number + len(words) - 1])
                if more is None:
                    break
                words.append(more[1])
            yield f"{file}, line {number}: {' '.join(words)}"
