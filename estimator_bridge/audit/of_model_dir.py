"""Audits the latest checkpoint of a model_dir."""

from __future__ import annotations

from collections.abc import Sequence

from estimator_bridge.audit.of_spec import DEFAULT_HOSTS
from estimator_bridge.audit.report import Audit, findings_of
from estimator_bridge.audit.sizes import TableSize
from estimator_bridge.convert import inspect
from estimator_bridge.settings import note
from estimator_bridge.settings.note import Note
from tf2_engine.tables import PARAMETERS
from tf2_engine.types import Object


def audit_model_dir(path: str, spec: Object = None, hosts: Sequence[int] = DEFAULT_HOSTS) -> Audit:
    """Returns the tables of the latest checkpoint of a model_dir, and findings about its files.

    Args:
        path: a directory, or a checkpoint.
        spec: the program's, which names tables and optimizers; None guesses them.
        hosts: numbers of hosts to divide the tables among.

    Raises:
        UnreadableCheckpoint: there is none, or a file is damaged.
    """
    contents = inspect(path, spec=spec)
    notes: list[Note] = []
    for table in contents["tables"]:
        where = note.table(table["name"])
        if len(table["parts"]) > 1 and spec is None and contents["form"] == "names":
            notes.append(Note("parts_of_unknown_order", where, len(table["parts"])))
        missing = [part for part, tensor in table["tensors"].items() if tensor is None]
        if missing:
            notes.append(Note("no_slots", where, ", ".join(missing)))
    step = contents["global_step"]
    return Audit(
        subject=contents["checkpoint"],
        tables=tuple(
            TableSize(
                name=table["name"],
                rows=table["rows"],
                dim=table["dim"],
                optimizer=table["optimizer"],
                slots=tuple(part for part in table["tensors"] if part != PARAMETERS),
                strategy=getattr(spec, "partition_strategy", None),
            )
            for table in contents["tables"]
        ),
        hosts=tuple(hosts),
        findings=findings_of(notes),
        remarks=(
            f"{contents['form']}-based checkpoint, "
            f"{'no global step' if step is None else f'step {step}'}",
            f"{len(contents['variables'])} variables that belong to no table",
        ),
    )
