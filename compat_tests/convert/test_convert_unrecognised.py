"""Without a spec, `convert` recognises tables, or names variables that may be tables."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from compat_tests.support import legacy_checkpoints
from compat_tests.support.conversions import (
    END,
    OTHERS,
    assert_same,
    convert_and_read,
    spec_of,
    tables_of,
)
from estimator_bridge import convert, errors
from estimator_bridge.cli import main
from estimator_bridge.convert import inspection

DUMMY = "tpu_embedding_dummy_table_variable_"
COLUMN = "dense_features/users_embedding/embedding_weights"


def matrix(number: float) -> Any:
    return np.full([4, 2], number, np.float32)


def written(tmp_path: pathlib.Path, values: Mapping[str, Any]) -> str:
    """Writes a checkpoint of one host; returns its path."""
    return legacy_checkpoints.write(str(tmp_path / "old/model.ckpt-77"), values, OTHERS)


@pytest.mark.parametrize(
    "name, more, table",
    [
        ("a_b_shared_embedding", {}, "tbl_a_b_shared_embedding"),
        ("tower/a_b_shared_embedding", {}, "tbl_a_b_shared_embedding"),
        ("items", {f"{DUMMY}tbl_items/Adam": np.zeros([1], np.float32)}, "tbl_items"),
        ("in/items", {f"{DUMMY}tbl_items/Adam_1": np.zeros([1], np.float32)}, "tbl_items"),
        ("items", {f"{DUMMY}items/Adagrad": np.zeros([1], np.float32)}, "items"),
        ("items", {"items/Adam/m": matrix(2), "items/Adam/v": matrix(3)}, "items"),
    ],
)
def test_tables_are_told_by_their_names_slots_and_stand_ins(
    name: str, more: Mapping[str, Any], table: str, tmp_path: pathlib.Path
) -> None:
    """Columns, their optimizer, and tables whose stand-in in the model has slots need no flag."""
    slots = {f"{COLUMN}/Ftrl": matrix(4), f"{COLUMN}/Ftrl_1": matrix(5)}
    old = written(tmp_path, {COLUMN: matrix(0), **slots, name: matrix(1), **more})

    converted = convert_and_read(old, tmp_path / "new")
    for part, number in (
        (table, 1), ("tbl_users", 0), ("tbl_users.Saccumulators", 4), ("tbl_users.Slinears", 5)
    ):  # fmt: skip
        np.testing.assert_array_equal(converted[f"embedding/{part}{END}"], matrix(number))


@pytest.mark.parametrize(
    "name", ["both", "in/items_embedding", "in/embedding_weights", "items/items_embedding_1"]
)
def test_what_may_be_a_table_is_named_and_refused(
    name: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A matrix with the name of a table, or without a scope, is refused until a flag says more.

    Named with --table it is a table; allowed, it is carried as a variable, with its slots.
    """
    values = {COLUMN: matrix(0), name: matrix(1), f"{name}/Adagrad": matrix(2)}
    old = written(tmp_path, values)
    command = ["convert", old, str(tmp_path / "new")]

    assert main.main(command) == 2
    assert not (tmp_path / "new").exists()
    stderr = capsys.readouterr().err
    assert f"\n  {name}: it looks like a table" in stderr
    assert "--allow NAME" in stderr
    assert "--table" in stderr
    # A table that is named does not make another one pass.
    assert main.main([*command, "--table", f"users={COLUMN}"]) == 2

    assert main.main([*command, "--allow", name]) == 0
    assert f"note: '{name}' looks like a table" in capsys.readouterr().out
    key = name.replace("/", ".S")
    converted = legacy_checkpoints.read(str(tmp_path / "new"))
    np.testing.assert_array_equal(converted[f"variables/{key}{END}"], matrix(1))
    np.testing.assert_array_equal(converted[f"variables/{key}.SAdagrad{END}"], matrix(2))

    command[2] = str(tmp_path / "named")
    assert main.main([*command, "--table", f"users={COLUMN}", "--table", f"both={name}"]) == 0
    converted = legacy_checkpoints.read(str(tmp_path / "named"))
    np.testing.assert_array_equal(converted[f"embedding/both{END}"], matrix(1))
    np.testing.assert_array_equal(converted[f"embedding/both.Saccumulators{END}"], matrix(2))


def test_variables_of_layers_and_vectors_are_no_tables(tmp_path: pathlib.Path) -> None:
    """Kernels, embeddings of other layers and vectors are carried, and nobody is asked."""
    values = {
        COLUMN: matrix(0),
        "dense/kernel_1": matrix(1),
        "bert/embeddings/word_embeddings": matrix(2),
        "scale": np.ones([3], np.float32),
    }
    report = convert.convert(written(tmp_path, values), str(tmp_path / "new"))

    assert report.notes == ()
    assert len(report.moves) == len(values) + len(OTHERS)


def test_with_a_spec_what_a_tpu_left_of_other_tables_is_named(tmp_path: pathlib.Path) -> None:
    """A table that the spec has no more is named; a variable without a scope is the model's."""
    values, _ = tables_of()
    gone = {"gone": matrix(1), "gone/Adam/m": matrix(2), "gone/Adam/v": matrix(3)}
    old = written(tmp_path, {**values, "weights": matrix(4), **gone})
    spec = spec_of()

    with pytest.raises(
        errors.Unmatched, match="gone: it looks like a table, but the spec"
    ) as caught:
        convert.convert(old, str(tmp_path / "new"), spec=spec)
    assert "weights" not in str(caught.value)
    convert.convert(old, str(tmp_path / "new"), spec=spec, allow=["gone"])
    assert_same(
        {**values, **gone, **OTHERS, "weights": matrix(4)},
        convert_and_read(tmp_path / "new", tmp_path / "back", spec=spec),
    )


def test_where_no_table_is_found_candidates_are_named(tmp_path: pathlib.Path) -> None:
    """A checkpoint of one table that nothing marks as one is refused; `inspect` names it too."""
    old = written(tmp_path, {"items": matrix(1), "items/Adagrad": matrix(2)})

    with pytest.raises(errors.InvalidInput, match=r"--table NAME=VARIABLE.*\['items'\]"):
        convert.convert(old, str(tmp_path / "new"))
    report = convert.inspect(old)
    assert report["tables"] == []
    assert report["perhaps_tables"] == ["items"]
    text = list(inspection.lines(report))
    assert "variable items: float32[4, 2], perhaps a table: --table NAME=items" in text
