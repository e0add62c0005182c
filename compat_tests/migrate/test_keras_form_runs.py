"""Programs in the Keras form resume from the legacy checkpoint and train the same."""

from __future__ import annotations

import pathlib
import shutil

import pytest
import tensorflow as tf

from compat_tests.migrate import test_tf2_form_runs as tf2_runs
from compat_tests.migrate.test_keras_form import CARRIED, written
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
    source = tf2_runs.write_example(tmp_path, name)
    (tmp_path / NEW).write_text(keras_form(source, name).source)
    last = 26  # for movielens too: with a few more steps a missing update shows
    legacy = [str(tmp_path / "predictions.npz")]
    tf2_runs.train(tmp_path, legacy, "train.py", "old", example.first, example)
    environment = {"TF_USE_LEGACY_KERAS": "1" if keras == "2" else "0"}
    commands = tf2_runs.commands(tmp_path, example, NEW, **environment)
    shutil.copytree(tmp_path / "converted", tmp_path / "new")
    arguments = [*example.arguments, "--model_dir=new", *example.until(last)]
    tf2_runs.run(tmp_path, NEW, *arguments, check=True, **environment)

    tf2_runs.train(tmp_path, legacy, "train.py", "old", last, example)
    for model, command in zip(example.models, commands, strict=True):
        tf2_runs.convert(tmp_path, command, f"old/{model}", f"last/{model}")
        places = (tmp_path / place / model for place in ("last", "new", "converted"))
        there, here, start = map(tf2_runs.contents, places)
        tf2_runs.judge(f"{name} {model}, Keras {keras}", 0.0, there, here, start)
    assert example.exports == bool([*(tmp_path / "new").glob("export/*/saved_model.pb")])
