"""Programs in the tf2 form resume from the legacy checkpoint, and train and predict the same."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.project.test_docs import write_data
from compat_tests.support import fresh
from compat_tests.support.paths import ROOT
from estimator_bridge import migrate

Arrays = Mapping[str, np.ndarray]


# A prediction is a sum of up to 64 float32 products of order 1 in any order: (2 * 64 + 4) * 2^-24 =
# 8e-6.
PREDICTIONS = 1e-5
# Relative to the change by training. Both programs run the same ops on the same engine: measured is
# 0, and 6e-7 against stock on its TPU after 200 steps. A missing or repeated update causes 1e-2 or
# more.
STATES = 1e-4

NOT_COMPARED = ("dummy_table", "signal_early_stopping")
"""Parts of the names of variables that replace tables in a graph or belong to a hook."""


class Example(NamedTuple):
    """How to run an example.

    Attributes:
        arguments: the arguments of every run.
        steps: the flags for the number of steps, which replaces "{}".
        models: the folders of its models in model_dir.
        exports: whether it ends with an export and writes requests beside it.
        first, last: the last step of the legacy program, and the last step of both.
    """

    arguments: tuple[str, ...] = ()
    steps: str = "--train_steps={}"
    models: tuple[str, ...] = ("",)
    exports: bool = True
    first: int = 6
    last: int = 26

    def until(self, step: int) -> list[str]:
        return self.steps.format(step).split()


EXAMPLES = {
    "movielens": Example(
        (
            *("--data_dir=data", "--save_checkpoints_steps=500", "--iterations_per_loop=1"),
            *("--train_batch_size=32", "--eval_batch_size=60", "--predict_batch_size=60"),
            # With dropout, each program would drop other units.
            *("--dropout=0", "--resume"),
            # The Keras form has no such flag.
            "--undefok=iterations_per_loop",
        ),
        exports=False,
        last=206,
    ),
    "two_tower": Example(("--batch_size=32", "--eval_steps=2")),
    "wide_and_deep": Example(("--data_dir=data", "--batch_size=32", "--eval_steps=2")),
    "sequence": Example(("--batch_size=16", "--eval_steps=2")),
    "dict_config": Example(("--batch_size=16", "--eval_steps=2")),
    "warm_start": Example(
        ("--batch_size=16", "--num_shards=1", "--undefok=num_shards"),
        "--pretrain_steps={0} --train_steps={0}",
        ("together", "orders"),
    ),
}


def run(
    folder: pathlib.Path, *arguments: Any, check: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, **environment}
    return fresh.python("-W", "ignore", *arguments, cwd=folder, env=variables, check=check)


def check_equal(folder: pathlib.Path, side: str, new: str, *arguments: str, steps: int) -> None:
    """Checks that `verify` calls a program equal to its migrated form.

    Args:
        side: the side on which the legacy program runs.
        new: the file of the migrated program.
        arguments: the file of the legacy program, and the program's arguments.
    """
    options = ("--a", side, "--against", new, "--steps", str(steps))
    ran = run(folder, "-m", "estimator_bridge", "verify", *options, *arguments)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "EQUAL" in ran.stdout


def trained(
    folder: pathlib.Path, program: str, model_dir: str, steps: int, example: Example, *how: str
) -> Arrays:
    """Trains up to a step; returns the program's predictions at that step."""
    path = folder / f"{program}_{model_dir}_{steps}.npz"
    train(folder, [*how, str(path)], program, model_dir, steps, example)
    return dict(np.load(path))


def train(
    folder: pathlib.Path,
    how: list[str],
    program: str,
    model_dir: str,
    steps: int,
    example: Example,
) -> None:
    """Runs a program with `compat_tests.programs.predicting` up to a step."""
    arguments = [*example.arguments, f"--model_dir={model_dir}", *example.until(steps)]
    if program == "train.py":
        arguments.append("--use_tpu")
    run(folder, "-m", "compat_tests.programs.predicting", *how, program, *arguments, check=True)


Changes = Iterable[tuple[str, str]]


def write_example(folder: pathlib.Path, name: str, changes: Changes = ()) -> str:
    """Writes an example with some text replaced, and its data; returns the source."""
    source = (ROOT / "examples" / name / "train.py").read_text()
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    (folder / "train.py").write_text(source)
    if name == "movielens":
        write_data(folder / "data")
    return source


def write_programs(
    folder: pathlib.Path, name: str, changes: Changes = (), target: str | None = None
) -> None:
    """Writes an example with some text replaced, and its migrated program."""
    source = write_example(folder, name, changes)
    (folder / "train_tf2.py").write_text(migrate.migrate(source, name, target=target).source)


def commands(
    folder: pathlib.Path, example: Example, program: str = "train_tf2.py", **environment: str
) -> list[list[str]]:
    """Returns the commands that the migrated program prints, and converts "old" with them."""
    shown = []
    shutil.copytree(folder / "old", folder / "tried")
    arguments = [*example.arguments, "--model_dir=tried", *example.until(example.first + 1)]
    for model in example.models:
        ran = run(folder, program, *arguments, **environment)
        assert ran.returncode != 0
        (command,) = re.findall(r"estimator-bridge (convert .*)", ran.stderr)
        shown.append(shlex.split(command))
        convert(folder, shown[-1], f"old/{model}", f"converted/{model}")
        # Otherwise the next run would restore this model and refuse the next one.
        shutil.rmtree(folder / "tried" / model)
        shutil.copytree(folder / "converted" / model, folder / "tried" / model)
    return shown


def convert(folder: pathlib.Path, command: list[str], old: str, new: str) -> None:
    """Converts a checkpoint with the printed command, using other folders."""
    (folder / new).parent.mkdir(exist_ok=True)
    run(folder, "-m", "estimator_bridge", "convert", old, new, *command[3:], check=True)


def answers(folder: pathlib.Path, requests: str, *models: pathlib.Path) -> list[Arrays]:
    """Returns the answers of SavedModels in a plain TensorFlow process, by loader and output."""
    program, out = ROOT / "compat_tests" / "programs" / "answering.py", folder / "answers.npz"
    run(folder, "-I", program, requests, out, *models, check=True)
    results = np.load(out)
    return [
        {key.partition("/")[2]: results[key] for key in results if key.startswith(f"{number}/")}
        for number in range(len(models))
    ]


def check_exports(folder: pathlib.Path, name: str, requests: str = "") -> Arrays:
    """Checks that the exports of "old" and "new" give the same answers; returns them.

    Args:
        requests: a file; by default the sample beside the export of "old".
    """
    (old,), (new,) = ((folder / place / "export").iterdir() for place in ("old", "new"))
    assert new.name.isdigit()
    legacy, migrated = answers(folder, requests or str(old / "sample.npz"), old, new)
    numbers = {key for key, value in legacy.items() if value.dtype.kind != "S"}
    for key in legacy.keys() - numbers:
        np.testing.assert_array_equal(legacy[key], migrated[key])
    assert legacy.keys() == migrated.keys()
    apart = difference(*({key: each[key] for key in numbers} for each in (legacy, migrated)))
    print(f"\n  {name}: exports {apart:.1e}, of {', '.join(legacy)}")  # noqa: T201
    assert apart <= PREDICTIONS
    return legacy


def contents(path: pathlib.Path) -> Arrays:
    """Returns the tables, slots and variables in the latest checkpoint of a folder."""
    reader = tf.train.load_checkpoint(str(path))
    return {
        key: reader.get_tensor(key)
        for key in reader.get_variable_to_shape_map()
        if key.startswith(("embedding", "variables"))
        and not any(word in key for word in NOT_COMPARED)
    }


def difference(one: Arrays, other: Arrays) -> float:
    """Returns the largest difference between two sets of arrays of the same names."""
    assert one.keys() == other.keys()
    return max(float(np.max(np.abs(one[key] - other[key]), initial=0.0)) for key in one)


def judge(what: str, predictions: float, there: Arrays, here: Arrays, start: Arrays) -> None:
    """Prints the differences between two programs, and checks their bounds."""
    states, moved = difference(there, here), difference(there, start)
    print(f"\n  {what}: predictions {predictions:.1e}, states {states:.1e} of {moved:.1e}")  # noqa: T201
    assert predictions <= PREDICTIONS
    assert moved > 0.01
    assert states <= STATES * moved


@pytest.mark.full
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_migrated_example_resumes_like_the_legacy_one(name: str, tmp_path: pathlib.Path) -> None:
    """From the converted checkpoint it predicts, exports and trains like the legacy program."""
    check_resumes(tmp_path, name)


KERAS = [
    (
        "wine = tf.layers.dense(tf.concat([features['grapes'], features['words']], 1), DIMENSION)",
        """\
net = tf.concat([features['grapes'], features['words']], 1)
  with tf.variable_scope('tower'):
    net = tf.keras.layers.Dense(16, activation='tanh')(net)
    net = tf.layers.dense(net, 12)
    net = tf.keras.layers.Dense(12, name='named')(net)
  inputs = tf.keras.Input([12])
  nested = tf.keras.Sequential([tf.keras.layers.Dense(12, name='last')], name='nested')
  net = tf.keras.Model(inputs, nested(tf.keras.layers.Dense(12)(inputs)))(net)
  wine = tf.layers.dense(net, DIMENSION)
  wine *= tf.Variable(1.5, name='scale')
  wine += tf.get_variable('shift', [], initializer=tf.zeros_initializer())""",
    ),
]


@pytest.mark.full
def test_layers_of_keras_have_their_legacy_names(tmp_path: pathlib.Path) -> None:
    """The checkpoint has all layers, in scopes, in models, and beside other variables."""
    check_resumes(tmp_path, "dict_config", KERAS)
    names = {
        key.split("/")[1].replace(".S", "/")
        for key in contents(tmp_path / "new")
        if key.startswith("variables/") and ".SAdam" not in key
    }
    # Keras numbers layers per program and tf.layers per scope, so two layers are tower/dense.
    layers = ("tower/dense", "tower/named", "dense", "dense_2", "nested/last")
    assert names == {
        *(f"{layer}/{part}" for layer in layers for part in ("kernel", "bias")),
        *("tower/dense/kernel_1", "tower/dense/bias_1"),
        *("scale", "shift", "beta1_power", "beta2_power"),
    }


SAME_NAME = [
    (
        KERAS[0][0],
        """\
net = tf.concat([features['grapes'], features['words']], 1)
  hidden = tf.keras.layers.Dense(5, name='dense')(net)
  wine = tf.layers.dense(hidden, DIMENSION)""",
    ),
]


@pytest.mark.full
def test_variables_that_a_checkpoint_lacks_are_named(tmp_path: pathlib.Path) -> None:
    """The error names variables that a checkpoint lacks, even if another one has their name.

    `dense/kernel` first belongs to the only layer, then to the layer below it.
    """
    example = EXAMPLES["dict_config"]
    write_programs(tmp_path, "dict_config")
    train(tmp_path, ["first.npz"], "train_tf2.py", "model", 1, example)
    write_programs(tmp_path, "dict_config", SAME_NAME)
    ran = run(tmp_path, "train_tf2.py", *example.arguments, "--model_dir=model", *example.until(2))

    assert ran.returncode != 0
    words = "ckpt-1 lacks dense/kernel_1, dense/bias_1, .*--rename"
    assert re.search(words, ran.stderr), ran.stderr[-4000:]


def check_on_cores(
    folder: pathlib.Path, name: str, arguments: Iterable[str], *how: str, target: str | None = None
) -> None:
    """Checks that a migrated example trains the same on the cores of a software TPU as on a host.

    Args:
        arguments: further arguments of the program.
        how: the options of `compat_tests.programs.predicting` for the cores.
    """
    example = EXAMPLES[name]
    example = example._replace(arguments=(*example.arguments, *arguments))
    write_programs(folder, name, target=target)
    trained(folder, "train_tf2.py", "host", 2, example)
    shutil.copytree(folder / "host", folder / "cores")
    host = trained(folder, "train_tf2.py", "host", 12, example)
    cores = trained(folder, "train_tf2.py", "cores", 12, example, *how)

    predictions = difference(host, cores)
    places = [[folder / place / model for place in ("host", "cores")] for model in example.models]
    apart = max(difference(*map(contents, pair)) for pair in places)
    print(f"\n  {name} {how}: predictions {predictions:.1e}, states {apart:.1e}")  # noqa: T201
    # A row missing from a sum would cause 1e-2 or more.
    assert max(predictions, apart) <= PREDICTIONS


@pytest.mark.full
def test_a_migrated_program_trains_on_the_cores_of_a_tpu(tmp_path: pathlib.Path) -> None:
    # A TPU needs batches of equal size.
    check_on_cores(tmp_path, "movielens", ["--train_batch_size=60"], "--cores=2")


def check_resumes(folder: pathlib.Path, name: str, changes: Changes = ()) -> None:
    """Checks that a changed example, once migrated, predicts, exports and trains as before."""
    example = EXAMPLES[name]
    write_programs(folder, name, changes)
    legacy = trained(folder, "train.py", "old", example.first, example)
    convert_commands = commands(folder, example)
    shutil.copytree(folder / "converted", folder / "new")
    migrated = trained(folder, "train_tf2.py", "new", example.first, example)
    if example.exports:
        check_exports(folder, name)

    trained(folder, "train.py", "old", example.last, example)
    trained(folder, "train_tf2.py", "new", example.last, example)
    for model, command in zip(example.models, convert_commands, strict=True):
        convert(folder, command, f"old/{model}", f"last/{model}")
        states = (contents(folder / place / model) for place in ("last", "new", "converted"))
        judge(f"{name} {model}", difference(legacy, migrated), *states)


@pytest.mark.full
@pytest.mark.stock
def test_movielens_on_stock_bridge_and_tensorflow_2(tmp_path: pathlib.Path) -> None:
    """Stock on its TPU, the bridge and the migrated program predict and train the same.

    The bridge and the migrated program predict from stock's checkpoint, which is converted for the
    latter. Then stock and the migrated program train 200 more steps.
    """
    example = EXAMPLES["movielens"]
    write_programs(tmp_path, "movielens")
    train(tmp_path, ["stock"], "train.py", "old", example.first, example)
    shutil.copytree(tmp_path / "old", tmp_path / "bridge")
    (command,) = commands(tmp_path, example)
    shutil.copytree(tmp_path / "converted", tmp_path / "new")
    bridge = trained(tmp_path, "train.py", "bridge", example.first, example)
    migrated = trained(tmp_path, "train_tf2.py", "new", example.first, example)
    errors = [
        json.loads((tmp_path / place / "metrics.json").read_text())["test_rmse"]
        for place in ("old", "bridge", "new")
    ]
    assert max(errors) - min(errors) <= PREDICTIONS

    train(tmp_path, ["stock"], "train.py", "old", example.last, example)
    trained(tmp_path, "train_tf2.py", "new", example.last, example)
    convert(tmp_path, command, "old", "last")
    states = (contents(tmp_path / place) for place in ("last", "new", "converted"))
    judge("from stock to TensorFlow 2", difference(bridge, migrated), *states)


@pytest.mark.full
def test_the_first_checkpoint_may_be_deleted(tmp_path: pathlib.Path) -> None:
    write_programs(tmp_path, "movielens")
    arguments = [*EXAMPLES["movielens"].arguments, "--model_dir=new", "--train_steps"]
    for steps, more in (("2", []), ("10", ["--save_checkpoints_steps=1"])):
        run(tmp_path, "train_tf2.py", *arguments, steps, *more, check=True)
    assert not list((tmp_path / "new").glob("model.ckpt-2.*"))
    assert list((tmp_path / "new").glob("model.ckpt-10.*"))
