"""`migrate --form tf2 --check-run` keeps a new program only if it runs one step."""

from __future__ import annotations

import pathlib
import re

import pytest
import tensorflow as tf

from compat_tests.support import migrate_corpus
from estimator_bridge.cli import main
from estimator_bridge.migrate import one_step

MAIN = """\
def main(arguments):
  estimator = make_estimator('model')
  if arguments == ['train']:
    estimator.train(input_fn, max_steps=10**9)
    estimator.evaluate(input_fn, steps=10**9)
  assert arguments != ['fail'], 'It was asked to fail.'


main(sys.argv[1:])
"""
PROGRAM = migrate_corpus.programs()["averages"].source.partition("def main(")[0] + MAIN


@pytest.mark.full
def test_what_cannot_make_a_step_is_not_kept(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program runs one step in another directory; a failure, or no training, is reported."""
    monkeypatch.chdir(tmp_path)
    path, new = tmp_path / "train.py", tmp_path / "train_tf2.py"
    path.write_text(PROGRAM)
    command = ["migrate", "--form", "tf2", "--check-run", str(path)]

    assert main.main([*command, "fail"]) == 2
    said = capsys.readouterr().err
    assert re.search(r"train_tf2\.py, line \d+: `assert arg.*` fails: AssertionError: It was", said)
    assert main.main(command) == 2
    assert "did not train with the arguments []" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["train.py"]
    assert main.main([*command, "train"]) == 0, capsys.readouterr().err
    assert new.is_file()
    assert not (tmp_path / "model").exists()


KEPT = """import sys
import tensorflow.compat.v1 as tf


def model_fn(features, labels, mode):
  loss = tf.reduce_sum(tf.get_variable('w', []) ** 2) * features[0]
  assert sys.argv[1:] != ['fail'], 'It was asked to fail.'
  step = tf.train.get_global_step()
  train_op = tf.train.GradientDescentOptimizer(.1).minimize(loss, step)
  return tf.estimator.EstimatorSpec(
      mode, loss=loss, train_op=train_op, eval_metric_ops={'mean': tf.metrics.mean(loss)})


def input_fn():
  return tf.data.Dataset.from_tensors(([1.], [1.])).repeat()


estimator = tf.estimator.Estimator(model_fn, 'model')
tf.estimator.train_and_evaluate(
    estimator, tf.estimator.TrainSpec(input_fn, max_steps=10**9),
    tf.estimator.EvalSpec(input_fn, steps=10**9))
if sys.argv[1:] == ['read']:
  print(open('model/checkpoint').read())
"""


@pytest.mark.full
@pytest.mark.parametrize("form", ["bridge", "tf2"])
def test_estimators_of_the_bridge_make_one_step(
    form: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program that keeps its estimators also runs one step; errors name its line.

    It ends where it needs the directory of its model, because the check keeps that elsewhere.
    """
    monkeypatch.chdir(tmp_path)
    path, new = tmp_path / "train.py", tmp_path / f"train_{form}.py"
    path.write_text(KEPT)
    command = ["migrate", "--form", form, "--check-run", str(path)]

    assert main.main([*command, "fail"]) == 2
    said = capsys.readouterr().err
    assert re.search(rf"{new.name}, line \d+: `assert sys\.argv.*` fails: AssertionError", said)
    assert main.main([*command, "read"]) == 0, capsys.readouterr().err
    said = capsys.readouterr().err
    assert re.search(
        rf"ended at .*{new.name}, line \d+: `print\(open.*`, which needs the directory", said
    )
    new.unlink()
    assert main.main(command) == 0, capsys.readouterr().err
    assert new.is_file()
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    "error, expected",
    [
        (FileNotFoundError(2, "No such file or directory", "out/model/export"), True),
        (FileNotFoundError(2, "No such file or directory", "./out/model"), True),
        (tf.errors.NotFoundError(None, None, "out/model/eval; No such file or directory"), True),
        (FileNotFoundError(2, "No such file or directory", "out/models/a"), False),
        (FileNotFoundError(2, "No such file or directory", "data/a"), False),
        (ValueError("out/model/export"), False),
    ],
    ids=repr,
)
def test_only_files_of_a_trained_model_end_a_check(
    error: Exception, expected: bool, tmp_path: pathlib.Path
) -> None:
    """A file that is missing for another reason is a failure, and so is each before a training."""
    check = one_step.Check(str(tmp_path))
    check.elsewhere("out/model/")
    assert not check.is_moved_away(error)

    check.trained.append("a model")
    assert check.is_moved_away(error) == expected


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["train.py", "--seed", "1"], "but only --check-run and --verify run the program"),
        ([], "name the program, or the folder"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    arguments: list[str],
    words: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Arguments that do not go together are refused, and the message says what each is for."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PROGRAM)

    assert main.main(["migrate", *arguments]) == 2
    assert words in capsys.readouterr().err
