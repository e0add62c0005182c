"""The tables of a layer in small types, for an export."""

from __future__ import annotations

from collections.abc import Mapping

from tf2_engine.checkpoint import exported_variables
from tf2_engine.embedding import TPUEmbedding
from tf2_engine.keras.keras_tables import KerasTables
from tf2_engine.serving_tables import small_table, small_variable
from tf2_engine.types import Object, Variable


def served_tables(
    embedding: KerasTables | TPUEmbedding, table_dtypes: Mapping[str, str]
) -> tuple[Mapping[str, Object], Mapping[str, Variable]]:
    """Returns the tables as `cpu_embedding_lookup` takes them, and the variables that they have.

    Args:
        embedding: what holds the tables, which exist.
        table_dtypes: the type of each table by its name; float32 tables are not copied.

    Raises:
        InvalidSpec: a type cannot hold a row; the message names both.
    """
    if isinstance(embedding, KerasTables):
        variables = {
            name: small_variable(embedding.parameters[name], dtype, name)
            for name, dtype in table_dtypes.items()
        }
        return variables, variables
    embedding.retrieve()  # updates that are pending, and those of a TPU
    tables = {
        name: small_table(embedding.tables[name], dtype) for name, dtype in table_dtypes.items()
    }
    return tables, exported_variables(tables)
