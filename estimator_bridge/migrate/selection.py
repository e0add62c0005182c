"""Selects the rules to apply: all rules, or the rules that `--only` and `--skip` name."""

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
    REFUSED: "the place is marked, or nothing is written if a training run would be lost; such "
    "rules are always applied",
}
"""The classes of rules and their meaning."""


class Rule(NamedTuple):
    """Describes a rule to users: its class (a key of `CLASSES`) and its effect in words."""

    effect: str
    text: str


@dataclasses.dataclass(frozen=True)
class Selection:
    """Decides which rules are applied.

    `only` and `skip` contain ids and classes of rules. If `only` is None, all rules are selected.
    """

    only: Collection[str] | None = None
    skip: Collection[str] = ()

    def takes(self, rule: str, effect: str) -> bool:
        """Whether a rule of class `effect` is applied. Refusals are always applied."""
        if effect == REFUSED:
            return True
        named = {rule, effect}
        return named.isdisjoint(self.skip) and (
            self.only is None or not named.isdisjoint(self.only)
        )


ALL = Selection()


def of_names(only: str | None, skip: str | None, rules: Iterable[str]) -> Selection:
    """Parses the comma-separated lists of `--only` and `--skip`.

    Names of classes may have hyphens instead of spaces.

    Raises:
        InvalidInput: a name is neither a rule nor a class, or `skip` has the class "refused".
    """
    chosen, skipped = _names(only or ""), _names(skip or "")
    unknown = sorted({*chosen, *skipped} - {*rules, *CLASSES})
    if unknown:
        raise errors.InvalidInput(
            f"migrate: unknown rule or class: {', '.join(unknown)}. --list-rules lists all of them."
        )
    if REFUSED in skipped:
        raise errors.InvalidInput(
            "migrate: --skip cannot name the class `refused`, because the new program would train "
            "something else, or fail. Change the program at the places that --check lists."
        )
    return Selection(None if only is None else chosen, skipped or ())


def _names(text: str) -> set[str]:
    classes = {each.replace(" ", "-"): each for each in CLASSES}
    names = (each.strip() for each in text.split(","))
    return {classes.get(each, each) for each in names if each}
