"""Exports, evaluations, conversions and statistics that are killed again and again.

    python -m compat_tests.programs.killed_beside DIRECTORY KIND KILLS SEED

It succeeds only if all results are complete after the kills, and one more run works.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from compat_tests.programs import killed, stuck, stuck_trainer
from compat_tests.support import legacy_checkpoints
from estimator_bridge import convert as conversions
from estimator_bridge import estimator
from tf2_engine import Adagrad, EngineSpec, FeatureSpec, TableSpec
from tf2_engine.backends.host import profile
from tf2_engine.plan import make_plan

LAST = 8
"""The step of a job that is exported or converted."""

IDS = [[3], [10]]


class Work(NamedTuple):
    """Something to kill.

    Attributes:
        do: does the work in a directory, over and over.
        check: does the work once more, and checks that all results are complete; may print.
        changes: a process is killed within this number of changes of the directory.
    """

    do: Callable[[pathlib.Path], Any]
    check: Callable[[pathlib.Path], Any]
    changes: int


def served(export: pathlib.Path) -> Any:
    model = tf.compat.v2.saved_model.load(str(export))
    return model.signatures["serving_default"](users=tf.constant(IDS, tf.int64))["p"].numpy()


def exports(base: pathlib.Path) -> list[pathlib.Path]:
    """Returns the exports below a directory, as servers find them."""
    return sorted(path for path in base.glob("*") if path.name.isdigit())


def trained(directory: pathlib.Path) -> Any:
    job = killed.make(directory / "job")
    job.train(killed.by_step, max_steps=LAST)
    return job


def export(directory: pathlib.Path) -> None:
    job = trained(directory)
    while True:
        job.export_saved_model(str(directory / "made"), killed.receiver)


def check_exports(directory: pathlib.Path) -> None:
    """Checks that every export predicts the same as one that was never killed."""
    job = trained(directory)
    whole = served(
        pathlib.Path(os.fsdecode(job.export_saved_model(directory / "whole", killed.receiver)))
    )
    job.export_saved_model(directory / "made", killed.receiver)
    exported = exports(directory / "made")
    for path in exported:
        np.testing.assert_array_equal(served(path), whole, err_msg=str(path))
    others = {path.name for path in (directory / "made").iterdir()} - {
        path.name for path in exported
    }
    assert all(name.startswith("temp-") for name in others), others


def train_and_evaluate(directory: pathlib.Path, steps: int) -> Any:
    """Trains up to a step; evaluates and exports every checkpoint."""
    job = killed.make(directory)
    exporters = [
        kind(kind.__name__, killed.receiver, exports_to_keep=None)
        for kind in (estimator.LatestExporter, estimator.BestExporter)
    ]
    return estimator.train_and_evaluate(
        job,
        estimator.TrainSpec(killed.by_step, max_steps=steps),
        estimator.EvalSpec(killed.by_step, steps=2, exporters=exporters, throttle_secs=0),
    )


def check_evaluations(directory: pathlib.Path) -> None:
    """Checks that values, metrics and exports are those of a job that was never killed."""
    latest = tf.train.latest_checkpoint(str(directory / "made"))
    steps = 4 + (0 if latest is None else int(latest.rpartition("-")[2]))
    ends = []
    for name in ("made", "whole"):
        metrics, _ = train_and_evaluate(directory / name, steps)
        newest = exports(directory / name / "export" / "LatestExporter")[-1]
        values = legacy_checkpoints.read(tf.train.latest_checkpoint(str(directory / name)))
        ends.append({**values, **metrics, "served": served(newest)})
    for key in ends[1]:
        np.testing.assert_array_equal(ends[0][key], ends[1][key], err_msg=key)
    for path in (directory / "made" / "export").glob("*/[0-9]*"):
        served(path)


def convert(directory: pathlib.Path) -> None:
    """Converts a checkpoint over and over, each time to another directory."""
    (directory / "made").mkdir(exist_ok=True)
    first = len(converted(directory))
    for number in itertools.count(first):
        convert_to(directory, number)


def convert_to(directory: pathlib.Path, number: int) -> None:
    """Converts a checkpoint, and trains the job that writes it if there is none."""
    job = killed.make(directory / "job", strategy="mod")
    if job.latest_checkpoint() is None:
        job.train(killed.by_step, max_steps=LAST)
    conversions.convert(
        str(directory / "job"),
        str(directory / "made" / str(number)),
        spec=job._embedding_config_spec,
        to="names",
        to_hosts=2,
    )


def converted(directory: pathlib.Path) -> list[pathlib.Path]:
    """Returns the results of conversions; their temporary directories are hidden."""
    return [path for path in (directory / "made").iterdir() if not path.name.startswith(".")]


def check_conversions(directory: pathlib.Path) -> None:
    """Checks that every converted checkpoint is complete, and that one more can be made."""
    convert_to(directory, len(converted(directory)))
    expected = legacy_checkpoints.read(tf.train.latest_checkpoint(str(directory / "job")))
    for path in converted(directory):
        values = legacy_checkpoints.read(tf.train.latest_checkpoint(str(path)))
        assert set(values) == set(expected), path
        for name, value in expected.items():
            if name.split("/")[0] in killed.ROWS:
                values[name] = legacy_checkpoints.by_id(values[name], 2, "mod")
            np.testing.assert_array_equal(values[name], value, err_msg=f"{path}: {name}")


class WordReceiver:
    """The receiver of an exported `Trainer`."""

    def __init__(self) -> None:
        word = tf.placeholder(tf.int64, [None, 1])
        self.features = {"word": tf.sparse.from_dense(word)}
        self.receiver_tensors = {"word": word}


def train_and_export(directory: pathlib.Path) -> None:
    """Trains with a `Trainer`, and exports it, over and over."""
    trainer = stuck_trainer.make(directory / "made", "never")
    while True:
        step_of_trainer(directory, trainer)


def step_of_trainer(directory: pathlib.Path, trainer: Any) -> int:
    """Makes a step, saves it, and exports it; returns its number."""
    trainer.train(stuck_trainer.input_of(directory, stuck.WHOLE), steps=1)
    trainer.export_saved_model(str(directory / "made" / "export"), WordReceiver)
    return int(trainer.step.numpy())


def check_trainer(directory: pathlib.Path) -> None:
    """Checks that the latest checkpoint is whole and is gone on from, and that all exports are."""
    model_dir = directory / "made" / "model"
    latest = tf.train.latest_checkpoint(str(model_dir))
    before = 0 if latest is None else int(latest.rpartition("-")[2])
    after = step_of_trainer(directory, stuck_trainer.make(directory / "made", "never"))
    assert after == before + 1, (before, after)
    assert tf.train.latest_checkpoint(str(model_dir)).endswith(f"-{after}")
    for path in exports(directory / "made" / "export"):
        signature = tf.compat.v2.saved_model.load(str(path)).signatures["serving_default"]
        (answer,) = signature(word=tf.constant([[3], [5]], tf.int64)).values()
        assert np.all(np.isfinite(answer.numpy())), path
    others = [path.name for path in (directory / "made" / "export").iterdir()]
    assert all(name.isdigit() or name.startswith("temp-") for name in others), others


COUNTED = profile.Counts(samples=1000, ids=3000, per_shard=(3000,))


def _plan() -> Any:
    table = TableSpec("table", 10, 2, "sum", Adagrad(0.1), tf.zeros_initializer())
    spec = EngineSpec((table,), (FeatureSpec("ids", "table"),))
    return make_plan(spec, [(4,)], num_hosts=1, num_cores=1)


def count(directory: pathlib.Path) -> None:
    plan = _plan()
    while True:
        profile.merge(str(directory / "made"), plan, plan.tables[0], COUNTED)


def check_counts(directory: pathlib.Path) -> None:
    """Checks that statistics are a number of complete additions, and that more can be added."""
    plan = _plan()
    before = profile.read(str(directory / "made"), plan, plan.tables[0]) or profile.Counts(
        0, 0, (0,)
    )
    profile.merge(str(directory / "made"), plan, plan.tables[0], COUNTED)
    after = profile.read(str(directory / "made"), plan, plan.tables[0])
    assert after == before + COUNTED
    assert (after.ids, after.samples % COUNTED.samples) == (3 * after.samples, 0), after
    assert after.per_shard == (after.ids,)


WORKS = {
    "export": Work(export, check_exports, 40),
    "evaluate": Work(
        lambda directory: train_and_evaluate(directory / "made", 1 << 40), check_evaluations, 40
    ),
    "convert": Work(convert, check_conversions, 60),
    "trainer": Work(train_and_export, check_trainer, 40),
    "count": Work(count, check_counts, 30),
}


def paths_in(directory: pathlib.Path) -> list[str]:
    def walk() -> Iterator[str]:
        for place, directories, files in os.walk(directory):
            yield from (f"{place}/{name}" for name in (*directories, *files))

    return list(walk())


def main(directory: pathlib.Path, kind: str, kills: int, seed: int) -> None:
    """Starts processes and kills them, and checks the results."""
    work, draw = WORKS[kind], random.Random(seed)
    directory.mkdir(exist_ok=True)
    if kind == "export":
        assert os.waitpid(killed.fork(lambda: trained(directory)), 0)[1] == 0
    for _ in range(kills):
        process = killed.fork(lambda: work.do(directory))
        killed.kill(process, directory / "made", draw, changes=work.changes, look=paths_in)
    assert os.waitpid(killed.fork(lambda: work.check(directory)), 0)[1] == 0


if __name__ == "__main__":
    base, kind_of_work, num_kills, first_seed = sys.argv[1:]
    tf.logging.set_verbosity(tf.logging.ERROR)
    main(pathlib.Path(base), kind_of_work, int(num_kills), int(first_seed))
