"""Every command that runs a program, or part of one, provides TensorFlow 1 if it is needed."""

from __future__ import annotations

import argparse
import builtins
import json
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf

from compat_tests.conftest import HAS_STOCK
from compat_tests.run.test_tf1_programs import PROGRAMS
from compat_tests.support.legacy_specs import needs_stock
from estimator_bridge import errors
from estimator_bridge.cli import main, program_arguments

SPEC = """
import tensorflow as tf

INITIAL = tf.truncated_normal_initializer(stddev=0.5)


def make_spec():
    ids = tf.feature_column.categorical_column_with_identity("word", 7)
    column = tf.tpu.experimental.embedding_column(ids, 3, initializer=INITIAL)
    assert tf.placeholder(tf.int32, [2]).shape.as_list() == [2]
    return tf.estimator.tpu.experimental.EmbeddingConfigSpec(
        feature_columns=[column],
        optimization_parameters=tf.tpu.experimental.AdagradParameters(0.1),
    )
"""
SAID = "the program names tf.truncated_normal_initializer (specs.py, line 4)"


def _runs_programs(parser: argparse.ArgumentParser) -> bool:
    names = {action.dest for action in parser._actions}
    return bool(names & {"script", "spec"})


COMMANDS = {name: each for name, each in main.parsers()[1].items() if _runs_programs(each)}


def test_every_command_on_programs_takes_the_option() -> None:
    """Commands take `--tf1` and `--no-tf1`; without either they find out."""
    required = {
        **{"run": ["a.py"], "verify": ["a.py"], "convert": ["a", "b"], "inspect": ["a"]},
        **{"record": ["-o", "recorded", "a.py"], "audit": [], "migrate": [], "plan": []},
    }
    assert COMMANDS.keys() == required.keys()
    for name, arguments in required.items():
        for option, parsed in (([], None), (["--tf1"], True), (["--no-tf1"], False)):
            assert COMMANDS[name].parse_args([*option, *arguments]).tf1 is parsed, name


@pytest.mark.parametrize("by_module", [True, False])
def test_a_spec_of_tf1_is_read(
    by_module: bool,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`--spec` finds out by itself, in files and modules; afterwards TensorFlow is as before."""
    (tmp_path / "specs.py").write_text(SPEC)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = builtins.__import__
    spec = program_arguments.load("specs:make_spec" if by_module else "specs.py:make_spec")
    monkeypatch.delitem(sys.modules, "specs", raising=False)

    assert [column.get_embedding_table_size() for column in spec.feature_columns] == [(7, 3)]
    assert SAID in capsys.readouterr().err
    assert tf.executing_eagerly()
    assert builtins.__import__ is before


def test_a_spec_that_does_not_see_tf1_says_what_to_do(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With `--no-tf1` the module fails, and a line names the option."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "specs.py"
    path.write_text(SPEC)

    with pytest.raises(errors.InvalidInput, match="line 4: AttributeError"):
        program_arguments.load(f"{path}:make_spec", tf1=False)
    assert (
        "because of tf.truncated_normal_initializer, which only TensorFlow 1 has. Run it with "
        in (capsys.readouterr().err)
    )


@pytest.mark.parametrize("form", ["bridge", "tf2"])
def test_migrate_ports_a_program_of_tf1(form: str, tmp_path: pathlib.Path) -> None:
    """Its imports become those of tf.compat.v1, and the form is made of that."""
    path = tmp_path / "job.py"
    path.write_text(
        "import tensorflow as tf\n\nrate = tf.train.exponential_decay\n\n"
        "def make(model_fn, loss):\n  tf.train.AdamOptimizer(rate).minimize(loss)\n"
        "  return tf.estimator.tpu.TPUEstimator(model_fn, embedding_config_spec=make_spec())\n"
    )

    assert main.main(["migrate", "--form", form, str(path)]) == 0
    new = (tmp_path / f"job_{form}.py").read_text()
    assert "import tensorflow.compat.v1 as tf\n" in new
    assert "rate = tf.train.exponential_decay\n" in new
    assert main.main(["migrate", "--no-tf1", "--form", form, "--force", str(path)]) == 0
    assert "import tensorflow as tf\n" in (tmp_path / f"job_{form}.py").read_text()


def _run(folder: pathlib.Path, *arguments: str, cores: int = 2) -> subprocess.CompletedProcess[str]:
    """Runs a command on a program for so many cores; an argument `PROGRAM` is its path."""
    source = (PROGRAMS / "mnist" / "mnist.py").read_text()
    assert source.count("TPUConfig(2, 2)") == 1
    program = folder / "mnist.py"
    program.write_text(source.replace("TPUConfig(2, 2)", f"TPUConfig(2, {cores})"))
    command = [str(program) if each == "PROGRAM" else each for each in arguments]
    return subprocess.run(
        [sys.executable, "-m", "estimator_bridge", *command, f"--model_dir={folder / 'job'}"],
        capture_output=True,
        text=True,
    )


@pytest.mark.full
def test_verify_compares_a_program_of_tf1(tmp_path: pathlib.Path) -> None:
    """Each side finds out in its own process; with use_tpu=False stock's is a side, too."""
    report = tmp_path / "report.json"
    a = "stock" if HAS_STOCK else "bridge-cpu"
    options = ("--a", a, "--steps", "2", "--json", str(report))
    ran = _run(tmp_path, "verify", *options, "PROGRAM", "--use_tpu=False")

    assert ran.returncode == 0, ran.stdout + ran.stderr
    result = json.loads(report.read_text())
    for side in result["sides"].values():
        assert side["tensorflow"] == f"{tf.__version__}, seen as TensorFlow 1"
    assert {each["name"] for each in result["series"]} >= {"conv2d/kernel", "dense/bias", "loss"}
    assert all(outcome["equal"] for outcome in result["outcomes"])


@pytest.mark.full
@needs_stock
def test_predictions_of_stock_on_a_tpu_are_compared(tmp_path: pathlib.Path) -> None:
    """Predictions of stock on a TPU are compared, though it reads the first batch twice."""
    ran = _run(tmp_path, "verify", "--a", "stock", "--steps", "2", "PROGRAM", cores=1)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "and 1 prediction result" in ran.stdout


@pytest.mark.full
def test_a_side_that_does_not_see_tf1_says_what_to_do(tmp_path: pathlib.Path) -> None:
    """With `--no-tf1` the error of the side names what is missing, and the option."""
    ran = _run(tmp_path, "verify", "--no-tf1", "--a", "bridge", "PROGRAM", "--use_tpu=False")

    assert ran.returncode == 2
    assert "because of tf.contrib, which only TensorFlow 1 has. Run it with --tf1." in ran.stderr


@pytest.mark.full
def test_watch_takes_a_program_of_tf1(tmp_path: pathlib.Path) -> None:
    ran = _run(tmp_path, "verify", "--watch", "--steps", "2", "PROGRAM", "--use_tpu=False")

    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.full
def test_audit_runs_a_program_of_tf1(tmp_path: pathlib.Path) -> None:
    """`audit --run` of a program of TF1 ends at its estimator; its output goes to stderr."""
    ran = _run(tmp_path, "audit", "--json", "--run", "PROGRAM")

    assert ran.returncode == 0, ran.stderr
    assert "the program names tf." in ran.stderr
    _, result = json.loads(ran.stdout)
    assert not result["tables"]
    assert "no embedding_config_spec, so there are no tables" in result["remarks"]
    assert result["remarks"][0] == "use_tpu=True"
