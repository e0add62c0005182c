"""Describes a side: its engine, its settings, and the variables of its tables."""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf import json_format

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import variable_names
from estimator_bridge.recording.files import (
    KERAS,
    TF2,
    RuleDescription,
    SideDescription,
    TableDescription,
)
from estimator_bridge.runtime.step.table_variables import NAMES
from estimator_bridge.settings import render
from estimator_bridge.settings.catalogue import values
from estimator_bridge.settings.legacy_spec import SPEC, LegacySpec
from estimator_bridge.translation import on_sparse_cores
from estimator_bridge.translation.translate import translate
from estimator_bridge.verification.sides import Side
from tf2_engine import config_proto, tf_compat
from tf2_engine.backends import HostDriver
from tf2_engine.keras.columns import ByStep, TableColumn
from tf2_engine.optimizers import Optimizer
from tf2_engine.plan import Plan
from tf2_engine.tables import PARAMETERS
from tf2_engine.tf_compat import checkpoint_key, part_of
from tf2_engine.types import Graph, Message, Object, Op, TensorLike, Variable

LOADS = "LoadTPUEmbedding"
"""Type prefix of the ops that load tables onto a device. One of them has the configuration."""

_PART = re.compile(r"/part_\d+(?=/|$)")

_STOCK_V2 = "stock's TPUEmbeddingV2, on software SparseCores"
_Function = Callable[[], TensorLike]


class PlanKeepingDriver(HostDriver):
    """A host driver that remembers the latest plan it was given for training."""

    plan: Plan | None = None

    def configure(self, plan: Plan) -> Op:
        if plan.training:
            self.plan = plan
        return super().configure(plan)


class Program(NamedTuple):
    """A model that a program trains; its variables are read every `every` steps."""

    name: str
    side: Side
    spec: Object
    legacy: LegacySpec | None
    use_tpu: bool
    every: int
    driver: PlanKeepingDriver | None = None
    batch_size: int | None = None
    is_tf1: bool = False
    arithmetic: str = "tpu"


def describe(
    program: Program, estimator: Object, graph: Graph, begin: int, steps: int
) -> SideDescription:
    side, legacy, use_tpu = program.side, program.legacy, program.use_tpu
    return {
        **_without_tables(program, "stock" if side.stock else "bridge"),
        "tensorflow": tf.__version__ + ", seen as TensorFlow 1" * program.is_tf1,
        "use_tpu": use_tpu,
        "where": _where(program),
        "cores": (estimator.config.tpu_config.num_shards or 1) if use_tpu else 1,
        "quirks": "stock" if side.stock or legacy is None else legacy.quirks,
        "settings": settings_of(legacy, side, use_tpu=use_tpu, arithmetic=program.arithmetic),
        "tables": _tables(program, legacy, graph, range(begin, begin + steps)) if legacy else [],
        "config": _config(program, graph),
        "arithmetic": program.arithmetic if use_tpu else "tpu",
        "cuts_exports": use_tpu and not side.stock and _cuts_exports(legacy),
    }


def describe_training(program: Program, trainer: Object, begin: int, steps: int) -> SideDescription:
    legacy, side, engine = program.legacy, program.side, trainer.engine
    if legacy is None:
        return _without_tables(program, TF2)
    known = {table.name: table for table in variable_names.tables_of_spec(program.spec)}
    tables, rules = [], rules_of(legacy, range(begin, begin + steps), program.arithmetic)
    for name, table in engine.tables.items():
        slots = {variable_of(name, slot): slot for slot in table.variables if slot != PARAMETERS}
        tables.append(_table(known[name], variable_of(name), slots, legacy, rules.get(name)))
    plan = _with_batch_size(engine.plan, program.batch_size)
    return {
        **_without_tables(program, TF2),
        "use_tpu": True,
        "where": _STOCK_V2 if side.stock_v2 else f"tf2_engine, {_host_driver(program)}",
        "cores": plan.num_cores,
        "quirks": legacy.quirks,
        "settings": settings_of(legacy, side, use_tpu=True, arithmetic=program.arithmetic),
        "tables": tables,
        "config": {} if side.stock_v2 else _config_of_plan(plan),
        "arithmetic": program.arithmetic,
        "cuts_exports": _cuts_exports(legacy),
    }


def _without_tables(program: Program, engine: str) -> SideDescription:
    return {
        "program": program.name,
        "side": program.side.name,
        "engine": engine,
        "tensorflow": tf.__version__,
        "use_tpu": False,
        "where": "no tables",
        "cores": 1,
        "quirks": "none",
        "every": program.every,
        "settings": [],
        "tables": [],
        "config": {},
        "cuts_exports": False,
    }


def _cuts_exports(legacy: LegacySpec | None) -> bool:
    return legacy is not None and (legacy.form == "dict" or legacy.quirks == "documented")


def describe_model(program: Program, training: Object, begin: int, steps: int) -> SideDescription:
    engine, columns = training.engine, training.model.with_tables.columns
    described = _without_tables(program, KERAS)
    described["tensorflow"] += f", Keras {_keras_version(training.model)}"
    described["computed"] = training.model.checkpoints.computed
    if not engine.tables:
        return described
    plan = _as_legacy(_with_batch_size(engine.plan, program.batch_size))
    numbers = range(begin, begin + steps)
    return {
        **described,
        "use_tpu": True,
        "where": f"tf2_engine, {_host_driver(program)}",
        "cores": plan.num_cores,
        "tables": [_table_of_model(each, columns, numbers) for each in engine.tables.values()],
        "config": _config_of_plan(plan),
        "cuts_exports": True,
    }


def _table_of_model(
    table: Object, columns: Sequence[TableColumn], steps: Sequence[int]
) -> TableDescription:
    name, optimizer = table.plan.name, table.plan.optimizer
    features = {
        each.key: (each.max_sequence_length, each.weight_key)
        for each in columns
        if each.table.name == name
    }
    return {
        "name": name,
        "variable": variable_of(name),
        "slots": {variable_of(name, slot): slot for slot in table.variables if slot != PARAMETERS},
        "combiner": table.plan.combiner,
        "optimizer": variable_names.optimizer_kind(type(optimizer).__name__),
        "features": features,
        "rule": rule_of(optimizer, steps),
    }


def _keras_version(model: Object) -> str:
    names = (kind.__module__.partition(".")[0] for kind in type(model).__mro__)
    name = next(name for name in names if name in ("keras", "tf_keras"))
    return str(sys.modules[name].__version__)


def grouped_variables() -> dict[str, list[Variable]]:
    """Lists the parts of each variable in the default graph, keyed by its name in a checkpoint."""
    grouped: dict[str, list[Variable]] = {}
    for variable in sorted(tf.compat.v1.global_variables(), key=lambda one: part_of(one) or ()):
        name = variable.op.name
        grouped.setdefault(_PART.sub("", name) if part_of(variable) else name, []).append(variable)
    return {checkpoint_key(parts[0]): parts for parts in grouped.values()}


def variable_of(table: str, part: str = PARAMETERS) -> str:
    return f"embedding/{table}" if part == PARAMETERS else f"embedding/{table}/{part}"


def _where(program: Program) -> str:
    side = program.side
    if not program.use_tpu:
        return "ordinary variables, trained by the model's optimizer"
    if side.stock:
        return "software TPU"
    if side.software_tpu:
        return "tpu driver, on the software TPU"
    return _host_driver(program)


def _host_driver(program: Program) -> str:
    ops = {True: "native ops", False: "TensorFlow's ops", None: "native ops where they are built"}
    arithmetic = (
        ", with the arithmetic of SparseCores" if program.arithmetic == "sparsecore" else ""
    )
    return f"host driver, {ops[program.side.native]}{arithmetic}"


def _tables(
    program: Program, legacy: LegacySpec, graph: Graph, steps: Sequence[int]
) -> list[TableDescription]:
    if any(table.optimizer is None for table in legacy.tables) and legacy.optimizer is None:
        return []
    with graph.as_default():
        grouped = grouped_variables()
    shapes = {name: tuple(parts[0].shape.as_list()) for name, parts in grouped.items()}
    tables: list[TableDescription] = []
    names = NAMES.get(graph, {})
    rules = rules_of(legacy, steps, program.arithmetic) if program.use_tpu else {}
    for known in variable_names.tables_of_spec(program.spec):
        variable = names.get(known.name)
        if variable is None:
            # The known shape is the shape of all parts together, so a single part is found by its
            # name alone.
            variable = variable_names.variable_of(dataclasses.replace(known, shape=None), shapes)
        if variable is not None:
            slots: dict[str, str] = {}
            for place in variable_names.places_of(str(known.kind)):
                names = variable_names.slot_variables(str(known.kind), variable, place)
                slots.update({name: slot for slot, name in names.items() if name in shapes})
            tables.append(_table(known, variable, slots, legacy, rules.get(known.name)))
    return tables


def _table(
    known: variable_names.KnownTable,
    variable: str,
    slots: dict[str, str],
    legacy: LegacySpec,
    rule: RuleDescription | None,
) -> TableDescription:
    return {
        "name": known.name,
        "variable": variable,
        "slots": slots,
        "combiner": legacy.table(known.name).combiner,
        "optimizer": known.kind,
        "features": {
            feature.key: (feature.max_sequence_length, feature.weight_key)
            for feature in legacy.features
            if feature.table == known.name
        },
        "rule": rule,
    }


def _config(program: Program, graph: Graph) -> dict[str, str]:
    if not program.use_tpu:
        return {}
    if program.driver is not None and program.driver.plan is not None:
        return _config_of_plan(program.driver.plan)
    loads = [op for op in graph.get_operations() if op.type.startswith(LOADS)]
    serialized = next((op.get_attr("config") for op in loads if op.get_attr("config")), b"")
    return _fields(tf_compat.TPUEmbeddingConfiguration.FromString(serialized))


def _config_of_plan(plan: Plan) -> dict[str, str]:
    try:
        return _fields(config_proto.config_proto(plan))
    except errors.InvalidSpec:  # only hosts allow a batch size that is not fixed
        return {}


def _with_batch_size(plan: Plan, batch_size: int | None) -> Plan:
    if batch_size is None:
        return plan
    per_core = batch_size // plan.num_cores
    features = []
    for feature in plan.features:
        first, *others = feature.output_shape
        features.append(dataclasses.replace(feature, output_shape=(first or per_core, *others)))
    return dataclasses.replace(plan, features=tuple(features))


def _as_legacy(plan: Plan) -> Plan:
    features = (dataclasses.replace(each, send_name=False) for each in plan.features)
    return dataclasses.replace(plan, features=tuple(features))


def _fields(message: Message) -> dict[str, str]:
    config = json_format.MessageToDict(message, preserving_proto_field_name=True)
    names = [table["name"] for table in config.get("table_descriptor", ())]
    for feature in config.get("feature_descriptor", ()):
        # A table's number depends on the order of the tables, which does not affect results.
        feature["table"] = names[feature.pop("table_id", 0)]
    return flattened(config)


def settings_of(
    legacy: LegacySpec | None, side: Side, *, use_tpu: bool, arithmetic: str
) -> list[tuple[str, str, str, str]]:
    """Lists each setting's place, name, value, and why the side ignores it ("" if it does not)."""
    if legacy is None:
        return []
    quirks = None if side.stock else legacy.quirks
    settings = []
    for each in values(legacy):
        where = "spec" if each.where == SPEC else " ".join(map(str, each.where))
        of_optimizer = each.owner.endswith("Parameters")
        name = f"{each.owner}.{each.setting}" if of_optimizer else each.setting
        value, ignored = str(each.value), ""
        if callable(each.value):
            value = f"a function, {getattr(each.value, '__name__', type(each.value).__name__)}"
        # As a combiner, None is a value; for other settings it means "not set".
        if each.value is None and each.setting != "combiner":
            value = "not set"
        else:
            ignored = render.why_not_as_written(each, use_tpu=use_tpu, quirks=quirks)
            if arithmetic == "sparsecore" and use_tpu and not ignored:
                ignored = on_sparse_cores.why_ignored(each, stock_v2=side.stock_v2)
        settings.append((where, name, value, ignored))
    return settings


def flattened(message: Mapping[str, Object], above: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in message.items():
        path = f"{above}{key}"
        if isinstance(value, Mapping):
            flat.update(flattened(value, f"{path}.") or {path: "set"})
        elif isinstance(value, list):
            # Stock's feature descriptors have no names.
            named = {
                str(part.get("name", i)) if isinstance(part, Mapping) else str(i): part
                for i, part in enumerate(value)
            }
            flat.update(flattened(named, f"{path}."))
        else:
            flat[path] = str(value)
    return flat


def rules_of(
    legacy: LegacySpec, steps: Sequence[int], arithmetic: str = "tpu"
) -> dict[str, RuleDescription]:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        step = tf.compat.v1.placeholder(tf.int64, [])

        def numbers(function: _Function) -> list[float] | None:
            try:
                value = tf.cast(function(), tf.float32)
                return [float(session.run(value, {step: number})) for number in steps]
            except Exception:  # the function may need anything from its own graph
                return None

        try:
            spec = translate(legacy, training=True, step=lambda: step)
            if arithmetic == "sparsecore":
                spec = on_sparse_cores.engine_spec(spec)
        except errors.EngineError:  # only stock can train it
            return {}
        factor = legacy.experimental_gradient_multiplier_fn
        multipliers = [] if factor is None else numbers(functools.partial(factor, step))
        rules: dict[str, RuleDescription] = {}
        for table in spec.tables:
            assert table.name is not None and table.optimizer is not None
            rate = table.optimizer.learning_rate
            rates = numbers(rate) if callable(rate) else _constant_rates(rate, len(steps))
            if rates is not None and multipliers is not None:
                rules[table.name] = _rule(table.optimizer, rates, multipliers)
        return rules


def rule_of(optimizer: Optimizer, steps: Sequence[int]) -> RuleDescription | None:
    rate = optimizer.learning_rate
    if isinstance(rate, ByStep):
        rates = [float(np.float32(rate.at(tf.constant(step, tf.int64)))) for step in steps]
    elif callable(rate):
        return None
    else:
        rates = _constant_rates(rate, len(steps))
    return _rule(optimizer, rates, [])


def _constant_rates(rate: float, steps: int) -> list[float]:
    return [float(np.float32(rate))] * steps


def _rule(optimizer: Optimizer, rates: list[float], multipliers: list[float]) -> RuleDescription:
    settings = {
        field.name: getattr(optimizer, field.name) for field in dataclasses.fields(optimizer)
    }
    del settings["learning_rate"], settings["slot_variable_creation_fn"]
    return {
        "kind": type(optimizer).__name__,
        "settings": settings,
        "rates": rates,
        "multipliers": multipliers,
    }
