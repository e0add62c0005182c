"""Selects the rules to apply: all, or those that `--only` and `--skip` name by id or class."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from typing import NamedTuple

from estimator_bridge import errors

SAFE, CHANGES_NUMBERS, NEEDS_A_LOOK, REFUSED = "safe", "changes numbers", "needs a look", "refused"

CLASSES = {
    SAFE: "the same in other words",
    CHANGES_NUMBERS: "the program computes something else there",
    NEEDS_A_LOOK: "code becomes a comment, or stays with one: read it",
    REFUSED: "the place is marked, or nothing is written if a training would be lost; such rules "
    "are always applied",
}
"""The classes of rules, and what they mean."""


class Rule(NamedTuple):
    """A rule for people: its class, a key of `CLASSES`, and its effect in words."""

    effect: str
    text: str


@dataclasses.dataclass(frozen=True)
class Selection:
    """The rules that are applied.

    Attributes:
        only: ids and classes; None is all.
        skip: ids and classes that are not applied.
    """

    only: Collection[str] | None = None
    skip: Collection[str] = ()

    def takes(self, rule: str, effect: str) -> bool:
        """Returns whether a rule is applied, by its id and its class; refusals always are."""
        if effect == REFUSED:
            return True
        named = {rule, effect}
        return named.isdisjoint(self.skip) and (
            self.only is None or not named.isdisjoint(self.only)
        )


ALL = Selection()


def of_names(only: str | None, skip: str | None, rules: Iterable[str]) -> Selection:
    """Returns the selection of two lists with commas; a class may have hyphens for its spaces.

    Args:
        rules: the ids that exist.

    Raises:
        InvalidInput: there is no such rule or class, or `skip` names the refusals.
    """
    chosen, skipped = _names(only or ""), _names(skip or "")
    unknown = sorted({*chosen, *skipped} - {*rules, *CLASSES})
    if unknown:
        raise errors.InvalidInput(
            f"migrate: there is no rule and no class {', '.join(unknown)}. --list-rules lists all."
        )
    if REFUSED in skipped:
        raise errors.InvalidInput(
            "migrate: --skip refused: what is refused would train something else, or fail. "
            "Change the program there; --check lists the places."
        )
    return Selection(None if only is None else chosen, skipped or ())


def _names(text: str) -> set[str]:
    classes = {each.replace(" ", "-"): each for each in CLASSES}
    names = (each.strip() for each in text.split(","))
    return {classes.get(each, each) for each in names if each}
