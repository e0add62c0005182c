"""What a side is: its engine, the settings it got, and the names of its tables' variables."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf
from google.protobuf import json_format

from estimator_bridge.checkpoint_files import variable_names
from estimator_bridge.checkpoint_files.variable_names import KnownTable
from estimator_bridge.translation.legacy_spec import LegacySpec
from estimator_bridge.translation.read_spec import read_spec
from estimator_bridge.verify.recording import TF2
from estimator_bridge.verify.settings import flattened, settings_of
from estimator_bridge.verify.sides import Side
from estimator_bridge.verify.taps import grouped_variables
from tf2_engine import config_proto, errors, tf_compat
from tf2_engine.backends import HostDriver
from tf2_engine.plan import Plan
from tf2_engine.tables import PARAMETERS

# The first of the ops that hand tables to a device carries the device's configuration.
_LOADS = "LoadTPUEmbedding"


class NotingDriver(HostDriver):
    """The host driver; remembers what it is configured with.

    Attributes:
        plan: the latest one for training, or None.
    """

    plan: Plan | None = None

    def configure(self, plan: Plan) -> Any:
        """Gets ready to run `plan`."""
        if plan.training:
            self.plan = plan
        return super().configure(plan)


class Program(NamedTuple):
    """What a program made its TPUEstimator with.

    Attributes:
        spec: the EmbeddingConfigSpec, or None.
        legacy: the same, as read.
        use_tpu: as it is run.
        every: steps of a loop of the device.
        driver: of the bridge.
    """

    spec: Any
    legacy: LegacySpec | None
    use_tpu: bool
    every: int
    driver: NotingDriver | None


def describe(program: Program, side: Side, job: Any, graph: tf.Graph) -> dict[str, Any]:
    """Returns what is known of a side once its graph is built, as a dict that fits JSON."""
    legacy = program.legacy
    return {
        "side": side.name,
        "engine": "stock" if side.stock else "bridge",
        "tensorflow": tf.__version__,
        "use_tpu": program.use_tpu,
        "where": _where(side, program),
        "cores": (job.config.tpu_config.num_shards or 1) if program.use_tpu else 1,
        "quirks": "stock" if side.stock or legacy is None else legacy.quirks,
        "every": program.every,
        "settings": []
        if legacy is None
        else [
            list(setting)
            for setting in settings_of(legacy, stock=side.stock, use_tpu=program.use_tpu)
        ],
        "tables": [] if legacy is None else _tables(program, graph),
        "config": _config(program, graph),
    }


def describe_training(
    spec: Any, side: Side, job: Any, batch_size: int | None, every: int
) -> dict[str, Any]:
    """Returns the same of a training in TensorFlow 2.

    Args:
        spec: the EmbeddingConfigSpec.
        job: of a class that is declared; its engine is built.
        batch_size: of the global batch; None is not known.
        every: steps from one look at the variables to the next.
    """
    legacy = read_spec(spec)
    known = {table.name: table for table in variable_names.tables_of_spec(spec)}
    return {
        "side": side.name,
        "engine": TF2,
        "tensorflow": tf.__version__,
        "use_tpu": True,
        "where": f"tf2_engine, {_ops(side)}",
        "cores": job.engine.plan.num_cores,
        "quirks": legacy.quirks,
        "every": every,
        "settings": [list(setting) for setting in settings_of(legacy, stock=False, use_tpu=True)],
        "tables": [
            _table(
                known[name],
                variable_of(name),
                {variable_of(name, slot): slot for slot in table.variables if slot != PARAMETERS},
                legacy,
            )
            for name, table in job.engine.tables.items()
        ],
        "config": _of_plan(_closed(job.engine.plan, batch_size)),
    }


def variable_of(table: str, part: str = PARAMETERS) -> str:
    """Returns what a recording calls the parameters or a slot of a table that is in an engine."""
    return f"embedding/{table}" if part == PARAMETERS else f"embedding/{table}/{part}"


def _where(side: Side, program: Program) -> str:
    if not program.use_tpu:
        return "ordinary variables, trained by the model's optimizer"
    if side.stock:
        return "software TPU, one core"
    if side.software_tpu:
        return "tpu driver, on the software TPU"
    return _ops(side)


def _ops(side: Side) -> str:
    ops = {True: "native ops", False: "TensorFlow's ops", None: "native ops where they are built"}
    return f"host driver, {ops[side.native]}"


def _tables(program: Program, graph: tf.Graph) -> list[dict[str, Any]]:
    """Returns the tables, with the variables in which the side holds them and their slots."""
    legacy = program.legacy
    assert legacy is not None
    with graph.as_default():
        grouped = grouped_variables()
    shapes = {name: tuple(parts[0].shape.as_list()) for name, parts in grouped.items()}
    tables: list[dict[str, Any]] = []
    if any(table.optimizer is None for table in legacy.tables) and legacy.optimizer is None:
        return tables
    for known in variable_names.tables_of_spec(program.spec):
        # Several parts make up the shape together; of one it is clear what it is.
        variable = variable_names.variable_of(dataclasses.replace(known, shape=None), shapes)
        if variable is None:
            continue
        slots = {}
        for place in ("tpu", "cpu"):
            names = variable_names.slot_variables(str(known.kind), variable, place)
            slots.update({name: slot for slot, name in names.items() if name in shapes})
        tables.append(_table(known, variable, slots, legacy))
    return tables


def _table(
    known: KnownTable, variable: str, slots: dict[str, str], legacy: LegacySpec
) -> dict[str, Any]:
    return {
        "name": known.name,
        "variable": variable,
        "slots": slots,
        "combiner": legacy.table(known.name).combiner,
        "optimizer": known.kind,
        "features": {
            feature.key: [feature.max_sequence_length, feature.weight_key]
            for feature in legacy.features
            if feature.table == known.name
        },
    }


def _config(program: Program, graph: tf.Graph) -> dict[str, str]:
    """Returns what the device is configured with; nothing where there is no device."""
    if not program.use_tpu:
        return {}
    if program.driver is not None and program.driver.plan is not None:
        return _of_plan(program.driver.plan)
    loads = [op for op in graph.get_operations() if op.type.startswith(_LOADS)]
    carried = next((op.get_attr("config") for op in loads if op.get_attr("config")), b"")
    return _flat(tf_compat.TPUEmbeddingConfiguration.FromString(carried))


def _of_plan(plan: Plan) -> dict[str, str]:
    try:
        return _flat(config_proto.config_proto(plan))
    except errors.InvalidSpec:  # An open batch size, which only a host can do with.
        return {}


def _closed(plan: Plan, batch_size: int | None) -> Plan:
    """Returns a plan for one size of batches; a host takes any, a device is configured for one."""
    if batch_size is None:
        return plan
    per_core = batch_size // plan.num_cores
    features = (
        dataclasses.replace(
            feature, output_shape=(feature.output_shape[0] or per_core, *feature.output_shape[1:])
        )
        for feature in plan.features
    )
    return dataclasses.replace(plan, features=tuple(features))


def _flat(message: Any) -> dict[str, str]:
    return flattened(json_format.MessageToDict(message, preserving_proto_field_name=True))
