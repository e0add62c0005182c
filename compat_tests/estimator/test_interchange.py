"""Jobs with different numbers of hosts or use_tpu can share one model_dir; nothing is lost."""

from __future__ import annotations

import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.programs import jobs, killed
from compat_tests.support import legacy_checkpoints
from estimator_bridge import errors

SLOTS = ("Adam/m", "Adam/v")


def spread(job: Any, directory: pathlib.Path, hosts: int, strategy: str) -> Any:
    """Writes the latest checkpoint of a job as several hosts do; returns a job with it."""
    values = jobs.saved(job)
    tables = {name: values.pop(name) for name in list(values) if name.split("/")[0] in killed.ROWS}
    path = str(directory / "model.ckpt-3")
    legacy_checkpoints.write(path, tables, values, hosts, strategy)
    (directory / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-3"\n')
    return killed.make(directory, strategy=strategy)


@pytest.mark.parametrize(
    "hosts, strategy",
    [
        (5, "mod"),
        pytest.param(8, "mod", marks=pytest.mark.full),  # a table has fewer rows
        pytest.param(5, "div", marks=pytest.mark.full),
    ],
)
def test_checkpoints_of_several_hosts_are_read_in_place(
    hosts: int, strategy: str, tmp_path: pathlib.Path
) -> None:
    """Training, evaluation, prediction and export find each id's row in the parts of any hosts."""
    one = killed.make(tmp_path / "one", strategy=strategy)
    one.train(killed.by_step, max_steps=3)
    several = spread(one, tmp_path / "several", hosts, strategy)
    stored = legacy_checkpoints.read(several.latest_checkpoint())
    assert strategy == "div" or np.any(stored["users"] != jobs.saved(one)["users"])

    if strategy == "mod":
        new = killed.make(tmp_path / "new", strategy=strategy, warm_start_from=several.model_dir)
        with pytest.raises(errors.InvalidInput, match=r"'users'.*estimator-bridge convert"):
            new.train(killed.by_step, max_steps=1)

    outcomes = []
    for job in (one, several):
        metrics = job.evaluate(killed.by_step, steps=2)
        predicted = next(job.predict(killed.by_step))
        exported = tf.compat.v2.saved_model.load(
            job.export_saved_model(str(tmp_path / "exported" / job.model_dir[-7:]), killed.receiver)
        )
        users = tf.constant([[3], [10]], tf.int64)
        served = exported.signatures["serving_default"](users=users)["p"].numpy()
        job.train(killed.by_step, max_steps=5)
        outcomes.append((metrics, predicted["p"], served.tolist(), jobs.saved(job)))

    assert outcomes[0][:3] == outcomes[1][:3]
    assert jobs.largest_difference(outcomes[0][3], outcomes[1][3])[0] == 0.0


@pytest.mark.full
def test_parts_that_no_hosts_made_are_refused(tmp_path: pathlib.Path) -> None:
    one = killed.make(tmp_path / "one", strategy="mod")
    one.train(killed.by_step, max_steps=3)
    values = jobs.saved(one)
    with tf.Graph().as_default(), tf.Session() as session:
        for name, value in values.items():
            cut = (lambda shape, dtype: [1, 2]) if name == "users" else None  # by columns
            tf.get_variable(
                name,
                shape=value.shape,
                dtype=tf.as_dtype(value.dtype),
                partitioner=cut,
                initializer=tf.zeros_initializer(),
                use_resource=True,
            )
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, str(tmp_path / "odd" / "model.ckpt"), global_step=3)

    with pytest.raises(errors.InvalidInput, match="'users' is not stored in blocks of rows"):
        killed.make(tmp_path / "odd", strategy="mod").evaluate(killed.by_step, steps=1)


def test_slots_of_the_other_mode_are_kept_and_missing_ones_start(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """When use_tpu changes, a warning names the slots that start anew, and none is lost."""
    job = killed.make(tmp_path / "job", use_tpu=False)
    job.train(killed.by_step, max_steps=3)
    before = jobs.saved(job)
    assert {"users/Adam", "users/Adam_1"} <= set(before)
    shutil.copytree(tmp_path / "job", tmp_path / "alone")

    caplog.clear()
    killed.make(tmp_path / "job").train(killed.by_step, max_steps=6)
    after = jobs.saved(job)
    warnings = [line for line in caplog.messages if "get their initial values" in line]
    missing = {f"{table}/{slot}" for table in killed.ROWS for slot in SLOTS}
    dummies = set(after) - set(before) - missing
    assert len(warnings) == 1
    assert all(f"'{name}'" in warnings[0] for name in missing | dummies)
    assert all(name.startswith("tpu_embedding_dummy_table_variable_") for name in dummies)
    for name in ("users/Adam", "users/Adam_1", "items/Adam", "items/Adam_1"):
        np.testing.assert_array_equal(before[name], after[name], err_msg=name)

    # Back again all is there, and the slots of the TPU stay in turn.
    caplog.clear()
    job.train(killed.by_step, max_steps=7)
    last = jobs.saved(job)
    assert not [line for line in caplog.messages if "get their initial values" in line]
    assert set(last) == set(after)
    np.testing.assert_array_equal(last["users/Adam/m"], after["users/Adam/m"])
    assert np.any(last["users/Adam"] != after["users/Adam"])


@pytest.mark.full
def test_a_variable_that_is_no_slot_is_not_made_up(tmp_path: pathlib.Path) -> None:
    job = killed.make(tmp_path)
    job.train(killed.by_step, max_steps=1)
    values = jobs.saved(job)
    values.pop("weights")
    legacy_checkpoints.write(job.latest_checkpoint(), {}, values)

    with pytest.raises(tf.errors.NotFoundError, match="weights"):
        job.train(killed.by_step, max_steps=2)
