"""Shows findings as one self-contained HTML page, which can be read, printed and signed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from estimator_bridge.recording.files import CHECKPOINT, KERAS, PORT, TF2, SideDescription
from estimator_bridge.verification import result
from estimator_bridge.verification.findings import Findings
from estimator_bridge.verification.report import charts, sections
from estimator_bridge.verification.report.markup import (
    STYLE,
    TableRow,
    bullets,
    escaped,
    folded,
    paragraph,
    table,
)
from estimator_bridge.verification.result import other_lines, table_lines

_MAX_OF_CAUSE = 3
_MAX_OF_POWER = 4
"""If there are more observations of one kind, the page folds the others."""


def page(findings: Findings, title: str = "the program") -> str:
    body = "".join(
        [
            f"<h1>Verification of {escaped(title)}</h1>",
            f'<p class="claim">{escaped(claim(findings))}</p>',
            _verdict(findings),
            _not_compared(findings),
            _causes(findings),
            _sides(findings),
            sections.table_section(findings),
            sections.outcome_section(findings),
            _charts(findings),
            sections.settings(findings),
            sections.configuration(findings),
            _method(findings),
            '<div class="sign"><div>Name</div><div>Signature</div><div>Date</div></div>',
            '<p class="paper">The appendices, with every array, step and setting, are in the '
            "file.</p>",
            sections.steps(findings),
            sections.arrays(findings),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Verification of {escaped(title)}</title><style>{STYLE}</style></head>"
        f"<body>{body}</body></html>\n"
    )


def claim(findings: Findings) -> str:
    a, b = (_named(letter, side) for letter, side in zip("AB", findings.settings, strict=True))
    steps = max(len(findings.steps) - 1, 0)
    data = "the same batches" if findings.batches.replayed else "each side's own input"
    kinds = dict.fromkeys(outcome.kind.partition("-")[0] for outcome in findings.outcomes)
    after = f", and in what follows: {', '.join(kinds)}" * bool(kinds)
    if findings.settings[1]["engine"] == CHECKPOINT:
        return f"Whether {b} holds the numbers that {a} has computed in {steps} steps."
    return (
        f"Whether {b} computes the same numbers as {a} in {steps} steps of training on {data}"
        f"{after}."
    )


def _named(letter: str, side: SideDescription) -> str:
    engine = result.ENGINES[side["engine"]]
    is_elsewhere = side["engine"] in (CHECKPOINT, PORT)
    version = "" if is_elsewhere else f" on TensorFlow {side['tensorflow']}"
    return f"side {letter}, {engine}{version} ({side['side']}),"


def _verdict(findings: Findings) -> str:
    sentence = result.verdict(findings)
    words = ("NOT EQUAL", "NO VERDICT", "UNDECIDED", "EQUAL")
    word = next((each for each in words if sentence.startswith(each)), "")
    rest = sentence.removeprefix(word).lstrip(": ")
    kind = findings.status.name.lower()
    notes = "".join(map(paragraph, findings.notes))
    body = f"<strong>{escaped(word)}</strong>{escaped(rest[:1].upper() + rest[1:])}"
    undecided = bullets(findings.undecided[1:]) if len(findings.undecided) > 1 else ""
    return f'<div class="verdict {kind}">{body}{undecided}</div>{notes}'


def _not_compared(findings: Findings) -> str:
    if not findings.not_compared:
        return ""
    body = bullets(findings.not_compared)
    return f'<section class="box"><h2>Not compared, and why</h2>{body}</section>'


def _sides(findings: Findings) -> str:
    columns = [
        {
            "program": side["program"],
            "engine": result.ENGINES[side["engine"]],
            "TensorFlow": side["tensorflow"],
            "use_tpu": "as True" if side["engine"] in (TF2, KERAS) else str(side["use_tpu"]),
            "tables are in": side["where"],
            "cores": str(side["cores"]),
            "quirks": side["quirks"],
            "variables looked at": "after every step"
            if side["every"] == 1
            else f"every {side['every']} steps",
        }
        for side in findings.settings
    ]
    rows = []
    for name in columns[0]:
        a, b = (column[name] for column in columns)
        rows.append(TableRow([name, a, b if b != a else "the same"]))
    about = [TableRow([name, value]) for name, value in findings.about.items()]
    circumstances = table(["with what, where, by whom", ""], about) if about else ""
    return "<h2>The two sides</h2>" + table(["", "side A", "side B"], rows) + circumstances


def _causes(findings: Findings) -> str:
    if not findings.causes:
        return ""
    entries = "".join(
        f"<dt>{escaped(name)}</dt>{_cause([cause.text for cause in of])}"
        for name, of in itertools.groupby(findings.causes, lambda cause: cause.name)
    )
    return (
        "<h2>Why they differ</h2><p>Recognised from the settings, and from the numbers of the "
        f"first step that differs. A cause is an observation, not a proof.</p><dl>{entries}</dl>"
    )


def _cause(texts: Sequence[str]) -> str:
    shown = "".join(f"<dd>{escaped(one)}</dd>" for one in texts[:_MAX_OF_CAUSE])
    rest = texts[_MAX_OF_CAUSE:]
    if not rest:
        return shown
    more = folded(f"Show these {len(rest)}", bullets(rest))
    return f"{shown}<dd>And {len(rest)} more of this kind.{more}</dd>"


def _charts(findings: Findings) -> str:
    if not findings.series:
        return ""
    explained = "".join(map(paragraph, charts.explained(findings)))
    return (
        f"<h2>How far apart, step by step</h2>{charts.legend(findings)}<div class='charts'>"
        f"<figure>{charts.over_steps(findings)}<figcaption>The largest difference of each kind of "
        "array, as a share of what is allowed. Above the thick line the sides differ; at the "
        "bottom they are equal to the bit.</figcaption></figure>"
        f"<figure>{charts.histogram(findings)}<figcaption>How many of the {len(findings.series)} "
        "arrays use which share of what is allowed, each at its worst step. To the right of the "
        f"thick line they differ.</figcaption></figure></div>{explained}"
    )


def _method(findings: Findings) -> str:
    others = "; ".join(result.reasons(findings))
    rest = paragraph(f"Further: {others}.") if others else ""
    return (
        f"<h2>How it was compared</h2>{paragraph(f'{_fed(findings)} {_began(findings)}')}"
        f"{paragraph(f'Allowed: {result.tolerance_paragraph(findings)}')}"
        f"{_power(findings)}{rest}"
    )


def _power(findings: Findings) -> str:
    tables = list(table_lines(findings))
    shown, more = tables[:_MAX_OF_POWER], tables[_MAX_OF_POWER:]
    others = "More can be told of the other tables." if more else ""
    lines = [*shown, *([others] if others else []), *other_lines(findings)]
    folded_lines = folded(f"Show these {len(more)}", bullets(more)) if more else ""
    return paragraph(f"What would have been seen: {' '.join(lines)}") + folded_lines


def _fed(findings: Findings) -> str:
    read = findings.batches
    if findings.settings[1]["engine"] == CHECKPOINT:
        return (
            "Side B is a checkpoint: only its last step is compared, and nothing is known of its "
            "input."
        )
    if read.replayed:
        return f"Side B was given the {read.number} batches that side A had read."
    if read.equal:
        return f"Each side read its own input; all {read.number} batches are the same."
    return f"Each side read its own input, and {read}."


def _began(findings: Findings) -> str:
    start = findings.steps[0] if findings.steps else None
    points = [
        one.points[0] for one in findings.series if one.points and one.points[0].step == start
    ]
    if not points:
        return ""
    if not any(point.difference for point in points):
        return "Both began with the same variables, to the bit."
    if all(point.equal for point in points):
        return "Both began with the same variables, except for rounding."
    return "They did not begin with the same variables."
