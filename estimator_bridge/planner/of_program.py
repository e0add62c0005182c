"""Describes a program as a job: its tables, and lookups from a data sample or a Zipf law."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from estimator_bridge import errors
from estimator_bridge.audit import audit_spec
from estimator_bridge.audit.program import AuditedProgram
from estimator_bridge.planner.job import ZIPF, Job, RowLoad, TableLoad, sampled_load, zipf_load
from estimator_bridge.settings.legacy_spec import LegacyFeature
from estimator_bridge.translation.read_spec import read_spec
from tf2_engine.placement import TableSize, workers_of_cores
from tf2_engine.types import Array, Object


@dataclasses.dataclass(frozen=True)
class Assumed:
    """Assumptions about ids, for plans without a sample of the data.

    Attributes:
        ids: each feature's number of ids per sample, or per position of a sequence. The value of
            the key None (by default 1) applies to all features that have no key of their own.
        zipf: the exponent of the Zipf law. Tables begin with their most frequent rows.
    """

    ids: Mapping[str | None, float] = dataclasses.field(default_factory=dict)
    zipf: float = ZIPF


class PlannedJob(NamedTuple):
    """A job, and the number of cores over which its batches are spread."""

    job: Job
    cores: int


def job_of_spec(
    spec: Object, subject: str, *, batch_size: int, cores: int, assumed: Assumed | None = None
) -> PlannedJob:
    """Describes a spec as a job whose ids follow a Zipf law.

    Args:
        subject: the name used in reports.
        batch_size: samples of the global batch.
        cores: the cores of all workers together.

    Raises:
        InvalidInput: the batch cannot be divided among the cores, or a feature is unknown.
    """
    assumed = assumed or Assumed()
    if batch_size % cores:
        raise errors.InvalidInput(
            f"The batch size {batch_size} cannot be divided evenly among {cores} cores. Change "
            "--batch_size or --cores."
        )
    samples, legacy = batch_size // cores, read_spec(spec)
    _check_features(assumed, legacy.features)
    loads: dict[str, RowLoad] = {}
    features: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for feature in legacy.features:
        positions = samples * (feature.max_sequence_length or 1)
        of_each = assumed.ids.get(feature.key, assumed.ids.get(None, 1))
        features[feature.table].append((positions, positions * of_each))
    for table in legacy.tables:
        ids = sum(count for _, count in features[table.name])
        loads[table.name] = zipf_load(table.vocabulary_size, ids, assumed.zipf)
    source = (
        f"assumed: ids follow a Zipf law with exponent {assumed.zipf}, the first rows of a table "
        "most often (--sample looks at the program's data)"
    )
    return PlannedJob(Job(subject, _tables(spec, loads, features), samples, source), cores)


def job_of_program(
    program: AuditedProgram,
    *,
    workers: int = 1,
    cores: int | None = None,
    batch_size: int | None = None,
    sample: int = 0,
    assumed: Assumed | None = None,
) -> PlannedJob:
    """Describes a program as a job; runs it up to its first TPUEstimator or training call.

    Args:
        cores: the cores of all workers together; None means the program's number, or `workers`.
        batch_size: samples of the global batch; None means the program's batch size.
        sample: how many batches of the training data to read; with 0, a Zipf law is assumed.

    Raises:
        InvalidInput: there is no TPUEstimator, table or batch size, or the batch cannot be divided
            among the cores.
        InvalidSpec: the cores cannot be divided among the workers.
    """
    arguments = program.arguments_of(*(("__init__", "train") if sample else ("__init__",)))
    settings = arguments["__init__"]
    spec = settings.get("embedding_config_spec")
    if spec is None:
        raise errors.InvalidInput(
            f"{program.script}: its TPUEstimator has no embedding_config_spec, so there are no "
            "tables to place."
        )
    config = getattr(settings.get("config"), "tpu_config", None)
    cores = cores or getattr(config, "num_shards", None) or workers
    workers_of_cores(cores, workers)
    size = batch_size or settings.get("train_batch_size")
    if not size:
        raise errors.InvalidInput(
            f"{program.script} sets no train_batch_size. Give --batch_size, the number of "
            "samples in the global batch."
        )
    subject = f"{program.script}, as it runs"
    planned = job_of_spec(spec, subject, batch_size=size, cores=cores, assumed=assumed)
    if not sample:
        return planned
    if batch_size not in (None, settings.get("train_batch_size")):
        raise errors.InvalidInput(
            "--sample reads the program's own batches: leave --batch_size out, or run the program "
            f"with the batch size {batch_size}."
        )
    return planned._replace(job=_sampled(planned.job, arguments["train"], spec, cores, sample))


def _sampled(
    job: Job, training: Mapping[str, Object], spec: Object, cores: int, sample: int
) -> Job:
    # This import only works after legacy names have been replaced.
    from estimator_bridge.audit.sampling import lookups_of_batches

    ids: dict[str, list[Array]] = defaultdict(list)
    totals: dict[str, dict[str, Array]] = defaultdict(dict)  # cells and ids by table and feature
    batches = 0
    for per_core in lookups_of_batches(
        training["self"], training["input_fn"], read_spec(spec), cores, sample
    ):
        batches += 1
        for of_core in per_core:
            by_table: dict[str, list[Array]] = defaultdict(list)
            for lookup in of_core:
                by_table[lookup.table].append(lookup.ids)
                counts = np.array([lookup.num_cells, len(lookup.ids)], float)
                of_table = totals[lookup.table]
                of_table[lookup.feature] = of_table.get(lookup.feature, 0.0) + counts
            for name, parts in by_table.items():
                ids[name].append(np.concatenate(parts))
    if not batches:
        raise errors.InvalidInput(f"{job.subject}: its input returns no batch.")
    steps = batches * cores
    loads = {size.name: sampled_load(size.rows, ids[size.name]) for size in job.sizes}
    features = {
        name: [
            (float(cells), float(count))
            for cells, count in (each / steps for each in of_table.values())
        ]
        for name, of_table in totals.items()
    }
    tables = _tables(spec, loads, features)
    return dataclasses.replace(job, tables=tables, source=f"a sample of {batches} of its batches")


def _tables(
    spec: Object,
    loads: Mapping[str, RowLoad],
    features: Mapping[str, Sequence[tuple[float, float]]],
) -> tuple[TableLoad, ...]:
    return tuple(
        TableLoad(
            TableSize(table.name, table.rows, table.dim, 1 + len(table.slots)),
            loads[table.name],
            sum(cells for cells, _ in features.get(table.name, ())),
            table.slots,
            tuple(features.get(table.name, ())),
        )
        for table in audit_spec(spec).tables
    )


def _check_features(assumed: Assumed, features: Sequence[LegacyFeature]) -> None:
    known = [feature.key for feature in features]
    for key in assumed.ids:
        if key is not None and key not in known:
            raise errors.InvalidInput(
                f"--ids: there is no feature {key!r}; the program has {', '.join(known)}."
            )
