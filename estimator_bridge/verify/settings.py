"""What a program's embedding config says, setting by setting, and what each engine makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from estimator_bridge.translation.legacy_spec import LegacyOptimizer, LegacySpec, LegacyTable


class Setting(NamedTuple):
    """One setting.

    Attributes:
        where: "spec", or a table or feature.
        name, value: as the program writes them.
        ignored: why the side does without it; "" if it does not.
    """

    where: str
    name: str
    value: str
    ignored: str


def settings_of(legacy: LegacySpec, *, stock: bool, use_tpu: bool) -> list[Setting]:
    """Returns the settings that a program makes, with what a side ignores of them."""
    return [
        Setting(where, name, _shown(value), _ignored(name, value, legacy, stock, use_tpu))
        for where, name, value in _all(legacy)
    ]


def _all(legacy: LegacySpec) -> Iterator[tuple[str, str, Any]]:
    yield from _of_optimizer("spec", legacy.optimizer)
    yield "spec", "clipping_limit", legacy.clipping_limit
    yield (
        "spec",
        "pipeline_execution_with_tensor_core",
        legacy.pipeline_execution_with_tensor_core or None,
    )
    yield "spec", "experimental_gradient_multiplier_fn", legacy.gradient_multiplier_fn
    yield "spec", "partition_strategy", legacy.partition_strategy
    yield "spec", "profile_data_directory", legacy.profile_data_directory
    for table in legacy.tables:
        yield from _of_table(table)
    for feature in legacy.features:
        where = f"feature {feature.key}"
        yield where, "max_sequence_length", feature.max_sequence_length or None
        yield where, "weight_key", feature.weight_key


def _of_table(table: LegacyTable) -> Iterator[tuple[str, str, Any]]:
    where = f"table {table.name}"
    yield where, "vocabulary_size", table.vocabulary_size
    yield where, "dimension", table.dimension
    yield where, "combiner", str(table.combiner)
    yield where, "learning_rate", table.learning_rate
    yield where, "learning_rate_fn", table.learning_rate_fn
    yield where, "hot_id_replication", table.hot_id_replication or None
    yield from _of_optimizer(where, table.optimizer)


def _of_optimizer(where: str, optimizer: LegacyOptimizer | None) -> Iterator[tuple[str, str, Any]]:
    if optimizer is None:
        return
    yield where, "optimization_parameters", optimizer.kind
    for name, value in optimizer.settings.items():
        yield where, f"{optimizer.kind}.{name}", value


def _ignored(name: str, value: Any, legacy: LegacySpec, stock: bool, use_tpu: bool) -> str:
    if value is None:
        return ""
    if name == "clipping_limit" and stock:
        return "stock reads it nowhere"
    if name == "clipping_limit" and legacy.quirks == "stock":
        return "the bridge ignores it as stock does (quirks=stock)"
    if not use_tpu and (name in _OF_UPDATES or "." in name):
        return "with use_tpu=False the model's own optimizer trains the tables"
    if not use_tpu and name in _OF_DEVICES:
        return "it has no effect with use_tpu=False"
    if not use_tpu and name == "combiner" and value == "None":
        return "None is the mean with use_tpu=False, the sum with use_tpu=True"
    if name.rpartition(".")[2] in _UNSET_AT_ZERO and value == 0:
        return "0.0 counts as unset"
    return ""


_OF_UPDATES = (
    "optimization_parameters",
    "learning_rate",
    "learning_rate_fn",
    "clipping_limit",
    "experimental_gradient_multiplier_fn",
)
_OF_DEVICES = (
    "pipeline_execution_with_tensor_core",
    "profile_data_directory",
    "hot_id_replication",
)
# Of a table, and of an optimizer.
_UNSET_AT_ZERO = ("learning_rate", "weight_decay_factor")


def _shown(value: Any) -> str:
    if callable(value):
        return f"a function, {getattr(value, '__name__', type(value).__name__)}"
    return "not set" if value is None else str(value)


def flattened(message: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Returns the leaves of nested dicts and lists, by their paths."""
    flat: dict[str, str] = {}
    for key, value in message.items():
        path = f"{above}{key}"
        if isinstance(value, Mapping):
            flat.update(flattened(value, f"{path}.") or {path: "set"})
        elif isinstance(value, list):
            # Stock's descriptors of features have no names.
            named = {
                str(part.get("name", i)) if isinstance(part, Mapping) else str(i): part
                for i, part in enumerate(value)
            }
            flat.update(flattened(named, f"{path}."))
        else:
            flat[path] = str(value)
    return flat
