"""Audits what the checkpoint of a model_dir tells by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from estimator_bridge.audit.of_spec import DEFAULT_HOSTS
from estimator_bridge.audit.report import Audit, Finding, ordered
from estimator_bridge.audit.sizes import TableSize
from estimator_bridge.convert import inspect
from tf2_engine.tables import PARAMETERS


def audit_model_dir(path: str, spec: Any = None, hosts: Sequence[int] = DEFAULT_HOSTS) -> Audit:
    """Returns what is to be known of the latest checkpoint of a model_dir.

    Args:
        path: a directory, or a checkpoint.
        spec: the program's, which names tables and optimizers; None guesses.
        hosts: numbers of hosts to divide the tables among.

    Raises:
        UnreadableCheckpoint: there is none, or a file is damaged.
    """
    found = inspect(path, spec=spec)
    findings: list[Finding] = []
    for table in found["tables"]:
        where = f"table {table['name']!r}"
        if len(table["parts"]) > 1 and spec is None and found["form"] == "names":
            findings.append(
                Finding("parts_of_unknown_order", where, f"{len(table['parts'])} parts")
            )
        missing = [part for part, tensor in table["tensors"].items() if tensor is None]
        if missing:
            findings.append(Finding("no_slots", where, f"without {', '.join(missing)}"))
    step = found["global_step"]
    return Audit(
        subject=found["checkpoint"],
        tables=tuple(
            TableSize(
                name=table["name"],
                rows=table["rows"],
                dim=table["dim"],
                optimizer=table["optimizer"],
                slots=tuple(part for part in table["tensors"] if part != PARAMETERS),
                strategy=getattr(spec, "partition_strategy", None),
            )
            for table in found["tables"]
        ),
        hosts=tuple(hosts),
        findings=ordered(findings),
        remarks=(
            f"{found['form']}-based checkpoint, "
            f"{'no global step' if step is None else f'step {step}'}",
            f"{len(found['variables'])} variables that belong to no table",
        ),
    )
