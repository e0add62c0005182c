"""Words notes and rows: warnings, lines of the audit, changes, causes, tables of the documents."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from estimator_bridge.settings import note
from estimator_bridge.settings.catalogue import ROWS, RULES, readers
from estimator_bridge.settings.detect import Value, notes_of_spec
from estimator_bridge.settings.legacy_spec import LegacySpec
from estimator_bridge.settings.note import Note, Place, SourceText
from estimator_bridge.settings.row import (
    LISTED_OFF_TPU,
    LOOKUP,
    PLAIN,
    TRAINING,
    Ignored,
    NotAsWritten,
    SettingRow,
)
from tf2_engine.types import Object


def shown(note: Note) -> str:
    """Returns the value of a note in the audit's words; empty where there is nothing to show."""
    if isinstance(note.value, SourceText):
        return note.value
    row = ROWS[note.rule]
    return row.shown.format(setting=row.setting, value=note.value)


def warning(rule: str, when: str, quirks: str | None = None, **fields: Object) -> str:
    """Returns a row's warning for an occasion; empty if it has none.

    Args:
        when: the occasion, such as `row.LOOKUP`.
        **fields: of the text: `where`, which begins it and may be empty, `value`, `kind`, ...
    """
    texts = ROWS[rule].warnings
    text = texts.get(when) or texts.get((when, str(quirks)), "")
    return text.format(**fields)


def warnings(
    notes: Iterable[Note], *occasions: str, legacy: LegacySpec | None = None
) -> Iterator[str]:
    """Yields the warnings of notes for some occasions.

    Args:
        legacy: the spec that the notes are about; needed by texts that depend on quirks or name
            an optimizer.
    """
    kinds = {} if legacy is None else {at: optimizer.kind for at, optimizer in legacy.optimizers()}
    quirks = None if legacy is None else legacy.quirks
    for each in notes:
        fields = {"where": _beginning(each.where), "kind": kinds.get(each.where)}
        for when in occasions:
            line = warning(each.rule, when, quirks, value=each.value, **fields)
            if line:
                yield line


def warnings_of_step(legacy: LegacySpec, *, training: bool) -> list[str]:
    """Returns the warnings of a step on the engine, each once; in training those of updates too."""
    occasions = (LOOKUP, TRAINING) if training else (LOOKUP,)
    return list(dict.fromkeys(warnings(notes_of_spec(legacy), *occasions, legacy=legacy)))


def _beginning(where: Place) -> str:
    text = str(where)
    return "" if where == note.SPEC else f"{text[:1].upper()}{text[1:]}: "


def change(about: Note, quirks: str, **fields: Object) -> dict[str, str] | None:
    """Returns the fields of `migrate.config_report.Change` for a note, or None if it has none.

    Args:
        **fields: of the texts: `kind`, the engine's optimizer; `rate`, the legacy learning rate;
            `reason`, why the optimizer is not stock's.
    """
    row = ROWS[about.rule]
    text = (quirks == "stock" and row.change_of_stock) or row.change
    if text is None:
        return None
    value = about.value if isinstance(about.value, SourceText) else repr(about.value)
    return {
        "where": "spec" if about.where == note.SPEC else str(about.where),
        "setting": text.setting or row.setting,
        "was": text.was or value,
        "now": text.now.format(**fields),
        "why": text.why.format(value=value, **fields),
        "effect": text.effect,
    }


def cause(rule: str, **fields: Object) -> tuple[str, str]:
    """Returns name and text of the divergence that `verify` explains by a row."""
    cause = ROWS[rule].cause
    assert cause is not None
    return cause.name, cause.text.format(**fields)


def why_not_as_written(value: Value, *, use_tpu: bool, quirks: str | None) -> str:
    """Returns why an engine does something else than a setting says, as a clause; or "".

    Args:
        use_tpu: whether the engine holds the tables.
        quirks: the bridge's; None is stock.
    """
    for rule, when in readers(value.owner, value.setting):
        if when is None or when(value.value):
            row = ROWS[rule]
            effect = row.quirks.get(str(quirks), row.tpu) if use_tpu else row.cpu
            if isinstance(effect, NotAsWritten):
                return effect.because
    return ""


def without_effect_on_cpu(notes: Sequence[Note]) -> Iterator[str]:
    """Yields the settings of a spec, and of its tables, that do nothing with use_tpu=False."""
    by_setting: dict[str, list[Note]] = {}
    for each in notes:
        row = ROWS[each.rule]
        if isinstance(row.cpu, Ignored) and row.setting and not row.of_optimizers:
            by_setting.setdefault(row.setting, []).append(each)
    for setting, group in by_setting.items():
        tables = [each.where.name for each in group if each.where.kind == "table"]
        if not tables:
            yield f"`{setting}`={group[0].value!r}"
        elif len(tables) < len(group):
            yield f"`{setting}` (those of the tables {tables} too)"
        else:
            yield f"`{setting}` of {tables}"
    yield from warnings(notes, LISTED_OFF_TPU)


def rules_table(severity: str) -> str:
    """Returns the rules of a severity as a table in Markdown."""
    rows = ((name, row) for name, row in RULES.items() if row.severity == severity)
    return _table(
        ("rule", "CPU", "TPU", "TensorFlow 2", "what to do"),
        ((f"`{name}`", row.cpu, row.tpu, row.tf2, row.way_out) for name, row in rows),
    )


def plain_table() -> str:
    """Returns the settings that do what they say as a table in Markdown."""
    rows = (row for row in ROWS.values() if row.severity == PLAIN and row.reads)
    return _table(
        ("setting", "CPU", "TPU", "TensorFlow 2"),
        ((_fields_of(row), row.cpu, row.tpu, row.tf2) for row in rows),
    )


def _fields_of(row: SettingRow) -> str:
    pairs = (field.split(".") for field in row.reads)
    return "; ".join(
        f"{', '.join(f'`{setting}`' for _, setting in settings)} of {owner}"
        for owner, settings in itertools.groupby(pairs, lambda pair: pair[0])
    )


def bridge_table() -> str:
    """Returns the settings about which README speaks as a table in Markdown."""
    return _table(
        ("setting", "stock on a CPU", "stock on a TPU", "bridge", "why"),
        (
            (f"`{name}`", row.cpu, row.tpu, row.bridge or _by_quirks(row), row.why)
            for name, row in ROWS.items()
            if row.why
        ),
    )


def _by_quirks(row: SettingRow) -> str:
    return "; ".join(f'"{quirks}": {effect}' for quirks, effect in row.quirks.items())


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (f"| {' | '.join(cells)} |\n" for cells in (head, *rows))
    return "".join((next(lines), "|---" * len(head), "|\n", *lines))
