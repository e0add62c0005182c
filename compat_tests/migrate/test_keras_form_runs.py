"""Programs in the Keras form resume from the legacy checkpoint and train the same."""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import tensorflow as tf

from compat_tests.migrate import test_tf2_form_runs as tf2_runs
from compat_tests.migrate.test_keras_form import CARRIED, written
from compat_tests.project.test_docs import write_data
from compat_tests.support.paths import EXAMPLES as PROGRAMS
from compat_tests.support.whole_forms import keras_form

NEW = "train_keras.py"

KERAS = ["2", "3"] if tf.__version__ > "2.16" else ["2"]
"""The versions of Keras that `tf.keras` can be."""
CASES = [
    (name, keras)
    for name in CARRIED
    for keras in KERAS
    if keras == "2" or "TrainerModel(" not in written(name)  # whose layers are those of Keras 2
]


def run(folder: pathlib.Path, keras: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the new program on a version of Keras."""
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1" if keras == "2" else "0"}
    return subprocess.run(
        [sys.executable, "-W", "ignore", NEW, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment,
    )


@pytest.mark.full
@pytest.mark.parametrize("name, keras", CASES)
def test_a_migrated_example_goes_on_like_the_legacy_one(
    name: str, keras: str, tmp_path: pathlib.Path
) -> None:
    """From the converted checkpoint the new program trains to the state of the legacy program.

    The conversion uses the command that the new program prints. States are compared as for the tf2
    form: the same engine updates the tables, but Keras's optimizers order the float32 operations
    differently.
    """
    example = tf2_runs.EXAMPLES[name]
    source = (PROGRAMS / name / "train.py").read_text()
    (tmp_path / "train.py").write_text(source)
    (tmp_path / NEW).write_text(keras_form(source, name).source)
    if name == "movielens":
        write_data(tmp_path / "data")
    last = 26  # for movielens too: with a few more steps a missing update shows
    legacy = [str(tmp_path / "predictions.npz")]
    tf2_runs.train(tmp_path, legacy, "train.py", "old", example.first, example)
    commands = [shown_command(tmp_path, keras, example, model) for model in example.models]
    shutil.copytree(tmp_path / "converted", tmp_path / "new")
    ran = run(tmp_path, keras, *example.arguments, "--model_dir=new", *example.until(last))
    assert ran.returncode == 0, ran.stderr[-4000:]

    tf2_runs.train(tmp_path, legacy, "train.py", "old", last, example)
    for model, command in zip(example.models, commands, strict=True):
        tf2_runs.convert(tmp_path, command, f"old/{model}", f"last/{model}")
        places = (tmp_path / place / model for place in ("last", "new", "converted"))
        there, here, start = map(tf2_runs.contents, places)
        tf2_runs.judge(f"{name} {model}, Keras {keras}", 0.0, there, here, start)
    assert example.exports == bool([*(tmp_path / "new").glob("export/*/saved_model.pb")])


def shown_command(
    folder: pathlib.Path, keras: str, example: tf2_runs.Example, model: str
) -> list[str]:
    """Returns the command that the new program prints for a model, and runs it.

    The models before this one are already converted.
    """
    tried = folder / f"tried_{model}"
    shutil.copytree(folder / "old", tried)
    if (folder / "converted").exists() and model:
        for each in (folder / "converted").iterdir():
            shutil.rmtree(tried / each.name)
            shutil.copytree(each, tried / each.name)
    ran = run(folder, keras, *example.arguments, f"--model_dir={tried.name}", *example.until(7))
    assert ran.returncode != 0
    (shown,) = re.findall(r"estimator-bridge (convert .*)", ran.stderr)
    command = shlex.split(shown)
    tf2_runs.convert(folder, command, f"old/{model}", f"converted/{model}")
    return command
