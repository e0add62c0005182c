"""A note: one place of a program at which a row of the catalogue applies."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from tf2_engine.types import Object


class Place(NamedTuple):
    """What a note is about.

    Attributes:
        kind: "table" or "feature"; or, without a name, the place itself, such as "train.py:12".
        name: the name of the table or feature.
    """

    kind: str
    name: str | None = None

    def __str__(self) -> str:
        return self.kind if self.name is None else f"{self.kind} {self.name!r}"


SPEC = Place("EmbeddingConfigSpec")


def table(name: str) -> Place:
    """Returns the place of a table."""
    return Place("table", name)


def feature(key: str) -> Place:
    """Returns the place of a feature."""
    return Place("feature", key)


class SourceText(str):
    """A value as a program's source has it, such as a name: reports show it as it is."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True)
class Note:
    """One place at which a row applies; `render` words it.

    Attributes:
        rule: the row's name in `catalogue.ROWS`.
        where: what has the setting.
        value: the setting's value; of a function or an optimizer its name.
    """

    rule: str
    where: Place
    value: Object = None
