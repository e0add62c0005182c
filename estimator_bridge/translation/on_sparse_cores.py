"""Adapts a legacy spec to SparseCores, which refuse some settings and ignore others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from estimator_bridge import errors
from estimator_bridge.settings import render
from estimator_bridge.settings.catalogue import ROWS, Value, notes_of_spec, readers
from estimator_bridge.settings.legacy_spec import LegacySpec, Note
from tf2_engine import plain_text

if TYPE_CHECKING:
    from tf2_engine.specs import EngineSpec

RAISING = ("optimizer_lost", "ftrl_zero_accumulator", "weight_decay")
"""The names of the catalogue's rows whose settings SparseCores refuse."""

DROPPED = ("adam_not_lazy", "gradient_limits", "no_gradient_accumulation")
"""The rows whose settings stock's TPUEmbeddingV2 drops silently. The bridge adds a warning."""

KEPT = {
    "weight_limits": "honoured here, by the ops for SparseCores; stock's TPUEmbeddingV2 does not "
    "pass it to these ops",
    "sequence": "honoured here, with a row of ids for each position; stock's TPUEmbeddingV2 "
    "ignores it",
}
"""How the bridge applies settings that stock's class drops, keyed by the names of their rows."""


def check(
    legacy: LegacySpec,
    rules: Sequence[str] = RAISING,
    besides: Iterable[str] = (),
    *,
    target: str = "SparseCores",
) -> None:
    """Raises Untranslatable if rows of `rules` apply to a spec; the message names all of them.

    `besides` are additional lines of the message. `target` names the class or hardware that
    refuses.
    """
    refused = [note for note in notes_of_spec(legacy) if note.rule in rules]
    if "weight_limits" in rules and legacy.quirks == "documented":
        refused += [note for note in notes_of_spec(legacy) if note.rule == "clipping_limit"]
    reasons = [*map(_refusal, dict.fromkeys(refused)), *besides]
    if reasons:
        lines = (f"  {reason}" for reason in reasons)
        way_out = (
            "Change them, or stay with the host driver of tf2_engine and the arithmetic of the "
            "first generation."
        )
        raise errors.Untranslatable(
            plain_text.Lines(f"{target} cannot honour these settings:", *lines, way_out)
        )


def engine_spec(spec: EngineSpec) -> EngineSpec:
    from tf2_engine import sparsecore_rules  # needs TensorFlow, which reports do not need

    tables = tuple(
        dataclasses.replace(table, optimizer=sparsecore_rules.without_dropped(table.optimizer))
        if table.optimizer is not None
        else table
        for table in spec.tables
    )
    return dataclasses.replace(spec, tables=tables)


def why_ignored(value: Value, *, stock_v2: bool = False) -> str:
    """Says why SparseCores or stock's class for them ignore a setting; "" if the setting works."""
    dropped = (*DROPPED, "weight_limits") if stock_v2 else DROPPED
    for rule, when in readers(value.owner, value.setting):
        if rule in dropped and when is not None and when(value.value):
            return f"SparseCores do not have it: {_effect(rule)}"
    return ""


def warnings(legacy: LegacySpec, *, training: bool) -> Iterator[str]:
    for note in notes_of_spec(legacy):
        shown = render.shown(note) or str(ROWS[note.rule].setting)
        where = f"SparseCores: {note.where}: {shown}"
        if note.rule in DROPPED and training:
            yield f"{where} is ignored: {_effect(note.rule)}."
        elif note.rule in KEPT and (training or note.rule == "sequence"):
            yield f"{where} is {KEPT[note.rule]}."


def _effect(rule: str) -> str:
    return ROWS[rule].sparse_core.effect.removeprefix("ignored: ")


def _refusal(note: Note) -> str:
    shown, effect = render.shown(note), ROWS[note.rule].sparse_core
    return f"{note.where}{f': {shown}' if shown else ''} ({effect.effect}): {effect.way_out}"
