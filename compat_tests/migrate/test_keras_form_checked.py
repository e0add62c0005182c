"""`migrate --form keras` with `--check-run` and `--verify` rejects programs that fail or differ."""

from __future__ import annotations

import pathlib

import pytest

from compat_tests.migrate.test_keras_form import PROGRAM
from compat_tests.support.paths import EXAMPLES
from estimator_bridge.cli import main

HERE = "loss += 0."
STEP = "train_op = optimizer.minimize(loss, tf.train.get_global_step())"

CONFIG = "config=estimator.tpu.RunConfig(), use_tpu=True"

JOB = PROGRAM.replace("HERE", HERE).replace("STEP", STEP).replace("use_tpu=False", CONFIG)
JOB += "\n\nmain()\n"
"""A program with a table, whose dropout draws other numbers in Keras."""

WITHOUT_DROPOUT = JOB.replace("tf.layers.dropout(net, 0.1,", "tf.layers.dropout(net, 0.0,")

OPTIONS = ("migrate", "--form", "keras")


def written(folder: pathlib.Path, source: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Writes a program into a folder and makes it the current one; returns the path."""
    monkeypatch.chdir(folder)
    (folder / "job.py").write_text(source)
    return "job.py"


@pytest.mark.full
def test_a_program_that_makes_a_step_and_is_equal_is_kept(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both programs compute the same numbers in each step, and the new one is written."""
    program = written(tmp_path, WITHOUT_DROPOUT, monkeypatch)
    assert main.main([*OPTIONS, "--check-run", "--verify", program]) == 0
    assert "EQUAL" in capsys.readouterr().out
    assert (tmp_path / "job_keras.py").exists()


@pytest.mark.full
def test_a_canned_estimator_that_is_equal_is_kept(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The training, the evaluations and all signatures of the export of census are equal."""
    program = written(tmp_path, (EXAMPLES / "census" / "train.py").read_text(), monkeypatch)
    few = ["--train_steps=4", "--save_checkpoints_steps=2", "--dropout=0"]
    folders = ["--data_dir=data", "--model_dir=model"]
    assert main.main([*OPTIONS, "--check-run", "--verify", program, *folders, *few]) == 0
    assert "EQUAL" in capsys.readouterr().out
    assert (tmp_path / "job_keras.py").exists()


@pytest.mark.full
def test_a_program_with_other_numbers_is_not_kept(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Dropout draws other numbers: the exit status is that of verify, and no file remains."""
    program = written(tmp_path, JOB, monkeypatch)
    assert main.main([*OPTIONS, "--verify", program]) == 1
    assert "the new program is not kept" in capfd.readouterr().err
    assert not (tmp_path / "job_keras.py").exists()
