"""The result of an audit: tables and findings, as text and as JSON."""

from __future__ import annotations

import dataclasses
import itertools
import textwrap
from collections.abc import Iterable, Iterator

from estimator_bridge.audit.sizes import TableSize
from estimator_bridge.readable_sizes import readable
from estimator_bridge.settings import render
from estimator_bridge.settings.catalogue import RULES, finding_of
from estimator_bridge.settings.note import Note
from estimator_bridge.settings.row import SEVERITIES
from tf2_engine.types import Object


@dataclasses.dataclass(frozen=True)
class Finding:
    """One place at which a rule applies.

    Attributes:
        rule: a name in `settings.catalogue.RULES`.
        where: "table 'words'", or a line of a file.
        value: the setting as it is written; empty where there is nothing to show.
    """

    rule: str
    where: str
    value: str = ""


@dataclasses.dataclass(frozen=True)
class Audit:
    """The findings in one subject.

    Attributes:
        subject: the script, spec or checkpoint.
        tables: their sizes; empty where the subject does not tell.
        hosts: numbers of hosts that sizes are given for.
        findings: in the order of the rules, a rule's together.
        remarks: further lines to know.
    """

    subject: str
    tables: tuple[TableSize, ...]
    hosts: tuple[int, ...]
    findings: tuple[Finding, ...]
    remarks: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Object]:
        """Returns values that JSON can hold."""
        return {
            "subject": self.subject,
            "tables": [table.as_dict(self.hosts) for table in self.tables],
            "findings": [
                {**dataclasses.asdict(finding), **_texts(finding.rule)} for finding in self.findings
            ],
            "remarks": list(self.remarks),
        }

    def lines(self) -> Iterator[str]:
        """Yields the lines of a report."""
        yield self.subject
        for table in self.tables:
            yield from table.lines(self.hosts)
        if self.tables:
            total = sum(table.bytes for table in self.tables)
            yield f"  all tables with their slots: {readable(total)}"
        for remark in self.remarks:
            yield f"  note: {remark}"
        yield f"{len(self.findings)} finding(s)" + (":" if self.findings else ".")
        for name, findings in itertools.groupby(self.findings, lambda finding: finding.rule):
            row = RULES[name]
            yield ""
            yield f"{name}: {SEVERITIES[row.severity]}"
            for finding in findings:
                yield f"  {finding.where}" + (f": {finding.value}" if finding.value else "")
            for side, text in (("CPU", row.cpu), ("TPU", row.tpu), ("TF2", row.tf2)):
                yield from _wrapped(f"    {side}  ", text)
            yield from _wrapped("    ->   ", row.way_out)


def findings_of(notes: Iterable[Note]) -> tuple[Finding, ...]:
    """Returns the findings of notes in the order of the rules, each once; of plain rows none."""
    findings = [
        Finding(rule, str(note.where), render.shown(note))
        for note in notes
        if (rule := finding_of(note.rule)) is not None
    ]
    names = list(RULES)
    return tuple(sorted(dict.fromkeys(findings), key=lambda finding: names.index(finding.rule)))


def _texts(rule: str) -> dict[str, str]:
    row = RULES[rule]
    return {
        "kind": row.severity,
        "cpu": row.cpu,
        "tpu": row.tpu,
        "tf2": row.tf2,
        "way_out": row.way_out,
    }


def _wrapped(start: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, 96, initial_indent=start, subsequent_indent=" " * len(start), break_on_hyphens=False
    )
