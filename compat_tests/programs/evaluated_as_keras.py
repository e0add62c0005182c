"""Trains with hooks and exporters, by an estimator and by the Keras model that `migrate` makes.

    TF_USE_LEGACY_KERAS=1 python -m compat_tests.programs.evaluated_as_keras old FOLDER [NAME ...]
    TF_USE_LEGACY_KERAS=1 python -m compat_tests.programs.evaluated_as_keras new FOLDER [NAME ...]

Both go on from one checkpoint. The second prints, for each program, what each side has at the end
as a line of JSON: the steps of checkpoints, evaluations, answers of exports, and what differs most.
"""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from compat_tests.programs.canned_as_keras import contents, worst
from estimator_bridge import convert
from estimator_bridge.migrate import migrate_to_keras
from estimator_bridge.run import install
from tf2_engine.summaries.events import scalars_by_step

BEGIN, PERIOD, END = 4, 4, 24

PROGRAM = """\
import numpy as np
import tensorflow as tf

def rows(seed):
  rng = np.random.RandomState(seed)
  x = rng.normal(size=(64, 3)).astype(np.float32)
  y = (x[:, 0] * x[:, 1] > .3 * x[:, 2]).astype(np.int64)
  return tf.data.Dataset.from_tensor_slices(({'x': x}, y)).repeat().batch(16)


def more_accurate(best_eval_result, current_eval_result):
  return best_eval_result['accuracy'] < current_eval_result['accuracy']


def main(folder):
  columns = [tf.feature_column.numeric_column('x', shape=[3])]
  job = tf.estimator.DNNClassifier(
      [8], columns, ACTIVATIONoptimizer=tf.keras.optimizers.legacy.SGD(.3), model_dir=folder,
      config=tf.estimator.RunConfig(
          tf_random_seed=1, save_checkpoints_steps=PERIOD, keep_checkpoint_max=None))
  spec = tf.feature_column.make_parse_example_spec(columns)
  receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(spec)
TRAINING
"""

EVALUATED = """\
  tf.estimator.train_and_evaluate(
      job,
      tf.estimator.TrainSpec(lambda: rows(1).skip(BEGIN), max_steps=END, hooks=[HOOKS]),
      tf.estimator.EvalSpec(lambda: rows(2), steps=4, throttle_secs=0, exporters=EXPORTERS))
"""
TRAINED = "  job.train(lambda: rows(1).skip(BEGIN), STEPShooks=[HOOKS])"

_STOP = "tf.estimator.experimental.stop_if_no_increase_hook(job, 'loss', {}, {})"
"""A loss that decreases does not increase: this stops a training that does well."""

NO_STOP = "tf.estimator.experimental.make_early_stopping_hook(job, lambda: False)"
LATEST = "tf.estimator.LatestExporter('latest', receiver, exports_to_keep=3)"
BEST = "tf.estimator.BestExporter('best', receiver, COMPAREDexports_to_keep=None)"

CASES: Mapping[str, str] = {
    "every checkpoint": EVALUATED.replace("HOOKS", "").replace(
        "EXPORTERS", f"[\n          {LATEST}, {BEST.replace('COMPARED', '')}]"
    ),
    "the most accurate": EVALUATED.replace(
        "HOOKS", "tf.estimator.StopAtStepHook(last_step=22)"
    ).replace("EXPORTERS", BEST.replace("COMPARED", "compare_fn=more_accurate, ")),
    "no increase": EVALUATED.replace(
        "HOOKS", _STOP.format(8, "run_every_secs=None, run_every_steps=1")
    ).replace("EXPORTERS", "None"),
    "no increase, seldom looked at": EVALUATED.replace(
        "HOOKS", _STOP.format(6, "min_steps=9, run_every_secs=None, run_every_steps=4")
    ).replace("EXPORTERS", f"[{LATEST}]"),
    "above a threshold": EVALUATED.replace(
        "HOOKS",
        "tf.estimator.experimental.stop_if_higher_hook(job, 'accuracy', .1, "
        "run_every_secs=None, run_every_steps=1)",
    ).replace("EXPORTERS", "()"),
    "a function": EVALUATED.replace(
        "HOOKS",
        "tf.estimator.experimental.make_early_stopping_hook(\n"
        "          job, lambda: True, run_every_secs=None, run_every_steps=5)",
    ).replace("EXPORTERS", "None"),
    "some steps": TRAINED.replace("STEPS", "").replace(
        "HOOKS",
        "\n      tf.estimator.StopAtStepHook(num_steps=11),"
        "\n      tf.estimator.CheckpointSaverHook(folder, save_steps=3),"
        "\n      tf.estimator.LoggingTensorHook(['head/losses/weighted_loss/value'], 4)",
    ),
    "a loss that is no number": TRAINED.replace("STEPS", "max_steps=END, ")
    # Summaries of the first step refuse what is no number by themselves.
    .replace(
        "rows(1)",
        "rows(1).enumerate().map(\n"
        "      lambda i, row: ({'x': row[0]['x'] + tf.where(i < 6, 0., np.nan)}, row[1]))",
    )
    .replace("HOOKS", "tf.estimator.NanTensorHook('head/losses/weighted_loss/value:0')"),
}
"""The training of each program, by its name."""

ACTIVATIONS = {"a loss that is no number": "activation_fn=tf.nn.softsign, "}
"""Functions of hidden layers in place of ReLU, which makes a 0 of NaN on some processors."""

LAST_STEPS = {
    "every checkpoint": END,
    "the most accurate": 22,
    "no increase": 16,
    "no increase, seldom looked at": 21,
    "above a threshold": 8,
    "a function": 5,
    "some steps": 15,
    "a loss that is no number": BEGIN,
}
"""The last step that has a checkpoint."""


def source(name: str) -> str:
    text = PROGRAM.replace("TRAINING", CASES[name])
    values = {"ACTIVATION": ACTIVATIONS.get(name, ""), "BEGIN": BEGIN, "PERIOD": PERIOD, "END": END}
    for key, value in values.items():
        text = text.replace(key, str(value))
    return text


def begin(name: str, folder: pathlib.Path) -> None:
    """Trains the estimator of a program for its first steps, and has the other begin there."""
    # A hook of early stopping has a variable, which a checkpoint of a training without one lacks.
    hooks = f"[{NO_STOP}]" if "experimental." in CASES[name] else "[]"
    first = f"  job.train(lambda: rows(1), max_steps={BEGIN}, hooks={hooks})"
    head, _, _ = source(name).partition("  spec = ")
    run(name, f"{head}{first}\n", folder / "old")
    convert.convert(str(folder / "old"), str(folder / "new"), no_tables=True)


def run(name: str, text: str, folder: pathlib.Path) -> str:
    """Runs a program; returns the kind of the error that ended it, or ""."""
    namespace: dict[str, Any] = {"__name__": name}
    exec(compile(text, f"{name}.py", "exec"), namespace)
    try:
        namespace["main"](str(folder))
    except RuntimeError as error:
        return "NaN" if "NaN" in str(error) else repr(error)
    return ""


def results_in(folder: pathlib.Path) -> dict[str, Any]:
    """Returns what a training has left in its folder."""
    checkpoints = [path.stem for path in folder.glob("*ckpt-*.index")]
    exports = {
        path.name: [scores_of(each) for each in sorted(path.iterdir())]
        for path in sorted(folder.glob("export/*"))
    }
    return {
        "checkpoints": sorted(int(path.rpartition("-")[2]) for path in checkpoints),
        "evaluations": scalars_by_step(str(folder / "eval")),
        "exports": exports,
    }


def scores_of(export: pathlib.Path) -> list[float]:
    """Returns the answers of an export, which tell the checkpoint that it was made of."""
    serving = tf.saved_model.load(str(export)).signatures["serving_default"]
    numbers = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(4, 3)
    examples = [
        tf.train.Example(
            features=tf.train.Features(
                feature={"x": tf.train.Feature(float_list=tf.train.FloatList(value=row))}
            )
        ).SerializeToString()
        for row in numbers
    ]
    (answer,) = (value for key, value in serving(tf.constant(examples)).items() if key == "scores")
    return np.ravel(answer).tolist()


def main() -> None:
    """Runs the programs of the command line, or all."""
    install.install()
    part, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    for name in sys.argv[3:] or CASES:
        place = folder / re.sub(r"\W+", "_", name)
        if part == "old":
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            begin(name, place)
            error = run(name, source(name), place / "old")
        else:
            error = run(name, migrate_to_keras(source(name), name).source, place / "new")
        results = {"name": name, "error": error, **results_in(place / part)}
        if part == "old":
            (place / "old.json").write_text(json.dumps(results))
            convert.convert(str(place / "old"), str(place / "last"), no_tables=True)
            continue
        old = json.loads((place / "old.json").read_text())
        there, here = contents(str(place / "last")), contents(str(place / "new"))
        keys = [key for key in {*there, *here} if "STOP" not in key]  # of hooks
        pairs = [(key, there.get(key), here.get(key)) for key in keys]
        results["worst"] = worst(pairs)
        sys.stdout.write(f"{json.dumps({'old': old, 'new': json.loads(json.dumps(results))})}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
