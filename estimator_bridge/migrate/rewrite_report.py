"""The report of a rewritten program: a line for each change, and for what is left to do."""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["import", "name", "added", "changes", "left out", "by hand"]
"""What happened: an import statement or a name was replaced, code was added, it stays and behaves
differently in TensorFlow 2, it has no counterpart and is commented out, or is left to the user.
"""


@dataclasses.dataclass(frozen=True)
class Line:
    """A change of a program, or something that could not be changed.

    Attributes:
        line: in the old source; 0 for the program as a whole.
        old, new: as written; either may be empty.
        why: a sentence, or empty.
    """

    line: int
    kind: Kind
    old: str
    new: str
    why: str = ""

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        change = " -> ".join(part for part in (self.old, self.new) if part)
        return f"[{self.kind}] {where}{change}{'. ' if self.why and change else ''}{self.why}"


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """The new source of a program, and its changes in the order of the old source."""

    source: str
    lines: tuple[Line, ...]

    def as_dict(self) -> dict[str, list[dict[str, str | int]]]:
        """Returns the changes as values for JSON."""
        return {"lines": [dataclasses.asdict(line) for line in self.lines]}
