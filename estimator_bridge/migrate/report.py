"""What was rewritten, line by line, and what is left to do."""

from __future__ import annotations

import dataclasses
from typing import Any

KINDS = {
    "import": "is imported from the bridge",
    "name": "leads to the bridge",
    "added": "was added",
    "changes": "stays as it is, and does something else in TensorFlow 2",
    "left out": "has no counterpart and stays as a comment",
    "by hand": "is yours to do",
}


@dataclasses.dataclass(frozen=True)
class Line:
    """One thing that was rewritten, or could not be.

    Attributes:
        line: in the old source; 0 for the program as a whole.
        kind: one of `KINDS`.
        old, new: as written; either may be empty.
        why: a sentence, or empty.
    """

    line: int
    kind: str
    old: str
    new: str
    why: str = ""

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        change = " -> ".join(part for part in (self.old, self.new) if part)
        return f"[{self.kind}] {where}{change}{'. ' if self.why and change else ''}{self.why}"


HONOURED = Line(
    0,
    "by hand",
    "",
    "",
    "What stock ignores though it is documented is honoured now; `run` ignores it. For the "
    "numbers of stock pass quirks='stock' to the spec",
)


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """A program's new source.

    Attributes:
        source: of the new program.
        lines: what was done, in the order of the old source.
    """

    source: str
    lines: tuple[Line, ...]

    def as_dict(self) -> dict[str, Any]:
        """Returns what was done as values that JSON can hold."""
        return {"lines": [dataclasses.asdict(line) for line in self.lines]}
