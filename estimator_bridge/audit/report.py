"""What an audit found: tables and findings, as text and as JSON."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator
from typing import Any

from estimator_bridge.audit.rules import KINDS, RULES
from estimator_bridge.audit.sizes import TableSize
from estimator_bridge.readable_sizes import readable


@dataclasses.dataclass(frozen=True)
class Finding:
    """One place that a rule speaks of.

    Attributes:
        rule: a name in `rules.RULES`.
        where: "table 'words'", or a line of a file.
        value: the setting as it is written; empty where there is nothing to show.
    """

    rule: str
    where: str
    value: str = ""


@dataclasses.dataclass(frozen=True)
class Audit:
    """What was found in one subject.

    Attributes:
        subject: the script, spec or checkpoint.
        tables: what each costs; empty where the subject does not tell.
        hosts: numbers of hosts that sizes are given for.
        findings: in the order of the rules, a rule's together.
        remarks: what else to know, a line each.
    """

    subject: str
    tables: tuple[TableSize, ...]
    hosts: tuple[int, ...]
    findings: tuple[Finding, ...]
    remarks: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Returns values that JSON can hold."""
        return {
            "subject": self.subject,
            "tables": [table.as_dict(self.hosts) for table in self.tables],
            "findings": [
                {**dataclasses.asdict(finding), **dataclasses.asdict(RULES[finding.rule])}
                for finding in self.findings
            ],
            "remarks": list(self.remarks),
        }

    def lines(self) -> Iterator[str]:
        """Yields it as lines to read."""
        yield self.subject
        for table in self.tables:
            yield from table.lines(self.hosts)
        if self.tables:
            total = sum(table.bytes for table in self.tables)
            yield f"  all tables with their slots: {readable(total)}"
        for remark in self.remarks:
            yield f"  note: {remark}"
        yield f"{len(self.findings)} finding(s)" + (":" if self.findings else ".")
        for name, rule in RULES.items():
            found = [finding for finding in self.findings if finding.rule == name]
            if not found:
                continue
            yield ""
            yield f"{name}: {KINDS[rule.kind]}"
            for finding in found:
                yield f"  {finding.where}" + (f": {finding.value}" if finding.value else "")
            for side, text in (("CPU", rule.cpu), ("TPU", rule.tpu), ("TF2", rule.tf2)):
                yield from _wrapped(f"    {side}  ", text)
            yield from _wrapped("    ->   ", rule.way_out)


def ordered(findings: list[Finding]) -> tuple[Finding, ...]:
    """Returns findings in the order of the rules, each once."""
    names = list(RULES)
    return tuple(sorted(dict.fromkeys(findings), key=lambda finding: names.index(finding.rule)))


def _wrapped(start: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, 96, initial_indent=start, subsequent_indent=" " * len(start), break_on_hyphens=False
    )
