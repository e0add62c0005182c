"""The changes of a migration, with reasons, as text and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tf2_engine.types import Object

EFFECTS = {
    "form": "says the same in other words",
    "ours": "stock's TensorFlow 2 cannot say it; tf2_engine does",
    "numbers": "gives other numbers than before",
    "by hand": "is yours to write",
    "left out": "has no counterpart, and changes no number",
}
"""What each effect of a change means for the user."""


@dataclasses.dataclass(frozen=True)
class Change:
    """One setting that TensorFlow 2 has otherwise, or not at all.

    Attributes:
        where: the place that has the setting, such as "table 'words'".
        setting: its legacy name.
        was, now: as a reader would write them; `now` is empty where nothing takes its place.
        why: a sentence.
        effect: one of `EFFECTS`.
    """

    where: str
    setting: str
    was: str
    now: str
    why: str
    effect: str

    def __str__(self) -> str:
        now = f" -> {self.now}" if self.now else ""
        sign = ": " if " " in self.setting else "="
        return f"[{self.effect}] {self.where}: {self.setting}{sign}{self.was}{now}. {self.why}"


@dataclasses.dataclass(frozen=True)
class Report:
    """Everything that a migration changed, in the order of the spec."""

    changes: tuple[Change, ...]

    def lines(self) -> Iterator[str]:
        """Yields a line for each change."""
        yield from map(str, self.changes)

    def as_dict(self) -> dict[str, Object]:
        """Returns values that JSON can hold."""
        return {"changes": [dataclasses.asdict(change) for change in self.changes]}

    def __str__(self) -> str:
        return "\n".join(self.lines()) or "Nothing was changed."
