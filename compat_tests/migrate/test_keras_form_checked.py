"""`migrate --form keras` with `--check-run` and `--verify` keeps only programs that are equal."""

from __future__ import annotations

import pathlib

import pytest

from compat_tests.migrate.test_keras_form import changed
from compat_tests.support.paths import EXAMPLES
from estimator_bridge.cli import main

JOB = changed(step="train_op = optimizer.minimize(loss, tf.train.get_global_step())")
JOB = JOB.replace("use_tpu=False", "config=estimator.tpu.RunConfig(), use_tpu=True")
JOB += "\n\nmain()\n"
"""A program with a table, whose dropout draws other numbers in Keras."""

OPTIONS = ("migrate", "--form", "keras", "--verify")


@pytest.mark.full
def test_a_canned_estimator_that_is_equal_is_kept(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The training, the evaluations and all signatures of the export of census are equal."""
    monkeypatch.chdir(tmp_path)
    pathlib.Path("job.py").write_text((EXAMPLES / "census" / "train.py").read_text())
    few = ["--train_steps=4", "--save_checkpoints_steps=2", "--dropout=0"]
    folders = ["--data_dir=data", "--model_dir=model"]
    assert main.main([*OPTIONS, "--check-run", "job.py", *folders, *few]) == 0
    assert "EQUAL" in capsys.readouterr().out
    assert pathlib.Path("job_keras.py").exists()


@pytest.mark.full
def test_a_program_with_other_numbers_is_not_kept(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Dropout draws other numbers: the exit status is that of verify, and no file remains."""
    monkeypatch.chdir(tmp_path)
    pathlib.Path("job.py").write_text(JOB)
    assert main.main([*OPTIONS, "job.py"]) == 1
    assert "the new program is not kept" in capfd.readouterr().err
    assert not pathlib.Path("job_keras.py").exists()
