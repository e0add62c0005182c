"""Checkpoints that cannot be converted: the message, and that nothing is written."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.support import legacy_checkpoints
from compat_tests.support.conversions import (
    END,
    OTHERS,
    convert_and_read,
    engine_of,
    old_checkpoint,
    spec_of,
    tables_of,
)
from compat_tests.support.legacy_specs import OURS
from estimator_bridge import convert, errors


def incomplete(
    tmp_path: pathlib.Path, without: str = "", optimizer: str = "Adagrad", **more: Any
) -> str:
    """Writes a checkpoint of the dict form without a variable, and with more; returns its path."""
    values, _ = tables_of(optimizer, "dict")
    held = {name: value for name, value in {**values, **more}.items() if name != without}
    return legacy_checkpoints.write(str(tmp_path / "old/m"), held, OTHERS)


def test_a_missing_slot_is_refused_unless_allowed(tmp_path: pathlib.Path) -> None:
    """A slot that is not there is named; allowed, it starts as the optimizer of the spec does."""
    old = incomplete(tmp_path, without="few/Adagrad")
    spec = spec_of()

    with pytest.raises(errors.Unmatched, match="few/Adagrad: table 'few' has no such slot"):
        convert.convert(old, str(tmp_path / "new"), spec=spec)
    assert not (tmp_path / "new").exists()
    report = convert.convert(old, str(tmp_path / "new"), spec=spec, allow=["few/*"])

    converted = legacy_checkpoints.read(str(tmp_path / "new"))
    np.testing.assert_array_equal(
        converted[f"embedding/few.Saccumulators{END}"], np.full([3, 4], 0.25, np.float32)
    )
    assert report.lines()[-1] == "left out: few/Adagrad (table 'few' has no such slot)"


def test_what_belongs_to_a_table_is_not_carried_as_something_else(tmp_path: pathlib.Path) -> None:
    """The slots of another optimizer are named, not dropped and not carried."""
    extra = {"users/Adam": np.ones([13, 4], np.float32)}
    old = incomplete(tmp_path, **extra)
    spec = spec_of()

    with pytest.raises(errors.Unmatched, match="users/Adam: it belongs to table 'users'"):
        convert.convert(old, str(tmp_path / "new"), spec=spec)
    convert.convert(old, str(tmp_path / "new"), spec=spec, allow=["users/Adam"])

    assert not any("Adam" in name for name in legacy_checkpoints.read(str(tmp_path / "new")) if
                   "users" in name)  # fmt: skip


def test_a_table_without_a_variable_is_named(tmp_path: pathlib.Path) -> None:
    """A table of the spec that the checkpoint lacks is named, with what has its shape."""
    old = incomplete(tmp_path, without="few")

    with pytest.raises(errors.Unmatched, match=r"few: table 'few' has no variable .*few/Adagrad"):
        convert.convert(old, str(tmp_path / "new"), spec=spec_of())


def test_two_scopes_are_not_guessed(tmp_path: pathlib.Path) -> None:
    """Where two variables may be a column's table, both are named; a flag says which it is."""
    weights = np.ones([13, 4], np.float32)
    values = {
        "a/users_embedding/embedding_weights": weights,
        "b/users_embedding/embedding_weights": 2 * weights,
        "both": np.ones([3, 4], np.float32),
    }
    old = legacy_checkpoints.write(str(tmp_path / "old/m"), values, OTHERS)
    spec = spec_of("StochasticGradientDescent", "columns")

    with pytest.raises(errors.Unmatched, match=r"tbl_users.*a/users.*b/users"):
        convert.convert(old, str(tmp_path / "new"), spec=spec)
    tables = {"tbl_users": "b/users_embedding/embedding_weights"}
    converted = convert_and_read(old, tmp_path / "new", spec=spec, tables=tables)
    assert np.all(converted[f"embedding/tbl_users{END}"] == 2)


def test_another_vocabulary_is_refused(tmp_path: pathlib.Path) -> None:
    old = incomplete(tmp_path)
    spec = spec_of()
    spec.table_to_config_dict["users"] = OURS.TableConfig(14, 4)

    with pytest.raises(errors.InvalidInput, match=r"'users': the spec says \[14, 4\].*\[13, 4\]"):
        convert.convert(old, str(tmp_path / "new"), spec=spec)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"from_hosts": 3}, "`from_hosts`=3, but the tables are stored in slices of 2"),
        ({"spec": None}, '"div" or "mod"'),
        ({"spec": None, "optimizer": "Adamant"}, "no optimizer 'Adamant'"),
        ({"to_partition": "row"}, "`to_partition` must be 'div' or 'mod', got 'row'"),
        ({"to": "names", "to_hosts": 0}, "`to_hosts` must be positive, got 0"),
        ({"to_hosts": 2}, "`to_hosts` are for name-based"),
        ({"slots": "gpu"}, "`slots` must be one of 'tpu', 'cpu', 'keras', got 'gpu'"),
        ({"to": "keras"}, "`to` must be 'names', 'object', 'sparsecore' or 'torch', got 'keras'"),
        ({"tables": {"no": "users"}}, r"The spec has no table \['no'\]"),
        ({"rename": {"counts": "beta1_power"}}, "would be written twice"),
        ({"to": "sparsecore", "to_hosts": 2}, "do not depend on hosts"),
        ({"to": "sparsecore", "to_cores": 3}, "must be a power of two"),
        (
            {"to": "sparsecore", "samples": {"nobody": 4}},
            "`samples`: there is no table 'nobody'",
        ),
        ({"to": "sparsecore", "samples": {"users": 4, "few": 4}}, "must map one table"),
        (
            {"to": "sparsecore", "like": "old/model.ckpt-77"},
            "is not a checkpoint for SparseCores",
        ),
        ({"to": "torch", "to_hosts": 2}, "tables are written whole, and TorchRec shards them"),
        ({"to": "torch", "to_partition": "mod"}, "tables are written whole"),
        (
            {"to": "torch", "spec": None, "from_partition": "mod", "tables": {"a.b": "users"}},
            r"Table 'a\.b': TorchRec keeps tables in a ModuleDict",
        ),
    ],
)
def test_options_that_do_not_fit_are_named(
    options: Mapping[str, Any],
    message: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An option that contradicts the checkpoint, or that its form lacks, is named."""
    monkeypatch.chdir(tmp_path)
    old, _ = old_checkpoint(tmp_path, hosts=2, strategy="mod")

    with pytest.raises(errors.EngineError, match=message):
        convert.convert(old, str(tmp_path / "new"), **{"spec": spec_of(strategy="mod"), **options})
    assert not (tmp_path / "new").exists()


def test_an_engine_alone_needs_a_step_for_an_estimator(tmp_path: pathlib.Path) -> None:
    """An object checkpoint without a step is refused by name, and a step can be given."""
    spec = spec_of()
    saved = tf.train.Checkpoint(embedding=engine_of(spec)).save(str(tmp_path / "old" / "ckpt"))

    with pytest.raises(errors.Unmatched, match="global_step"):
        convert.convert(saved, str(tmp_path / "new"), spec=spec)
    convert.convert(saved, str(tmp_path / "new"), spec=spec, global_step=12)

    assert tf.train.latest_checkpoint(str(tmp_path / "new")).endswith("model.ckpt-12")
    assert tf.train.load_variable(str(tmp_path / "new"), "global_step") == 12


def test_objects_without_a_name_are_listed(tmp_path: pathlib.Path) -> None:
    """A variable of another object has no legacy name; it is named, and can be given one."""
    spec = spec_of()
    saved = tf.train.Checkpoint(
        embedding=engine_of(spec),
        global_step=tf.Variable(1, dtype=tf.int64),
        tower=tf.Module(),
        kernel=tf.Variable([1.0, 2.0]),
    ).save(str(tmp_path / "old" / "ckpt"))

    with pytest.raises(errors.Unmatched, match=f"kernel{END}: its name in"):
        convert.convert(saved, str(tmp_path / "new"), spec=spec)
    convert.convert(
        saved, str(tmp_path / "new"), spec=spec, rename={f"kernel{END}": "dense/kernel"}
    )

    np.testing.assert_array_equal(
        tf.train.load_variable(str(tmp_path / "new"), "dense/kernel"), [1.0, 2.0]
    )


def test_slots_of_two_optimizers_need_a_word(tmp_path: pathlib.Path) -> None:
    """Adagrad and ProximalAdagrad have one slot of one name in the engine; the user says which."""
    saved = tf.train.Checkpoint(embedding=engine_of(spec_of())).save(str(tmp_path / "old" / "ckpt"))

    with pytest.raises(errors.InvalidInput, match=r"AdagradParameters.*ProximalAdagradParameters"):
        convert.convert(saved, str(tmp_path / "new"), global_step=1)
    convert.convert(saved, str(tmp_path / "new"), global_step=1, optimizer="ProximalAdagrad")

    assert "users/ProximalAdagrad" in legacy_checkpoints.read(str(tmp_path / "new"))


# --- How it is written ----------------------------------------------------------------------


def test_nothing_is_overwritten(tmp_path: pathlib.Path) -> None:
    """A directory with anything in it is left alone; an empty one is taken."""
    old = incomplete(tmp_path)
    spec = spec_of()

    with pytest.raises(errors.InvalidInput, match="old exists"):
        convert.convert(old, str(tmp_path / "old"), spec=spec)
    (tmp_path / "new").mkdir()
    convert.convert(old, str(tmp_path / "new"), spec=spec)

    assert sorted(os.listdir(tmp_path / "new")) == [
        "checkpoint",
        "ckpt-77.data-00000-of-00001",
        "ckpt-77.index",
    ]
