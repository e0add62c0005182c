"""The result of an audit: table sizes and findings, which can be shown as text or as JSON."""

from __future__ import annotations

import dataclasses
import itertools
import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from estimator_bridge.audit.of_sparse_cores import SparseCoreAudit
from estimator_bridge.audit.of_torch import TorchAudit
from estimator_bridge.readable_sizes import readable
from estimator_bridge.settings import render
from estimator_bridge.settings.catalogue import RULES, finding_of
from estimator_bridge.settings.legacy_spec import Note
from estimator_bridge.settings.row import SEVERITIES
from tf2_engine.types import Object

if TYPE_CHECKING:
    from estimator_bridge.migrate.verdicts import Verdict

DEFAULT_HOSTS = (1, 8)

_FLOAT32 = 4
_SHOWN = 3


@dataclasses.dataclass(frozen=True)
class AuditedTable:
    """One table and its slots.

    Attributes:
        optimizer: the name of the optimizer in reports.
        slots: names of the slots, each as large as the table.
        features: the features that use the table, if known.
        strategy: the program's partition strategy, "div" or "mod"; None if unknown.
    """

    name: str
    rows: int
    dim: int
    optimizer: str
    slots: tuple[str, ...]
    features: tuple[str, ...] = ()
    strategy: str | None = None

    @property
    def _row_bytes(self) -> int:
        return _FLOAT32 * self.dim * (1 + len(self.slots))

    @property
    def bytes(self) -> int:
        return self.rows * self._row_bytes

    def hosts(self, count: int) -> list[dict[str, Object]]:
        """Lists rows and bytes for each of `count` hosts, and its ids for "div" and "mod"."""
        from tf2_engine import sharding  # NumPy, needed only for tables

        parts = []
        for host, rows in enumerate(sharding.shard_rows(self.rows, count)):
            first = sharding.first_row(host, self.rows, count)
            div, mod = range(first, first + rows), range(host, self.rows, count)
            part = {"host": host, "rows": rows, "bytes": rows * self._row_bytes}
            parts.append({**part, "div": _ids(div), "mod": _ids(mod)})
        return parts

    def as_dict(self, hosts: tuple[int, ...]) -> dict[str, Object]:
        parts = {str(count): self.hosts(count) for count in hosts}
        return {**dataclasses.asdict(self), "bytes": self.bytes, "hosts": parts}

    def lines(self, hosts: tuple[int, ...]) -> Iterator[str]:
        slots = f" with slots {', '.join(self.slots)}" if self.slots else " without slots"
        users = f", features {', '.join(self.features)}" if self.features else ""
        yield (
            f"  table {self.name}: [{self.rows}, {self.dim}] float32, {self.optimizer}{slots}: "
            f"{readable(self.bytes)}{users}"
        )
        for count in hosts:
            parts = self.hosts(count)
            rows = sorted({part["rows"] for part in parts})
            span = f"{rows[0]}" if len(rows) == 1 else f"{rows[0]} to {rows[-1]}"
            yield f"    {count} host(s): {span} rows, up to {readable(parts[0]['bytes'])} each"
            for strategy in ("div", "mod") if count > 1 else ():
                shown = "; ".join(part[strategy] for part in parts[:_SHOWN])
                mark = " (the program's)" if strategy == self.strategy else ""
                yield f"      {strategy}{mark}: {shown}{'; ...' if count > _SHOWN else ''}"


def _ids(ids: range) -> str:
    if len(ids) < 3:
        return ", ".join(map(str, ids)) or "none"
    if ids.step == 1:
        return f"{ids[0]}..{ids[-1]}"
    return f"{ids[0]}, {ids[1]}, .., {ids[-1]}"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One place at which a rule of `settings.catalogue.RULES` applies.

    `where` is a place such as "table 'words'" or a line of a file; `value` is the setting
    there, as source text.
    """

    rule: str
    where: str
    value: str = ""


@dataclasses.dataclass(frozen=True)
class Audit:
    """The findings about one subject, which is a script, a spec or a checkpoint.

    Attributes:
        hosts: the numbers of hosts for which sizes are given.
        findings: in the order of the rules, grouped by rule.
        remarks: further lines for the reader.
        on_sparse_cores, on_torch: the audit for that target, if it was requested.
        migration: whether the program can be migrated to each form; empty if unknown.
    """

    subject: str
    tables: tuple[AuditedTable, ...]
    hosts: tuple[int, ...]
    findings: tuple[Finding, ...]
    remarks: tuple[str, ...] = ()
    on_sparse_cores: SparseCoreAudit | None = None
    migration: tuple[Verdict, ...] = ()
    on_torch: TorchAudit | None = None

    def as_dict(self) -> dict[str, Object]:
        """Converts the audit to a dict for JSON."""
        tables = [table.as_dict(self.hosts) for table in self.tables]
        findings = []
        for each in self.findings:
            row = RULES[each.rule]
            texts = {name: getattr(row, name) for name in ("cpu", "tpu", "tf2", "way_out")}
            findings.append({**dataclasses.asdict(each), "kind": row.severity, **texts})
        report = {"subject": self.subject, "tables": tables, "findings": findings}
        fit = self.on_sparse_cores
        target = {} if fit is None else {"on_sparse_cores": fit.as_dict()}
        if self.on_torch is not None:
            target["on_torch"] = self.on_torch.as_dict()
        migration = [each.as_dict() for each in self.migration]
        return {**report, "remarks": list(self.remarks), "migration": migration, **target}

    def lines(self) -> Iterator[str]:
        yield self.subject
        for table in self.tables:
            yield from table.lines(self.hosts)
        if self.tables:
            total = sum(table.bytes for table in self.tables)
            yield f"  all tables with their slots: {readable(total)}"
        for remark in self.remarks:
            yield f"  note: {remark}"
        yield f"{len(self.findings)} finding(s)" + (":" if self.findings else ".")
        yield from self._lines_of_findings()
        if self.migration:
            yield ""
            yield "Will it migrate?"
            for verdict in self.migration:
                yield from verdict.lines()

    def _lines_of_findings(self) -> Iterator[str]:
        for name, findings in itertools.groupby(self.findings, lambda finding: finding.rule):
            row = RULES[name]
            yield ""
            yield f"{name}: {SEVERITIES[row.severity]}"
            for finding in findings:
                yield f"  {finding.where}" + (f": {finding.value}" if finding.value else "")
            texts = (("CPU", row.cpu), ("TPU", row.tpu), ("TF2", row.tf2), ("-> ", row.way_out))
            for side, text in texts:
                line = f"    {side}  {text}"
                yield from textwrap.wrap(
                    line, 96, subsequent_indent=" " * 9, break_on_hyphens=False
                )
        for on_target in (self.on_sparse_cores, self.on_torch):
            if on_target is not None:
                yield ""
                yield from on_target.lines()


def findings_of(notes: Iterable[Note]) -> tuple[Finding, ...]:
    findings = [
        Finding(rule, str(note.where), render.shown(note))
        for note in notes
        if (rule := finding_of(note.rule)) is not None
    ]
    names = list(RULES)
    return tuple(sorted(dict.fromkeys(findings), key=lambda finding: names.index(finding.rule)))
