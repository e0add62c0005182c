"""The names of the variables of tables follow from the scopes in which their columns are used."""

from __future__ import annotations

import types

import pytest

from estimator_bridge import errors
from estimator_bridge.runtime.step.table_variables import variable_names

TABLES = [types.SimpleNamespace(name=f"tbl_{each}", embedding_name=each) for each in "ab"]
LEGACY = types.SimpleNamespace(form="columns", tables=TABLES)


def test_each_table_has_the_name_of_its_scope() -> None:
    """A table outside of scopes has the name within it."""
    scopes = {"a": ("", "weights"), "b": ("dense", "weights")}

    assert variable_names(LEGACY, scopes) == {"tbl_a": "weights", "tbl_b": "dense/weights"}


def test_two_tables_of_one_name_are_refused() -> None:
    """The message names both tables, the variable and the way out."""
    scopes = {"a": ("dense_features", "weights"), "b": ("dense_features", "weights")}
    with pytest.raises(
        errors.InvalidSpec,
        match=r"(?s)'tbl_a' and 'tbl_b'.*dense_features/weights.*one DenseFeatures.*variable_scope",
    ):
        variable_names(LEGACY, scopes)
