"""Audits the tables of a checkpoint, without TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

from estimator_bridge import convert
from estimator_bridge.audit.report import DEFAULT_HOSTS, Audit, AuditedTable, findings_of
from estimator_bridge.settings.legacy_spec import Note, Place
from tf2_engine.sharding import PARAMETERS
from tf2_engine.types import Object


def audit_model_dir(path: str, spec: Object = None, hosts: Sequence[int] = DEFAULT_HOSTS) -> Audit:
    """Lists the tables of a checkpoint, and findings about them.

    `path` is a checkpoint or a directory. In a directory, the latest checkpoint is audited. Without
    the program's spec, tables and optimizers are guessed from the variables.

    Raises:
        UnreadableCheckpoint: there is no checkpoint, or a file is damaged.
    """
    contents = convert.inspect(path, spec=spec)
    notes: list[Note] = []
    sizes: list[AuditedTable] = []
    for table in contents["tables"]:
        where = Place("table", table["name"])
        if len(table["parts"]) > 1 and spec is None and contents["form"] == "names":
            notes.append(Note("parts_of_unknown_order", where, len(table["parts"])))
        missing = [part for part, tensor in table["tensors"].items() if tensor is None]
        if missing:
            notes.append(Note("no_slots", where, ", ".join(missing)))
        slots = tuple(part for part in table["tensors"] if part != PARAMETERS)
        strategy = getattr(spec, "partition_strategy", None)
        shape = table["name"], table["rows"], table["dim"]
        sizes.append(AuditedTable(*shape, table["optimizer"], slots, strategy=strategy))
    step = contents["global_step"]
    return Audit(
        subject=contents["checkpoint"],
        tables=tuple(sizes),
        hosts=tuple(hosts),
        findings=findings_of(notes),
        remarks=(
            f"{contents['form']}-based checkpoint, "
            f"{'no global step' if step is None else f'step {step}'}",
            f"{len(contents['variables'])} variables that belong to no table",
        ),
    )
