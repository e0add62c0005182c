"""The scopes in which columns are used determine the variable names of their tables."""

from __future__ import annotations

import types

import pytest

from estimator_bridge import errors
from estimator_bridge.checkpoint_files.variable_names import KnownTable, variable_of
from estimator_bridge.convert import table_recognition
from estimator_bridge.runtime.step.table_variables import variable_names
from tf2_engine.training import WarmStartSettings

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


def table(name: str, rows: int) -> KnownTable:
    own_name = f"{name}_embedding/embedding_weights"
    return KnownTable(f"tbl_{name}", shape=(rows, 2), own_name=own_name, scoped=True)


def test_a_column_in_a_layer_that_opens_no_scopes_is_found() -> None:
    """Other columns have scopes of their own, and the shape tells several apart."""
    shapes = {"sequence/doc_embedding/embedding_weights": (4, 2), "kernel": (5, 2)}
    alone = {**shapes, "embedding_weights": (5, 2)}
    scopes = {**shapes, "query/embedding_weights": (5, 2), "ad/embedding_weights": (4, 2)}

    assert variable_of(table("token", 5), alone) == "embedding_weights"
    assert variable_of(KnownTable("tbl_token"), alone) == "embedding_weights"
    assert variable_of(table("token", 5), scopes) == "query/embedding_weights"
    assert variable_of(table("doc", 4), scopes) == "sequence/doc_embedding/embedding_weights"
    assert variable_of(table("token", 5), shapes) is None
    assert variable_of(KnownTable("token"), alone) is None  # of a config dict
    with pytest.raises(errors.Unmatched, match="--table tbl_token=VARIABLE"):
        variable_of(KnownTable("tbl_token"), scopes)


def test_a_checkpoint_alone_tells_the_table_of_such_a_variable() -> None:
    """Slots of a dummy name the table, without a spec."""
    shapes = {
        "embedding_weights": (5, 2),
        "tpu_embedding_dummy_table_variable_tbl_token/Adam": (1,),
    }

    assert table_recognition.tables_of_checkpoint(shapes, dict.fromkeys(shapes, 1)) == {
        "tbl_token": "embedding_weights"
    }


@pytest.mark.parametrize(
    "pattern, old",
    [
        ("tok", "tbl_token"),
        (".*embedding_weights", "tbl_token"),
        ("dense_features/token", "tbl_token"),
        ("dense/", None),
    ],
)
def test_a_warm_start_knows_a_table_by_the_name_of_its_variable(
    pattern: str, old: str | None
) -> None:
    """A pattern of the legacy program matches variables, whose scope is that of a layer."""
    assert WarmStartSettings("old", pattern).old_name_of_table("tbl_token") == old


def test_a_table_may_start_from_a_variable_of_another_name() -> None:
    """The names are those of variables in the legacy program."""
    names = {"dense_features/token_embedding/embedding_weights": "words"}
    settings = WarmStartSettings("old", ".*", names)

    assert settings.old_name_of_table("tbl_token") == "words"
