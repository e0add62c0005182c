"""Code that the Keras form moves to another place, and results of a training that are used."""

from __future__ import annotations

import os
import pathlib

import pytest

from compat_tests.support import fresh
from compat_tests.support.whole_forms import migrate_to_keras
from estimator_bridge.migrate.blockers import Refused

HEAD = """\
import tempfile

import tensorflow as tf

model_dir = 'model'
steps = 4


def rows():
  return tf.data.Dataset.from_tensors(({'a': [[1.]]}, [[1]])).repeat()


a = tf.feature_column.numeric_column('a')
spec = tf.feature_column.make_parse_example_spec([a])
receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(spec)


"""
TRAINS = (
    "tf.estimator.train_and_evaluate(job, tf.estimator.TrainSpec(rows, max_steps=steps), "
    "tf.estimator.EvalSpec(rows, steps=1))"
)
EXPORTS = TRAINS.replace(
    "steps=1)", "steps=1, exporters=[tf.estimator.FinalExporter('last', receiver)])"
)


def estimator(arguments: str) -> str:
    return f"tf.estimator.DNNClassifier([8], [a], {arguments})"


def text_of(program: str) -> str:
    return migrate_to_keras(f"{HEAD}{program}\n", "train.py").source


REPEATED = {
    "model_dir": "job = ESTIMATOR\ndef main():\n  EXPORTS",
    "'other'": "def make():\n  return ESTIMATOR\njob = make()\nEXPORTS",
    "folder": "def main(folder):\n  def make():\n    return ESTIMATOR\n  job = make()\n  EXPORTS",
    "[each for each in ['other']][0]": (
        "def make():\n  return ESTIMATOR\ndef main(each):\n  job = make()\n  EXPORTS"
    ),
}
"""Programs in which the folder of the model is the same name or constant where it exports."""

CHANGED = {
    "model_dir": "def make(model_dir):\n  return ESTIMATOR\njob = make('other')\nEXPORTS",
    "folder": "def make(folder):\n  return ESTIMATOR\njob = make('other')\nEXPORTS",
    "folder + '/1'": (
        "def make(folder):\n  return ESTIMATOR\n"
        "def main(folder):\n  job = make(folder + '/2')\n  EXPORTS"
    ),
    "steps": "job = ESTIMATOR\nsteps = 5\nEXPORTS",
    "tempfile.mkdtemp()": "job = ESTIMATOR\nEXPORTS",
}
"""Programs in which the code of the folder has another value, or none, where the model exports."""


def exporting(program: str, folder: str) -> str:
    made = estimator(f"config=tf.estimator.RunConfig({folder})")
    return text_of(program.replace("ESTIMATOR", made).replace("EXPORTS", EXPORTS))


@pytest.mark.parametrize("folder", REPEATED)
def test_the_folder_of_exports_is_written_as_in_the_old_program(folder: str) -> None:
    """It means the same in both places."""
    text = exporting(REPEATED[folder], folder)
    assert f"tf.io.gfile.join({folder}, 'export', 'last')" in text


@pytest.mark.parametrize("folder", CHANGED)
def test_the_model_says_where_its_exports_lie(folder: str) -> None:
    """A name of the function that makes the estimator is not used in the function that trains."""
    text = exporting(CHANGED[folder], folder)
    assert f"model.keep_checkpoints({folder})" in text
    assert "tf.io.gfile.join(model.checkpoints.directory, 'export', 'last')" in text


ATTRIBUTE = """\
class Job:
  def __init__(self, folder):
    self.job = ESTIMATOR

  def run(self):
    self.results = EXPORTS
"""


def test_an_estimator_in_an_attribute_stays_there() -> None:
    """The model is the attribute from the start, also where it exports."""
    text = exporting(ATTRIBUTE.replace("EXPORTS", EXPORTS.replace("job", "self.job")), "folder")
    assert "    self.job = Model()\n    self.job.keep_checkpoints(folder)\n" in text
    assert "self.results = (self.job.latest_evaluation, [self.job.export_saved_model(\n" in text
    assert "tf.io.gfile.join(self.job.checkpoints.directory, 'export', 'last')" in text


CONFIG = "tf.estimator.RunConfig(model_dir, keep_checkpoint_max=steps)"
MAKES = f"return {estimator('config=config')}"
TRAIN = "job.train(rows, steps=1)"

MOVED = {
    f"config = {CONFIG}\ndef make(model_dir):\n  {MAKES}\njob = make('a')\n{TRAIN}": (
        "model_dir has another value where config is used"
    ),
    f"def main():\n  config = {CONFIG}\n  steps = 5\n  {MAKES.replace('return', 'job =')}\n": (
        "steps has another value where config is used"
    ),
    f"def config():\n  return {CONFIG}\ndef make(steps):\n  {MAKES.replace('=config', '=config()')}"
    f"\njob = make(9)\n{TRAIN}": "Write RunConfig(...) where the estimator is made",
    f"def main(x):\n  if x:\n    config = {CONFIG}\n  else:\n    config = {CONFIG}\n  {MAKES}": (
        "Write RunConfig(...) where the estimator is made"
    ),
    f"train = tf.estimator.TrainSpec(rows, max_steps=steps)\ntest = tf.estimator.EvalSpec(rows)\n"
    f"def main(steps):\n  job = {estimator('')}\n"
    "  tf.estimator.train_and_evaluate(job, train, test)": (
        "steps has another value where train is used"
    ),
    f"settings = tf.estimator.WarmStartSettings(model_dir)\ndef make(model_dir):\n"
    f"  return {estimator('warm_start_from=settings')}\njob = make('a')\n{TRAIN}": (
        "model_dir has another value where settings is used"
    ),
    f"def make(model_dir):\n  return {estimator('model_dir=model_dir')}\n"
    "def main(model_dir):\n  job = make(model_dir + '/1')\n"
    "  job.train(rows, hooks=[tf.estimator.CheckpointSaverHook(model_dir, save_steps=3)])": (
        "write RunConfig(save_checkpoints_steps=...) in its place"
    ),
}
"""Programs with code that would mean something else where the new program has it."""


@pytest.mark.parametrize("program", MOVED)
def test_code_is_not_moved_to_where_a_name_has_another_value(program: str) -> None:
    """The refusal says what to do."""
    with pytest.raises(Refused) as caught:
        text_of(program)
    assert MOVED[program] in str(caught.value)


KEPT = {
    "CALL": "",
    "results, _ = CALL": "results = model.latest_evaluation",
    "results, files = CALL\nprint(files)": (
        "results, files = (model.latest_evaluation, [])\nprint(files)"
    ),
    "results = CALL": "results = (model.latest_evaluation, [])",
    "[results] = CALL[:1]": "[results] = (model.latest_evaluation, [])[:1]",
    "print('RESULT', CALL)": "print('RESULT', (model.latest_evaluation, []))",
    "tf.print(\n  CALL[0]['loss'])": "tf.print(\n  (model.latest_evaluation, [])[0]['loss'])",
    "rows.results = [CALL]": "rows.results = [(model.latest_evaluation, [])]",
    "def main():\n  return CALL": "return (model.latest_evaluation, [])",
}
"""Uses of the result of train_and_evaluate, and the code after `fit` that keeps them."""


@pytest.mark.parametrize("use", KEPT)
def test_the_result_of_a_training_is_kept(use: str) -> None:
    """As with the estimator, it is a pair of metrics and exports."""
    text = text_of(f"job = {estimator('')}\n{use.replace('CALL', TRAINS)}")
    assert text.partition("validation_steps=1)\n")[2].strip() == KEPT[use]


def test_the_report_says_which_exports_the_result_lacks() -> None:
    """A callback does not return the paths of its exports."""
    exports = EXPORTS.replace("FinalExporter", "LatestExporter")
    made = estimator("config=tf.estimator.RunConfig('model', save_checkpoints_steps=5)")
    new = migrate_to_keras(f"{HEAD}job = {made}\nresult = {exports}\n", "train.py")
    assert [each.why for each in new.lines] == [
        "The result of train_and_evaluate lacks the exports that callbacks write"
    ]


LOST = [
    *("print(f'{CALL}')", "if CALL:\n  pass", "for each in CALL:\n  pass", "assert CALL"),
    *("print(rows(), CALL)", "x = [CALL, CALL]", "x = CALL if steps else 2", "x = lambda: CALL"),
    *("x = [CALL for _ in 'ab']", "x = steps and CALL", "print(TRAIN)", "job = TRAIN"),
    *("TRAIN.evaluate(rows)", "def main():\n  return TRAIN"),
]


@pytest.mark.parametrize("use", LOST)
def test_a_result_that_cannot_be_kept_is_refused(use: str) -> None:
    """`fit` would run at another time, or the program would use what `fit` returns."""
    with pytest.raises(Refused, match="Write the call in a statement of its own") as caught:
        text_of(f"job = {estimator('')}\n{use.replace('CALL', TRAINS).replace('TRAIN', TRAIN)}")
    assert {each.rule for each in caught.value.blockers} == {"keras-estimator-method"}


EVALUATED = ["print(f'{CALL}')", "x = [CALL['loss']]", "def main():\n  return CALL"]


@pytest.mark.parametrize("use", EVALUATED)
def test_the_result_of_an_evaluation_is_that_of_the_model(use: str) -> None:
    """`evaluate` returns a dict of metrics, as the estimator does."""
    text = text_of(f"job = {estimator('')}\n{use.replace('CALL', 'job.evaluate(rows, steps=1)')}")
    assert use.replace("CALL", "model.evaluate(rows(), steps=1)") in text


RUN = """\
def make(model_dir):
  return ESTIMATOR


def main(model_dir):
  job = make(model_dir + '/run')
  print(EXPORTS[1])


main('there')
"""


@pytest.mark.full
def test_a_program_exports_below_the_folder_of_its_estimator(tmp_path: pathlib.Path) -> None:
    """The function that trains has a folder of the same name and another value."""
    (tmp_path / "train.py").write_text(exporting(RUN, "model_dir"))
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1"}
    ran = fresh.python("train.py", cwd=tmp_path, env=environment, check=True)
    (export,) = tmp_path.glob("there/**/saved_model.pb")
    path = export.parent.relative_to(tmp_path)
    assert path.parent == pathlib.Path("there/run/export/last")
    assert str([os.fsencode(path)]) in ran.stdout
