"""`estimator-bridge verify` and `estimator_bridge.verify`, from a program to a verdict."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from compat_tests.conftest import HAS_STOCK
from compat_tests.run.test_run import PROGRAM
from compat_tests.support import fresh
from compat_tests.support.paths import EXAMPLES
from estimator_bridge.cli import main, verify_checks

BRIDGE = ("--a", "bridge", "--b", "bridge")
HANGS = 1800
"""Seconds after which a command hangs. Beside other work, sides take minutes to start."""

TRAIN = PROGRAM.replace("job.train(input_fn, steps=2)", "job.train(input_fn, steps=3)")

STILL = """\
import tensorflow.compat.v1 as tf
from tensorflow.compat.v1 import estimator

def input_fn():
    return tf.data.Dataset.from_tensors(({features}, {labels})).repeat(3)

def model_fn(features, labels, mode):
    weight = tf.get_variable("weight", [1, 1])
    loss = tf.reduce_sum((tf.matmul(features, weight) - labels) ** 2)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

estimator.Estimator(model_fn).train(input_fn, max_steps=2)
"""
"""A program that does not pass the global step to its optimizer."""


def run_verify(
    *arguments: str, cwd: pathlib.Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs `estimator-bridge verify`."""
    return fresh.python("-m", "estimator_bridge", "verify", *arguments, cwd=cwd, timeout=HANGS)


def verify(
    tmp_path: pathlib.Path, program: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Runs it on a program, with the arguments that `PROGRAM` takes."""
    (tmp_path / "train.py").write_text(program)
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    return run_verify(*arguments, str(tmp_path / "train.py"), str(tmp_path / "job"), "tpu")


@pytest.mark.full
def test_a_program_is_verified_from_the_command_line(tmp_path: pathlib.Path) -> None:
    """Two equal sides give status 0, a table, JSON and a page; model_dir stays empty."""
    a = "stock" if HAS_STOCK else "bridge-native"
    files = {kind: str(tmp_path / f"report.{kind}") for kind in ("json", "html")}
    options = ("--json", files["json"], "--html", files["html"])
    # Dropout without a seed draws the same on both sides.
    columns = "tf.keras.layers.DenseFeatures([column])(features)"
    program = TRAIN.replace(columns, f"tf.layers.dropout({columns}, 0.5, training=True)")
    assert program != TRAIN
    ran = verify(tmp_path, program, "--a", a, "--b", "bridge-ops", "--steps", "3", *options)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "EQUAL" in ran.stdout.splitlines()[2]
    assert "step 3 of 3" not in ran.stderr  # only terminals show progress
    result = json.loads(pathlib.Path(files["json"]).read_text())
    assert result["equal"] is True
    assert result["steps"] == [0, 1, 2, 3]
    assert result["sides"]["a"]["engine"] == ("stock" if HAS_STOCK else "bridge")
    # Both sides configure a device in the same way.
    assert result["config"] == []
    roles = {series["role"] for series in result["series"]}
    assert roles == {"activation", "loss", "gradient", "table", "slot accumulators", "dense"}
    assert pathlib.Path(files["html"]).read_text().startswith("<!doctype html>")
    assert not list((tmp_path / "job").iterdir())


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_side_does_not_outlive_the_command(number: int, tmp_path: pathlib.Path) -> None:
    side = tmp_path / "side"
    program = tmp_path / "train.py"
    program.write_text(
        f"import os, pathlib, time\npathlib.Path({str(side)!r}).write_text(str(os.getpid()))\n"
        "while True:\n    time.sleep(1)\n"
    )
    command = [sys.executable, "-m", "estimator_bridge", "verify", "--a", "bridge", str(program)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Under nohup, these tests ignore the signal, and the command would inherit that.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    try:
        wait_until(lambda: side.exists() and side.read_text() != "")
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(HANGS) == 128 + number
    finally:
        process.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(int(side.read_text()), 0)


def wait_until(condition: Callable[[], bool]) -> None:
    """Waits until the side has imported TensorFlow and begun."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < HANGS
        time.sleep(0.1)


@pytest.mark.full
def test_a_canned_estimator_is_compared(tmp_path: pathlib.Path) -> None:
    """For census, a canned estimator, the training, evaluations and export are compared."""
    report = str(tmp_path / "report.json")
    folders = (f"--data_dir={tmp_path / 'data'}", f"--model_dir={tmp_path / 'model'}")
    few = ("--train_steps=4", "--save_checkpoints_steps=2")
    a = "stock" if HAS_STOCK else "bridge"
    options = ("--a", a, "--b", "bridge", "--steps", "4", "--json", report)
    ran = run_verify(*options, str(EXAMPLES / "census" / "train.py"), *folders, *few)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    result = json.loads(pathlib.Path(report).read_text())
    assert result["equal"] is True
    assert result["steps"] == [0, 1, 2, 3, 4]
    series = {each["name"] for each in result["series"]}
    assert {"linear/linear_model/bias_weights", "dnn/hiddenlayer_0/kernel"} <= series
    assert "evaluation" in ran.stdout
    # Each side trains in its own folder.
    assert not list((tmp_path / "model").glob("*.ckpt*"))


@pytest.mark.full
def test_sides_that_differ_give_status_1(tmp_path: pathlib.Path) -> None:
    """If only one side has use_tpu, the model's optimizer trains the tables, and verify says so."""
    sides = ("--a", "stock-cpu" if HAS_STOCK else "bridge-cpu", "--b", "bridge-tpu")
    ran = verify(tmp_path, TRAIN, *sides, "--steps", "2")

    assert ran.returncode == 1, ran.stderr
    assert "NOT EQUAL" in ran.stdout
    assert "optimizer substitution: Side A runs with use_tpu=False" in ran.stdout
    # No perturbed run is needed if a setting explains the difference.
    assert "perturbed" not in ran.stderr


@pytest.mark.full
def test_failing_programs_give_status_2(tmp_path: pathlib.Path) -> None:
    """The message has the last output of a failing program, or says that nothing was trained."""
    failing = verify(tmp_path, "raise ValueError('on purpose')", "--a", "bridge", "--steps", "2")
    assert failing.returncode == 2
    assert "ValueError: on purpose" in failing.stderr
    nothing = verify(tmp_path, "print('no training')", "--a", "bridge", "--steps", "2")
    assert nothing.returncode == 2
    assert "trained no Estimator of the bridge" in nothing.stderr
    if HAS_STOCK:
        on_stock = verify(tmp_path, "print('no training')", "--steps", "2")
        assert on_stock.returncode == 2
        way_out = (
            "trained no Estimator of stock.*imports the bridge itself, give the original program"
        )
        assert re.search(way_out, on_stock.stderr)
    program = STILL.format(features=[[1.0]], labels=[[1.0]])
    unmoved = verify(tmp_path, program, "--a", "bridge", "--steps", "2")
    assert unmoved.returncode == 2
    assert "its global step did not change" in unmoved.stderr


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["no/such.py"], "there is no program 'no/such.py'."),
        (["--against", "no/such.py", __file__], "--against there is no program 'no/such.py'."),
        ([__file__, "--against", __file__], "--against comes before the program"),
        (["--keep", "/", __file__], "--keep / already exists."),
        (["--steps", "0", __file__], "--steps 0 must be 1 or more."),
        (["--every", "-2", __file__], "--every -2 must be 1 or more."),
        (["--search", "-1", __file__], "--search -1 must be a number of seconds, 0 or more."),
        (["--against", __file__, "--against-checkpoint", "c", __file__], "side B is either"),
        (["--examples", "no/such", __file__], "--examples no/such: there is no such file."),
        (
            ["--begin-from", "no/such", __file__],
            "--begin-from no/such: there is no such checkpoint",
        ),
        (["--begin-from", "/", __file__], "--begin-from /: the folder has no file `checkpoint`"),
        (["--against-checkpoint", "x", __file__], "--against-checkpoint x: there is no such"),
        (["--python-a", "no/such", __file__], "--python-a no/such: there is no such executable"),
        ([*BRIDGE, "--python-b", "no/such", __file__], "--python-b no/such: there is no such"),
        ([*BRIDGE, "--python-b", "true", __file__], "--python-b true: no side can run in it"),
        (
            [*BRIDGE, "--watch", "--python-b", "no/such", __file__],
            "--python-b no/such: there is no such",
        ),
        ([*BRIDGE, "--json", "no/such", __file__], "--json no/such cannot be written"),
        ([*BRIDGE, "--html", "/", __file__], "--html / cannot be written"),
    ],
)
def test_wrong_options_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong paths, numbers, interpreters and combinations of options give a one-line error.

    No side runs before, and the status is 2.
    """
    assert main.main(["verify", *arguments]) == 2
    stderr = capsys.readouterr().err
    assert message in stderr
    assert stderr.count("\n") == 1


@pytest.mark.parametrize("side", ["a", "b"])
def test_a_side_of_stock_needs_stock(
    side: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing stock estimator is detected before anything runs."""
    monkeypatch.setattr(verify_checks, "_PROBE", "print('[[2, 21], false]')")
    assert main.main(["verify", *BRIDGE, f"--{side}", "stock", __file__]) == 2
    expected = (
        f"--{side} stock: {sys.executable} has TensorFlow 2.21 without stock's estimator. Use"
    )
    assert expected in capsys.readouterr().err
