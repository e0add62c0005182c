"""The plan of a conversion: where each tensor of the new checkpoint comes from."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections import Counter
from collections.abc import Iterable, Iterator

from estimator_bridge import errors
from estimator_bridge.convert.formats.checkpoint_format import (
    GLOBAL_STEP,
    Contents,
    Gap,
    Target,
    WriterHosts,
)
from estimator_bridge.convert.moves import TensorMove
from estimator_bridge.convert.options import ConversionOptions


@dataclasses.dataclass(frozen=True)
class ConversionPlan:
    """A conversion.

    Attributes:
        target: the new checkpoint.
        moves: one for each tensor, tables first.
        skipped: tensors without a counterpart that the user allowed.
        step: the global step, None if there is none.
        notes: assumptions, a line each.
    """

    target: Target
    moves: tuple[TensorMove, ...]
    skipped: tuple[Gap, ...]
    step: int | None
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Returns a line for each tensor, then the skipped tensors and the notes."""
        return [
            *(str(move) for move in self.moves),
            *(f"left out: {name} ({reason})" for name, reason in self.skipped),
            *(f"note: {note}." for note in self.notes),
        ]


def make(
    old: Contents, hosts: WriterHosts, target: Target, options: ConversionOptions
) -> ConversionPlan:
    """Returns the plan of a conversion.

    Args:
        hosts: how the writer of the old checkpoint spread its tables.

    Raises:
        Unmatched: something has no counterpart and is not allowed to; the message lists it.
        InvalidInput: the options do not fit the checkpoint.
    """
    step = old.step() if options.global_step is None else options.global_step
    gaps = list(old.gaps)
    moves: list[TensorMove] = []
    for each in _all_moves(old, hosts, target, step):
        if isinstance(each, Gap):
            gaps.append(each)
        else:
            moves.append(each)
    _check_allowed([*gaps, *old.doubtful], options.allow)
    targets = Counter(move.target for move in moves)
    twice = sorted(name for name, count in targets.items() if count > 1)
    if twice:
        raise errors.InvalidInput(f"{twice} would be written twice. Change `tables` or `rename`.")
    moves.extend(target.unchanged(set(targets)))
    notes = [f"{name!r} looks like a table and is carried as it is" for name, _ in old.doubtful]
    if hosts.note is not None:
        notes.insert(0, hosts.note)
    return ConversionPlan(target, tuple(moves), tuple(gaps), step, tuple(notes))


def _all_moves(
    old: Contents, hosts: WriterHosts, target: Target, step: int | None
) -> Iterator[TensorMove | Gap]:
    for table in old.tables:
        yield from target.table(table, hosts.layout(table.parameters.shape[0]))
    if step is None and target.needs_step:
        yield Gap(GLOBAL_STEP, "an estimator needs it; give `global_step`")
    for name, variable in old.others.items():
        yield from target.variable(old.reader.tensors[name], variable, old.full_names.get(name))


def _check_allowed(gaps: Iterable[Gap], allow: Iterable[str]) -> None:
    """Raises Unmatched if a gap has a name that no pattern allows."""
    patterns = tuple(allow)
    refused = [
        gap for gap in gaps if not any(fnmatch.fnmatchcase(gap.name, each) for each in patterns)
    ]
    if refused:
        lines = "\n".join(f"  {name}: {reason}" for name, reason in refused)
        raise errors.Unmatched(
            f"No counterpart was found for\n{lines}\nAllow it by name (--allow NAME), which leaves "
            "it out, gives a missing slot its initial value, and carries as it is what only looks "
            "like a table; or say what it is with --table or --rename."
        )
