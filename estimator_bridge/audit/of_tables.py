"""Audits what has tables: a spec, stock's or ours, a program that makes one, and checkpoints.

Their tables are divided among each of some numbers of hosts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from estimator_bridge import convert, errors
from estimator_bridge.audit.report import Audit, TableSize, findings_of
from estimator_bridge.legacy.optimizer_rows import OPTIMIZERS
from estimator_bridge.run import install
from estimator_bridge.run.script import run_script
from estimator_bridge.run.tf1 import running
from estimator_bridge.settings import render
from estimator_bridge.settings.catalogue import ROWS
from estimator_bridge.settings.detect import notes_of_settings, notes_of_spec
from estimator_bridge.settings.legacy_spec import LegacySpec, LegacyTable, Note, Place, SourceText
from estimator_bridge.translation.read_spec import read_spec
from tf2_engine.tables import PARAMETERS
from tf2_engine.types import Object

DEFAULT_HOSTS = (1, 8)
"""Numbers of hosts that sizes are given for by default."""


def audit_spec(
    spec: Object, subject: str = "the spec", hosts: Sequence[int] = DEFAULT_HOSTS
) -> Audit:
    """Returns the tables and findings of a spec, which the report calls `subject`.

    Raises:
        InvalidSpec, Untranslatable, WrongType: the spec cannot be read.
    """
    legacy = read_spec(spec)
    tables = tuple(_size(table, legacy) for table in legacy.tables)
    return Audit(subject, tables, tuple(hosts), findings_of(_notes(legacy)))


def _notes(legacy: LegacySpec) -> Iterator[Note]:
    """Yields the notes of a spec, and again those that matter on TPUs with SparseCores."""
    for note in notes_of_spec(legacy):
        yield note
        if ROWS[note.rule].sparse_core:
            yield Note("sparse_core", note.where, SourceText(render.shown(note)))


def _size(table: LegacyTable, legacy: LegacySpec) -> TableSize:
    optimizer = table.optimizer or legacy.optimizer
    return TableSize(
        name=table.name,
        rows=table.vocabulary_size,
        dim=table.dimension,
        optimizer=optimizer.kind.removesuffix("Parameters") if optimizer else "no optimizer",
        slots=OPTIMIZERS[optimizer.kind].engine.slot_names if optimizer else (),
        features=tuple(each.key for each in legacy.features if each.table == table.name),
        strategy=legacy.partition_strategy,
    )


def audit_run(
    script: str,
    arguments: Sequence[str] = (),
    hosts: Sequence[int] = DEFAULT_HOSTS,
    tf1: bool | None = None,
    tell: Callable[[str], object] = lambda sentence: None,
) -> Audit:
    """Runs a program with the bridge in the place of stock, up to its first TPUEstimator.

    Everything before that is done: flags, data, files. Nothing after it is. After a program of
    TensorFlow 1 the process is without what TensorFlow 2 changed.

    Args:
        tf1: whether the program sees TensorFlow 1; None finds out from its source.
        tell: called with a sentence if that was found, or if it would have been needed.

    Raises:
        InvalidInput: it ends without a TPUEstimator.
    """
    settings = _arguments_of_estimator(script, arguments, tf1, tell)
    spec = settings.get("embedding_config_spec")
    notes = [] if spec is None else [*_notes(read_spec(spec))]
    config = getattr(settings.get("config"), "tpu_config", None)
    if config is not None:
        notes += notes_of_settings("TPUConfig", config._asdict(), Place("TPUConfig"))
    if (
        spec is not None
        and spec.partition_strategy == "mod"
        and not settings.get("eval_on_tpu", True)
    ):
        text = SourceText("eval_on_tpu=False")
        notes.append(Note("mod_partitioning", Place("TPUEstimator"), text))
    sizes = ("train_batch_size", "eval_batch_size", "predict_batch_size")
    remarks: tuple[str, ...] = (
        f"use_tpu={settings.get('use_tpu', True)}",
        ", ".join(f"{name}={settings.get(name)}" for name in sizes),
    )
    subject = f"{script}, as it runs"
    if spec is None:
        remarks += ("no embedding_config_spec: no tables",)
        return Audit(subject, (), tuple(hosts), findings_of(notes), remarks)
    audit = audit_spec(spec, subject, hosts)
    return dataclasses.replace(audit, findings=findings_of(notes), remarks=remarks)


class _Reached(BaseException):
    """Ends the program at its TPUEstimator; not an Exception, since programs catch these."""


def _arguments_of_estimator(
    script: str,
    arguments: Sequence[str],
    tf1: bool | None,
    tell: Callable[[str], object],
) -> Mapping[str, Object]:
    argv, path = sys.argv, list(sys.path)
    install.install(replace=True)
    from estimator_bridge.runtime.estimator.tpu_estimator import TPUEstimator

    estimator: Object = TPUEstimator
    init = TPUEstimator.__init__
    signature = inspect.signature(init)

    def stop(self: Object, *args: Object, **settings: Object) -> None:
        raise _Reached(signature.bind(self, *args, **settings).arguments)

    estimator.__init__ = stop
    try:
        # The report goes to stdout; the program's own output does not belong there.
        with contextlib.redirect_stdout(sys.stderr), running.as_needed(script, tf1, tell):
            run_script(script, arguments)
    except _Reached as reached:
        return dict(reached.args[0])
    except SystemExit as ended:
        if ended.code:
            raise errors.InvalidInput(
                f"{script} exits with {ended.code!r} before it makes a TPUEstimator. Does it lack "
                "arguments?"
            ) from ended
    finally:
        estimator.__init__ = init
        sys.argv, sys.path[:] = argv, path
        install.uninstall()
    raise errors.InvalidInput(f"{script} ends without making a TPUEstimator.")


def audit_model_dir(path: str, spec: Object = None, hosts: Sequence[int] = DEFAULT_HOSTS) -> Audit:
    """Returns the tables of the latest checkpoint of a model_dir, and findings about its files.

    Args:
        path: a directory, or a checkpoint.
        spec: the program's, which names tables and optimizers; None guesses them.

    Raises:
        UnreadableCheckpoint: there is none, or a file is damaged.
    """
    contents = convert.inspect(path, spec=spec)
    notes: list[Note] = []
    sizes: list[TableSize] = []
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
        sizes.append(TableSize(*shape, table["optimizer"], slots, strategy=strategy))
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
