"""The result of a comparison: findings that print as a table and convert to JSON."""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from estimator_bridge.recording.files import CHECKPOINT, KERAS, PORT, TF2, SideDescription
from estimator_bridge.verification.findings import (
    DENSE,
    GRADIENT,
    SLOT,
    TABLE,
    Batches,
    Cause,
    Difference,
    Divergence,
    Evidence,
    Outcome,
    Series,
    Status,
    listed,
    some,
)
from tf2_engine import plain_text
from tf2_engine.types import Object

_VERDICTS = {Status.EQUAL: True, Status.DIFFERENT: False}
_MAX_ARRAYS = 12
_MAX_NAMES = 5

ENGINES = {
    "stock": "stock's TPUEstimator",
    "bridge": "the bridge",
    TF2: "a program of TensorFlow 2",
    KERAS: "a Keras model",
    CHECKPOINT: "a checkpoint",
    PORT: "a loop in another framework",
}

NUMBERS = ("largest", "relative", "ULPs", "of allowed")
"""The headings of the columns for an array's largest difference and its share of the tolerance."""

_FORMULA = (
    "In numbers: 2 · ((2n + 4) + s · (2 · (2n + 4) + 23)) · 2⁻²⁴ times the largest magnitude so "
    "far, where n is the number of terms and s counts the steps. All gradients share one "
    "magnitude, and so do all variables of the model; any other array has its own."
)
_SHOWN = 4
_VISIBLE = operator.attrgetter("visible")


@dataclasses.dataclass
class Result:
    """Everything that a comparison found; docs/verify.md describes the fields.

    `equal` is the verdict; `str(result)` is the report.

    Attributes:
        num_terms: the largest number of terms in a sum; the tolerance of a free run depends on it.
        lockstep: whether side B continued from side A's state after every compared step.
        series: one entry for each array; the array that diverged first comes first.
        config: the differences between the device configurations; None if a side has no device.
        remarks: reasons, apart from single arrays, why the sides are not equal.
        failures: calls that failed on only one side.
        undecided: the arrays in which a fault cannot be told from rounding, each with the reason.
        diagnoses: causes of wrong updates; None if the verdict did not need them.
        complete: whether all steps were compared.
    """

    settings: tuple[SideDescription, SideDescription]
    num_terms: int
    measured: bool
    lockstep: bool
    steps: list[int]
    series: list[Series]
    config: list[Difference] | None
    batches: Batches
    outcomes: list[Outcome]
    only: tuple[list[str], list[str]]
    remarks: list[str]
    evidence: Evidence | None
    notes: list[str] = dataclasses.field(default_factory=list)
    causes: list[Cause] = dataclasses.field(default_factory=list)
    not_compared: list[str] = dataclasses.field(default_factory=list)
    failures: list[str] = dataclasses.field(default_factory=list)
    undecided: list[str] = dataclasses.field(default_factory=list)
    about: dict[str, str] = dataclasses.field(default_factory=dict)
    diagnoses: Sequence[Object] | None = None
    complete: bool = True

    @property
    def first(self) -> Series | None:
        return self.series[0] if self.series and self.series[0].first else None

    @property
    def numbers_agree(self) -> bool:
        return self.first is None and all(outcome.equal for outcome in self.outcomes)

    @property
    def status(self) -> Status:
        others = self.config, any(self.only), self.remarks
        if not self.numbers_agree or not self.batches.equal or any(others):
            return Status.DIFFERENT
        if self.failures or not self.series:
            return Status.UNKNOWN
        return Status.UNDECIDED if self.undecided else Status.EQUAL

    @property
    def equal(self) -> bool:
        return self.status == Status.EQUAL

    @property
    def largest(self) -> float:
        points = (one.largest.difference for one in self.series if one.points)
        outcomes = (outcome.difference for outcome in self.outcomes)
        return max(itertools.chain(points, outcomes), default=0.0)

    def __str__(self) -> str:
        return plain_text.Lines(*_lines(self))

    def as_dict(self) -> dict[str, Object]:
        """Converts the result for JSON; non-finite numbers become strings such as "Infinity"."""
        result = {
            "equal": _VERDICTS.get(self.status),
            "status": self.status.name.lower(),
            "about": self.about,
            "sides": dict(zip("ab", self.settings, strict=True)),
            "steps": self.steps,
            "tolerance": {
                "lockstep": self.lockstep,
                "num_terms": self.num_terms,
                "measured": self.measured,
            },
            "first": self.first,
            "causes": self.causes,
            "series": self.series,
            "config": self.config,
            "batches": self.batches,
            "outcomes": [{**o._asdict(), "equal": o.equal} for o in self.outcomes],
            "only": dict(zip("ab", self.only, strict=True)),
            "remarks": self.remarks,
            "failures": self.failures,
            "undecided": self.undecided,
            "not_compared": self.not_compared,
            "notes": self.notes,
        }
        return _json_value(result)


def without_verdict(error: str) -> Object:
    status = Status.UNKNOWN.name.lower()
    return _json_value({"equal": None, "status": status, "error": error})


def _json_value(value: Object) -> Object:
    if isinstance(value, Series):
        value = vars(value)
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return {plain_text.plain(key): _json_value(part) for key, part in value.items()}
    if isinstance(value, bytes):
        return plain_text.plain(value, lines=True)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_json_value(part) for part in value]
    return plain_text.plain_values(value)


def _lines(findings: Result) -> Iterator[str]:
    for letter, side in zip("AB", findings.settings, strict=True):
        yield f"{letter}: {side_line(side)}"
    yield verdict(findings)
    for note in findings.notes:
        yield f"Note: {note}"
    yield f"Tolerance: {tolerance_line(findings)}"
    for line in itertools.chain(table_lines(findings), other_lines(findings)):
        yield f"Power: {line}"
    yield ""
    for cause in findings.causes:
        yield f"  {cause.name}: {cause.text}"
    if findings.causes:
        yield ""
    yield from _arrays(findings)
    yield from _others(findings)
    if findings.not_compared:
        yield "Not compared:"
    for what in findings.not_compared:
        yield f"  {what}"


def verdict(findings: Result) -> str:
    if findings.status == Status.DIFFERENT:
        return f"NOT EQUAL: {_first_difference(findings)}."
    if findings.status == Status.UNKNOWN:
        why = "; ".join(findings.failures) or "nothing was compared"
        return f"NO VERDICT: {why}. What was compared is equal: {compared(findings)}."
    if findings.status == Status.UNDECIDED:
        more = f", and {len(findings.undecided) - 1} more" if len(findings.undecided) > 1 else ""
        return f"UNDECIDED: {findings.undecided[0]}{more}. The rest is equal: {compared(findings)}."
    within = f"within the tolerance (at most {findings.largest:.2g} off)"
    degree = within if findings.largest else "to the bit"
    return f"EQUAL {degree}: {compared(findings)}."


def compared(findings: Result) -> str:
    steps = max(len(findings.steps) - 1, 0)
    parts = [f"{len(findings.series)} arrays in {steps} steps"]
    kinds = Counter(outcome.kind.partition("-")[0] for outcome in findings.outcomes)
    parts.extend(f"{count} {kind} result{'s' * (count > 1)}" for kind, count in kinds.items())
    return f"{parts[0]}, and nothing else" if len(parts) == 1 else listed(parts)


def _first_difference(findings: Result) -> str:
    first = findings.first
    if not findings.batches.equal:
        return str(findings.batches)
    if first is None:
        why, *more = reasons(findings)
        return f"{why}; and {len(more)} more, listed below" if more else why
    where = f"table {first.table}, " if first.table and first.role != TABLE else ""
    return f"first in {where}{_role_and_name(first)}, {first.first}"


def _role_and_name(series: Series) -> str:
    if series.role == TABLE:
        return f"table {series.table}, whose rows are in {series.name}"
    return series.name if series.name == series.role else f"{role(series)} {series.name}"


def role(series: Series) -> str:
    return "variable" if series.role == DENSE else series.role


def reasons(findings: Result) -> list[str]:
    parts = list(findings.remarks)
    if not findings.series:
        parts.append("nothing was compared")
    if findings.config:
        parts.append(f"the device configurations differ in {len(findings.config)} fields")
    if not findings.batches.equal:
        parts.append(str(findings.batches))
    parts.extend(findings.failures)
    parts.extend(
        f"only side {side} has {some(names, _MAX_NAMES)}"
        for side, names in zip("AB", findings.only, strict=True)
        if names
    )
    parts.extend(_unequal(outcome) for outcome in findings.outcomes if not outcome.equal)
    return parts


def _unequal(outcome: Outcome) -> str:
    if outcome.note:
        return f"{outcome.title}: {outcome.note}"
    where = f": {outcome.where}" if outcome.where else ""
    allowed = f"{outcome.allowed:.2g} is allowed" if outcome.allowed else "no difference is allowed"
    why = f", {outcome.why}" if outcome.why else ""
    return f"{outcome.title} differs by {outcome.difference:.3g} ({allowed}{why}){where}"


def side_line(side: SideDescription) -> str:
    engine = ENGINES[side["engine"]]
    if side["engine"] in (CHECKPOINT, PORT):
        return f"{engine}, {side['where']}"
    mode = "" if side["engine"] in (TF2, KERAS) else f", use_tpu={side['use_tpu']}"
    version, cores = f"TensorFlow {side['tensorflow']}", f"{side['cores']} core"
    return f"{engine}, {version}{mode}: {side['where']}, {cores}{'s' * (side['cores'] > 1)}"


def tolerance_paragraph(findings: Result) -> str:
    formula = "" if findings.lockstep else f" {_FORMULA}"
    return (
        f"{tolerance_line(findings)}{formula} Integers and strings must be equal. A result that is "
        "computed after training may differ as far as its inputs may."
    )


def tolerance_line(findings: Result) -> str:
    if findings.lockstep:
        of_model = (
            "8 times the distance that side A moves when the last bits of its activations and "
            "weights are changed (measured with this model)"
            if findings.measured
            else "32 roundings of each element"
        )
        return (
            "side B continues from side A's state after every compared step. A row of a table may "
            "differ by the rounding of its own terms. Values that the model computes may differ by "
            f"{of_model} (docs/numerics.md)."
        )
    measured = (
        "; and 8 times the distance that side A moves when the last bits of its initial values "
        "are changed (measured with this model)"
    )
    return (
        f"float32 rounding of sums of up to {findings.num_terms} terms, growing with the steps "
        f"(docs/numerics.md){measured * findings.measured}."
    )


def _arrays(findings: Result) -> Iterator[str]:
    rows = [["array", "what", *NUMBERS, "first divergence"]]
    for series in findings.series[:_MAX_ARRAYS]:
        where = "-" if series.first is None else place(series.first)
        rows.append([series.name, role(series), *numbers(series), where])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.rjust(width) if 2 <= i <= 5 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  " + "  ".join(cells).rstrip()
    rest = findings.series[_MAX_ARRAYS:]
    if rest:
        differing = sum(series.first is not None for series in rest)
        yield f"  and {len(rest)} more, {differing} of which differ (--json and --html list all)"


def place(first: Divergence) -> str:
    row = f", row {first.row}" if first.row is not None else ""
    return f"step {first.step}{row}"


def numbers(series: Series) -> list[str]:
    if not series.points:
        return ["shapes", "", "", ""]
    point = series.largest
    share = f"{series.share:.1e}"
    return [f"{point.difference:.2e}", f"{point.relative:.1e}", f"{point.ulps}", share]


def _others(findings: Result) -> Iterator[str]:
    for reason in reasons(findings):
        yield f"  {reason}"
    for difference in findings.config or ():
        yield f"    {difference.name}: {difference.a} on A, {difference.b} on B"
    ignored: dict[str, list[str]] = {}
    for letter, side in zip("AB", findings.settings, strict=True):
        for where, name, value, reason in side["settings"]:
            # On a CPU, settings of an optimizer are ignored together with it.
            if reason and ("." not in name or side.get("arithmetic") == "sparsecore"):
                names = ignored.setdefault(f"ignored on {letter}, because {reason}", [])
                names.append(f"`{name}`={value} ({where})")
    for reason, names in ignored.items():
        yield f"  {reason}: {', '.join(names)}"


def table_lines(findings: Result) -> Iterator[str]:
    moved = [each for each in findings.series if each.role == TABLE and each.moved]
    alike: dict[str, list[str]] = {}
    for series in sorted(moved, key=_VISIBLE, reverse=True):
        alike.setdefault(f"{_visible(series)}{_rows(series)}", []).append(str(series.table))
    for sentence, tables in alike.items():
        yield f"table{'s' * (len(tables) > 1)} {some(tables, _SHOWN)}: {sentence}."


def other_lines(findings: Result) -> Iterator[str]:
    for stage, what in ((SLOT, "slot"), (DENSE, "variable"), (GRADIENT, "gradient")):
        known = [s for s in findings.series if s.stage == stage and s.moved and s.decided]
        if known:
            worst = max((s for s in known if not s.is_noise), key=_VISIBLE, default=known[0])
            others = "" if len(known) == 1 else f" in any of {len(known)} {what}s"
            yield f"{_visible(worst)}{others}; hardest to see in {worst.name}."
    noise = [series.name for series in findings.series if series.is_noise]
    if noise:
        names = some(noise, _SHOWN)
        yield f"the gradients of {names} are only rounding errors, on side A as well."
    for line in findings.undecided[:_SHOWN]:
        yield f"UNDECIDED: {line}."
    if findings.undecided:
        rest = len(findings.undecided) - _SHOWN
        more = f" {rest} more are undecided." if rest > 0 else ""
        yield f"Compare more steps (--steps), or with a larger rate or smaller batches.{more}"


def factor(visible: float) -> str:
    if not math.isfinite(visible):
        return "any size"
    return f"{visible:.1%}".replace("%", " %") if visible >= 1e-3 else f"{visible:.0e}"


def _visible(series: Series) -> str:
    if not math.isfinite(series.visible):
        return "no error would be seen"
    return f"a relative error of {factor(series.visible)} would be seen"


def _rows(series: Series) -> str:
    if not series.rows_moved:
        return ""
    if series.rows_decided == series.rows_moved:
        return f", and an error of a tenth in each of the {series.rows_moved} rows that move"
    return (
        f"; an error of a tenth would be seen in {series.rows_decided} of the {series.rows_moved} "
        f"rows that move, but not in row {series.undecided_row}, which moves by a few roundings"
    )
