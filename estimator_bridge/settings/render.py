"""Formats notes and rows of the catalogue as warnings, audit findings, changes and causes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from estimator_bridge.settings import row as rows
from estimator_bridge.settings.catalogue import ROWS, Value, notes_of_spec, readers
from estimator_bridge.settings.legacy_spec import SPEC, LegacySpec, Note, SourceText
from tf2_engine.types import Object


def shown(note: Note) -> str:
    if isinstance(note.value, SourceText):
        return note.value
    row = ROWS[note.rule]
    return row.shown.format(setting=row.setting, value=note.value)


def warning(rule: str, when: str, quirks: str | None = None, **fields: Object) -> str:
    """Formats a row's warning for an occasion such as `row.LOOKUP`; "" if the row has none."""
    texts = ROWS[rule].warnings
    return (texts.get(when) or texts.get((when, str(quirks)), "")).format(**fields)


def warnings(
    notes: Iterable[Note], *occasions: str, legacy: LegacySpec | None = None
) -> Iterator[str]:
    optimizers = dict(legacy.optimizers()) if legacy else {}
    quirks = legacy.quirks if legacy else None
    for note in notes:
        place = str(note.where)
        where = "" if note.where == SPEC else f"{place[:1].upper()}{place[1:]}: "
        kind = getattr(optimizers.get(note.where), "kind", None)
        fields = {"where": where, "kind": kind, "value": note.value}
        yield from filter(None, (warning(note.rule, when, quirks, **fields) for when in occasions))


def warnings_of_step(legacy: LegacySpec, *, training: bool) -> list[str]:
    occasions = (rows.LOOKUP, rows.TRAINING) if training else (rows.LOOKUP,)
    return list(dict.fromkeys(warnings(notes_of_spec(legacy), *occasions, legacy=legacy)))


def change(note: Note, quirks: str, **fields: Object) -> dict[str, str] | None:
    """Makes the fields of a `migrate.legacy_specs.spec_to_tf2.Change` for a note.

    Returns None if the note's row describes no change. `fields` are `kind` (the engine's
    optimizer), `rate` (the legacy one) and `reason` (why the optimizer is not stock's).
    """
    row = ROWS[note.rule]
    text = (quirks == "stock" and row.change_of_stock) or row.change
    if text is None:
        return None
    value = note.value if isinstance(note.value, SourceText) else repr(note.value)
    return {
        "where": "spec" if note.where == SPEC else str(note.where),
        "setting": text.setting or row.setting,
        "was": text.was or value,
        "now": text.now.format(**fields),
        "why": text.why.format(value=value, **fields),
        "effect": text.effect,
    }


def cause(rule: str, **fields: Object) -> tuple[str, str]:
    row = ROWS[rule]
    return row.cause_name, row.cause.format(**fields)


def why_not_as_written(value: Value, *, use_tpu: bool, quirks: str | None) -> str:
    """Says why a setting's effect differs from the documented effect; "" if they are the same."""
    for rule, when in readers(value.owner, value.setting):
        if when is None or when(value.value):
            row = ROWS[rule]
            effect = row.quirks.get(str(quirks), row.tpu) if use_tpu else row.cpu
            if isinstance(effect, rows.NotAsWritten):
                return effect.because
    return ""


def without_effect_on_cpu(notes: Sequence[Note]) -> Iterator[str]:
    by_setting: dict[str, list[Note]] = {}
    for note in notes:
        row = ROWS[note.rule]
        if isinstance(row.cpu, rows.Ignored) and row.setting and not row.of_optimizers:
            by_setting.setdefault(row.setting, []).append(note)
    for setting, group in by_setting.items():
        tables = [note.where.name for note in group if note.where.kind == "table"]
        if not tables:
            yield f"`{setting}`={group[0].value!r}"
        elif len(tables) < len(group):
            yield f"`{setting}` (also of the tables {tables})"
        else:
            yield f"`{setting}` of {tables}"
    yield from warnings(notes, rows.LISTED_OFF_TPU)
