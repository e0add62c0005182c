"""Turns dicts of `tf.tpu.experimental.embedding` configs into Keras configs and columns."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from estimator_bridge.migrate.keras_form import rules
from estimator_bridge.migrate.keras_form.program_text.source import (
    NotSimple,
    Source,
    arguments,
    nodes_in,
)

_TABLE = (
    "vocabulary_size dimension initializer combiner hot_id_replication learning_rate "
    "learning_rate_fn optimization_parameters"
)
_CONFIG = f"{rules.EMB}.TableConfig"


def write(source: Source) -> None:
    holder = ""
    for node, key, call in _values(source, "TableConfig"):
        _write_table(source, key, call)
        holder = holder or _variable_of(source, node)
    for _, key, call in _values(source, "FeatureConfig"):
        _write_feature(source, key, call, holder)


def _values(source: Source, name: str) -> Iterator[tuple[ast.Dict, ast.expr | None, ast.Call]]:
    for node in nodes_in(source.tree, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(value, ast.Call) and source.called(value) == f"tpu_embedding.{name}":
                yield node, key, value


def _variable_of(source: Source, node: ast.Dict) -> str:
    statement = source.statement_of(node)
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return str(statement.targets[0].id)
    return ""


def _write_table(source: Source, key: ast.expr | None, call: ast.Call) -> None:
    required = "vocabulary_size dimension"
    by_name = rules.known_arguments(source, call, _TABLE, required, lost="hot_id_replication")
    source.done.update((call, *ast.walk(call.func)))
    optimizer, function = by_name.get("optimization_parameters"), by_name.get("learning_rate_fn")
    if isinstance(optimizer, ast.Call):
        source.done.update((optimizer, *ast.walk(optimizer.func)))
    if function is not None:
        source.need(rules.KERAS, "ByStep")
    if not isinstance(optimizer, ast.Call) and {"learning_rate", "learning_rate_fn"} & {*by_name}:
        raise NotSimple(
            call, "a table sets a learning rate, but does not create its optimizer in the same call"
        )
    column = source.statement_of(call).col_offset

    def write_call() -> str:
        rate = source.code(by_name["learning_rate"]) if "learning_rate" in by_name else None
        rate = f"ByStep({source.code(function)})" if function is not None else rate
        optimizer_code = "None" if optimizer is None else source.code(optimizer)
        if isinstance(optimizer, ast.Call):
            optimizer_code = rules.table_optimizer(source, optimizer, rate)
        size = [source.code(by_name[each]) for each in required.split()]
        rest = source.keywords(by_name, "initializer combiner")
        name = source.code(key) if key is not None else "None"
        pad = " " * (column + 8)
        settings = ", ".join([*size, *rest])
        return f"{_CONFIG}(\n{pad}{settings},\n{pad}optimizer={optimizer_code}, name={name})"

    source.replace(call, write_call)
    if isinstance(optimizer, ast.Call):
        rules.table_optimizer(source, optimizer, "")  # reports problems, adds imports


def _write_feature(source: Source, key: ast.expr | None, call: ast.Call, tables: str) -> None:
    by_name, others = arguments(call, ["table_id", "max_sequence_length", "weight_key"])
    source.done.update((call, *ast.walk(call.func)))
    table = by_name.get("table_id")
    if not tables or table is None or key is None or others:
        raise NotSimple(call, "the table of a feature is not known")
    new = source.need(rules.KERAS, "id_column")

    def write_call() -> str:
        parts = [source.code(key), f"{tables}[{source.code(table)}]"]
        parts += source.keywords(by_name, "max_sequence_length weight_key")
        return f"{new}({', '.join(parts)})"

    source.replace(call, write_call)
