"""Names variables and tables in checkpoints, and detects checkpoints of legacy programs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.specs import TableSpec

VALUE = ".ATTRIBUTES/VARIABLE_VALUE"

GLOBAL_STEP = "global_step"
KEY_OF_STEP = f"{GLOBAL_STEP}/{VALUE}"

_OF_VARIABLES = "variables"
_OF_TABLES = "embedding"


def key_of_variable(name: str) -> str:
    return _key(_OF_VARIABLES, name)


def key_of_table(name: str) -> str:
    return _key(_OF_TABLES, name)


def names_in(keys: Iterable[str]) -> list[str]:
    names = []
    for key in keys:
        if key == KEY_OF_STEP:
            names.append(GLOBAL_STEP)
        place, _, rest = key.removesuffix(f"/{VALUE}").partition("/")
        if key.endswith(VALUE) and place in (_OF_VARIABLES, _OF_TABLES) and "/" not in rest:
            names.append(rest.replace(".S", "/").replace("..", "."))
    return names


def _key(place: str, name: str) -> str:
    return f"{place}/{name.replace('.', '..').replace('/', '.S')}/{VALUE}"


_OF_COLUMN = "embedding_weights"
_LAYERS = ("dense_features", "input_layer", "sequence_features", "sequence_input_layer")
"""The default names of the layers that look up columns. Variable names begin with these."""


def in_legacy_programs(table: str) -> list[str]:
    """Lists the names that a legacy program may use for a table and for the table's variable."""
    name = table.removeprefix("tbl_")
    scopes = ["", *(f"{layer}/" for layer in _LAYERS)]
    return [name, *(f"{scope}{name}_embedding/{_OF_COLUMN}" for scope in scopes)]


def legacy_names(table: TableSpec) -> re.Pattern[str]:
    name = re.escape(str(table.name).removeprefix("tbl_"))
    return re.compile(rf"(.*/)?(tbl_)?{name}(_embedding/{_OF_COLUMN})?")


def check_complete(checkpoint: str, variables: Iterable[str]) -> None:
    stored = dict(tf.train.list_variables(checkpoint))
    keys = {name: key_of_variable(name) for name in variables}
    lacking = [name for name, key in keys.items() if key not in stored]
    if lacking:
        spare = {key for key in stored if key.startswith("variables/")} - {*keys.values()}
        raise errors.InvalidInput(
            f"{checkpoint} lacks {', '.join(lacking)}. The checkpoint's variables that are not in "
            f"the model: {', '.join(sorted(spare)) or 'none'}. Rename variables with "
            "`estimator-bridge convert --rename OLD=NEW`."
        )


def _without_column(table: TableSpec, shapes: Mapping[str, list[int]]) -> list[str]:
    """Lists variables that may be the table, in case a layer opened no scope for its column."""
    pattern = re.compile(rf"(?!.*_embedding/{_OF_COLUMN}$)(.*/)?{_OF_COLUMN}")
    return [
        name
        for name, shape in shapes.items()
        if pattern.fullmatch(name) and shape == [table.vocabulary_size, table.dim]
    ]


def check_converted(
    checkpoint: str, model_dir: str, tables: Iterable[TableSpec], partition_strategy: str
) -> None:
    shapes = dict(tf.train.list_variables(checkpoint))
    if "_CHECKPOINTABLE_OBJECT_GRAPH" in shapes:
        return
    words = ["estimator-bridge", "convert", checkpoint, f"{model_dir}_tf2"]
    tables = list(tables)
    words += [] if tables else ["--no_tables"]
    others = {name for name, shape in shapes.items() if len(shape) == 2}
    for table in tables:
        names = [name for name in shapes if legacy_names(table).fullmatch(name)]
        names = names or _without_column(table, shapes)
        words += [f"--table {table.name}={name}" for name in names]
        others.difference_update(names)
    # The names of the model's own embeddings look like tables, but these are ordinary variables.
    alike = re.compile(r"^[^/]+$|(_embedding|embedding_weights)(_\d+)?$")
    words += [f"--allow {name}" for name in sorted(others) if tables and alike.search(name)]
    if partition_strategy != "div":
        words.append(f"--from_partition {partition_strategy}")
    raise errors.InvalidInput(
        f"{checkpoint} was written by the legacy program. Convert it, and resume from the result: "
        + " ".join(words)
    )
